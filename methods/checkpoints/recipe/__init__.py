"""How the built-in pair was made: corpus, tokenizer, target, drafter and evaluation."""
