"""What a round does besides the transformer, by budget: Triton kernels and the plain torch path side by side on a GPU.

    python benchmarks/tree_kernels.py [--vocabulary 151936]

Every number is a CUDA graph's: the median of its replays, over several inputs in turns. `candidates` are the best
`budget` of 15 rows of bfloat16 logits, `build` is the tree, `mask + walk` what every row sees (as packed words, or a
matrix) and the accepted path of forced walks, `choose` the target's token after every row at temperature 0 and 1.
Logits rotate among as many sets as do not fit in the second-level cache together. The last line is JSON, in
milliseconds: per budget and part ours, then torch's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence

import torch
from graph_clock import seconds
from rich.console import Console
from rich.table import Table
from torch import Tensor

from methods.base import Sampling
from methods.reference import sampling, tree
from methods.reference.kernels import attention, choice
from methods.reference.kernels import tree as kernel
from methods.reference.kernels import vocabulary as words
from methods.reference.kernels.walk import walk
from methods.reference.parallel import Group, Vocabulary

POSITIONS, BUDGETS, REPLAYS, INPUTS = 15, (16, 32, 64, 128, 256, 512, 1024), 7, 4
CACHED = 2**26  # bytes a second-level cache may hold


def milliseconds(calls: Sequence[Callable[[], object]]) -> float:
    """What a call takes."""
    return 1e3 * seconds(calls, REPLAYS)


def drafts(vocabulary: Vocabulary) -> list[Tensor]:
    """Logits as sharp as a trained drafter's: each position less certain than the one before."""
    sharpness = torch.linspace(4.0, 2.0, POSITIONS, device="cuda")[:, None]
    return [
        (torch.randn(POSITIONS, vocabulary.padded, device="cuda") * sharpness).bfloat16()
        for _ in range(max(INPUTS, CACHED // (2 * POSITIONS * vocabulary.padded)))
    ]


def forced(built: tree.Tree, depth: int) -> Tensor:
    """Choices that lead to a node of this depth, or the deepest there is."""
    choices = torch.full_like(built.tokens_n, -1)
    at = int((built.depths_n <= depth).mul(built.depths_n).argmax())
    while at:
        parent = int(built.parents_n[at])
        choices[parent] = built.tokens_n[at]
        at = parent
    return choices


def measured(budget: int, logits: list[Tensor], vocabulary: Vocabulary) -> dict[str, list[float]]:
    """Milliseconds of each part: ours, torch's."""
    found = [words.candidates(one, budget, vocabulary) for one in logits[:INPUTS]]
    root, first = torch.tensor(3, device="cuda"), torch.tensor(50, device="cuda")
    noise = torch.tensor(0x1234567890ABCDEF, device="cuda")
    built = [kernel.build(one, root, budget) for one in found]
    walks = [(one, forced(one, 5)) for one in built]
    n = 1 + budget
    sets = max(2, CACHED // (2 * n * vocabulary.padded)) if n < 200 else 2
    rows = [torch.randn(n, vocabulary.padded, device="cuda", dtype=torch.bfloat16) * 3 for _ in range(min(sets, 14))]

    def chosen(way: Callable[..., Tensor], temperature: float) -> float:
        how, depths = Sampling(temperature), built[0].depths_n
        return milliseconds([lambda x=x: way(x, first, depths, how, noise, POSITIONS, vocabulary) for x in rows])

    def walked_by_torch(one: tree.Tree, choices: Tensor) -> tree.Walk:
        return tree.walk(one, tree.visibility(one.parents_n, POSITIONS), choices, POSITIONS)

    def walked(one: tree.Tree, choices: Tensor) -> tuple[attention.Ancestors, tree.Walk]:
        return attention.descend(one.parents_n, POSITIONS), walk(one, choices, POSITIONS)

    return {
        "candidates": [
            milliseconds([lambda x=x, way=way: way(x, budget, vocabulary) for x in logits])
            for way in (words.candidates, sampling.candidates)
        ],
        "build": [
            milliseconds([lambda x=x, way=way: way(x, root, budget) for x in found])
            for way in (kernel.build, tree.build_by_depth)
        ],
        "mask + walk": [
            milliseconds([lambda x=x, way=way: way(*x) for x in walks]) for way in (walked, walked_by_torch)
        ],
        "choose, T = 0": [chosen(way, 0.0) for way in (choice.choose, sampling.choose)],
        "choose, T = 1": [chosen(way, 1.0) for way in (choice.choose, sampling.choose)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    options = parser.parse_args()
    torch.manual_seed(0)
    vocabulary = Vocabulary(options.vocabulary, Group())
    logits = drafts(vocabulary)
    results = {budget: measured(budget, logits, vocabulary) for budget in BUDGETS}
    title = f"{torch.cuda.get_device_name()}, vocabulary {vocabulary.size}: ours / torch, µs"
    table = Table("budget", *results[BUDGETS[0]], title=title)
    for budget, parts in results.items():
        table.add_row(str(budget), *(f"{1e3 * ours:.1f} / {1e3 * torchs:.1f}" for ours, torchs in parts.values()))
    Console(width=140).print(table)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
