"""What the plugin is told, and what it refuses by name before a model is loaded.

SGLang's command line has no room for a plugin's own settings: they come as JSON in the variable `DRAFT_TREE_SGLANG` of
the server's processes. The budget is told twice, since SGLang reserves slots and captures graphs for
`--speculative-num-draft-tokens` rows: 1 + budget.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Protocol

from methods.base import Refusal

VARIABLE = "DRAFT_TREE_SGLANG"
RANKS = (1, 2, 4, 8, 16)  # that hold whole chunks of a vocabulary
MASK_BYTES = 1  # SGLang's mask: a byte a row and slot
KEY = "draft_tree"  # under which a request asks for its rounds' figures, and gets them
STAGES, CHAIN, TREE, CHOICES = "stages", "chain", "tree", "choices"  # what it can ask for beside the counts


@dataclass(frozen=True)
class Settings:
    """`budget` non-root nodes and `block_size` positions drafted, root counted, which are no longer one number.

    `rounds` is the file that the rounds of requests which ask for them are appended to.
    """

    budget: int
    block_size: int
    chain_seed: bool = False
    rounds: str | None = None

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise Refusal(f"budget={self.budget} is not accepted: an integer of at least 1 is (16 to 1024 are usual).")
        if self.block_size < 2:
            raise Refusal(f"block_size={self.block_size} is not accepted: a root and at least one position are needed.")

    @property
    def width(self) -> int:
        """Rows of the verify pass of one request."""
        return 1 + self.budget

    @property
    def depth(self) -> int:
        """The deepest a node can be."""
        return min(self.block_size - 1, self.budget)

    def variables(self) -> dict[str, str]:
        """How a server is told."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def told(cls) -> Settings:
        """What this process was told.

        Raises:
            Refusal: nothing, or something else.
        """
        text = os.environ.get(VARIABLE)
        if text is None:
            raise Refusal(f"{VARIABLE} is not set: --speculative-algorithm DDTREE needs its settings in it.")
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise Refusal(f"{VARIABLE}={text} is not accepted ({error}).") from None


class ServerArgs(Protocol):
    """What is read of SGLang's own settings."""

    page_size: int | None
    tp_size: int
    pp_size: int
    dp_size: int
    disable_overlap_schedule: bool
    disable_radix_cache: bool
    attention_backend: str | None
    speculative_num_draft_tokens: int | None
    speculative_draft_window_size: int | None
    max_running_requests: int | None
    context_length: int | None


def refuse(server: ServerArgs, settings: Settings) -> None:
    """Refuse, by its name, whatever the worker cannot do with these settings of SGLang."""
    wanted = {
        "page_size": (server.page_size, (None, 1), "accepted nodes are moved slot by slot, so 1 is"),
        "tp_size": (server.tp_size, RANKS, f"{', '.join(map(str, RANKS))} are"),
        "pp_size": (server.pp_size, (1,), "1 is"),
        "dp_size": (server.dp_size, (1,), "1 is"),
        "disable_overlap_schedule": (server.disable_overlap_schedule, (True,), "rounds run one after the other"),
        "disable_radix_cache": (server.disable_radix_cache, (True,), "the cache has to be off"),
        "attention_backend": (server.attention_backend, ("triton",), "triton takes a tree's mask"),
        "speculative_draft_window_size": (server.speculative_draft_window_size, (None,), "drafts see the whole text"),
        "speculative_num_draft_tokens": (
            server.speculative_num_draft_tokens,
            (None, settings.width),
            f"{settings.width} rows are verified at budget={settings.budget}",
        ),
    }
    for name, (value, accepted, why) in wanted.items():
        if value not in accepted:
            raise Refusal(f"{name}={value} is not accepted by DDTREE: {why}.")


def refuse_request(temperature: float, top_k: int, grammar: bool, log_probs: bool) -> None:
    """Refuse a request that is not greedy and plain. `top_k` 1 is SGLang's word for the argmax."""
    if temperature > 0 and top_k != 1:
        raise Refusal(f"temperature={temperature:g} is not accepted by DDTREE: 0 is.")
    if grammar:
        raise Refusal("a grammar is not accepted by DDTREE: its nodes would have to be masked.")
    if log_probs:
        raise Refusal("return_logprob is not accepted by DDTREE: AR's server tells log-probs.")


def refuse_target(layer_types: tuple[str, ...]) -> None:
    """Refuse targets whose layers carry a state along the text: it would have to fork with the tree."""
    if others := sorted(set(layer_types) - {"full_attention"}):
        raise Refusal(f"a target with {', '.join(others)} layers is not accepted by DDTREE: full_attention ones are.")


def mask_bytes(settings: Settings, requests: int, context_length: int) -> int:
    """Bytes of the verify mask: every row of every request sees the longest text and its tree."""
    return requests * settings.width * (context_length + settings.width) * MASK_BYTES
