"""The tokenizer: a byte-level BPE of 4096 entries with single digits and ChatML markers, as a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from methods.checkpoints.recipe.conversation import CHAT_TEMPLATE, render

VOCABULARY = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
MARKERS = ("<tool_call>", "</tool_call>", "<tools>", "</tools>")
END_IDS = (2, 0)
"""Ids that end an answer: <|im_end|> and <|endoftext|>."""
MASK_ID = 3


def sample_text(seed: int, conversations: int) -> Iterator[str]:
    """Rendered training conversations for the merges to be learnt from."""
    from methods.checkpoints.recipe.corpus import training_conversation

    for i in range(conversations):
        yield render(training_conversation(f"{seed}:tokenizer:{i}"))


def build(folder: Path, seed: int, conversations: int = 30000) -> None:
    """Trains the tokenizer on `conversations` conversations and writes a folder that `AutoTokenizer` loads."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKERS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample_text(seed, conversations), trainer)
    tokenizer.add_tokens([AddedToken(m, special=False, normalized=False) for m in MARKERS])
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = {"do_sample": False, "eos_token_id": list(END_IDS), "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
