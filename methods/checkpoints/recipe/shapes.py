"""The sizes of the built-in pairs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Delta:
    """Sizes of the gated delta net layers of a hybrid; every `interval`-th layer is full attention."""

    key_heads: int = 4
    value_heads: int = 8
    key_dim: int = 32
    value_dim: int = 32
    kernel: int = 4
    interval: int = 4

    @property
    def keys(self) -> int:
        """Width of all key heads, and of all query heads."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all value heads."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer: of the Qwen3 family, or with `delta` of the Qwen3.5 family.

    In the latter attention is gated at its output and rotates a quarter of a head, and norms scale by 1 + weight.
    """

    layers: int
    ffn: int
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    vocabulary: int = 4096
    theta: float = 20000.0
    eps: float = 1e-6
    max_length: int = 4096
    delta: Delta | None = None

    @property
    def rotary_dim(self) -> int:
        """How many leading dimensions of a head are rotated."""
        return self.head_dim // 4 if self.delta else self.head_dim

    @property
    def outlet(self) -> float:
        """The initial scale of the projections into the residual stream.

        A hybrid starts from 0: its gated norm would drown the embeddings, and after 30 steps the loss is 2 higher.
        """
        return 0.0 if self.delta else (2 * self.layers) ** -0.5

    @property
    def kinds(self) -> list[str]:
        """The published name of each layer's kind."""
        interval = self.delta.interval if self.delta else 1
        return ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(self.layers)]


@dataclass(frozen=True)
class Pair:
    """A target, its drafter, and the ids of the target's layers whose outputs the drafter reads."""

    target: Shape
    features: tuple[int, ...]
    drafter: Shape = field(default=Shape(layers=3, ffn=256))


PAIRS = {
    "tiny": Pair(Shape(layers=5, ffn=512), features=(1, 2, 3)),
    # Every third layer is attention, in so short a stack; in the published hybrids it is every fourth.
    "tiny_hybrid": Pair(Shape(layers=6, ffn=384, delta=Delta(interval=3)), features=(1, 2, 4)),
}
