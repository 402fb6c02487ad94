"""How the built-in pairs were made: corpus, tokenizer, target, drafter and evaluation."""
