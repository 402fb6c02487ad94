"""DDTree inside SGLang, as an out-of-tree speculative algorithm: dense targets, greedy, no overlap.

Importing this package imports neither SGLang nor a tensor library: SGLang loads `register` in each of its processes
through the entry point that `entry` writes, and everything else comes with that: `algorithm` is what SGLang's registry
knows, `worker` the round between its drafter and its target, `trees` and `commit` what that round computes, `steps` the
same on buffers that captured graphs read, `graphs` what is captured, and `rounds` what is told of a round.
"""

from __future__ import annotations

NAME = "DDTREE"
TESTED = ("0.5.15",)  # SGLang's versions whose registry this was tried with


def register() -> None:
    """SGLang's entry point: make `--speculative-algorithm DDTREE` known in this process."""
    from methods.engines.sglang_ddtree.algorithm import register as register_algorithm

    register_algorithm()
