"""Whether a server's outputs are the target's own, by what AR's server tells of their log-probs.

At temperature 0 the gap of a token is the best log-prob in its place less its own: log-probs differ by what logits do.
Above it a server draws with noise nobody knows, and its texts can be tested only.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

from methods.base import Request, Score
from methods.engines.reference import FP32_GAP, LARGEST_GAP, MANTISSA_BITS
from methods.engines.served import ServedEngine

LOGIT_EXPONENT = 4  # logits of 16 to 32: servers tell log-probs only
MOST_PROBABLE = 20  # as many log-probs as a server tells of a token
UNLIKELY = 1e-9  # the probability below which a text is not the target's


class ScoredEngine(ServedEngine):
    """A served engine whose AR server tells log-probs. An adapter has to say `dtype`, `prompt_log_probs` and
    `decoded_log_probs`."""

    @abstractmethod
    def dtype(self) -> str:
        """What its servers compute in."""

    @abstractmethod
    def prompt_log_probs(self, request: Request, output_ids: Sequence[int], top: int) -> list[dict[int, float]]:
        """For each output token the log-probs of itself and the `top` best in its place, teacher-forced in one pass."""

    @abstractmethod
    def decoded_log_probs(self, request: Request) -> tuple[tuple[int, ...], list[dict[int, float]]]:
        """An answer, and for each of its tokens the log-probs of the two best as they were when it was decoded."""

    def score(self, request: Request, output_ids: Sequence[int], tolerance: float = 0.0) -> Score:
        """The gaps between the log-prob of each output token and the best one's, from AR's server; above temperature 0
        whether so many tokens outside the 20 best are to be believed."""
        if request.sampling.temperature > 0:
            rows = self.prompt_log_probs(request, output_ids, MOST_PROBABLE)
            best = [sorted(row.values(), reverse=True)[:MOST_PROBABLE] for row in rows]
            outside = [row[token] < least[-1] for token, row, least in zip(output_ids, rows, best, strict=True)]
            return improbable(outside, [max(0.0, 1.0 - sum(map(math.exp, row))) for row in best])
        told = self.prompt_log_probs(request, output_ids, 1)
        return Score(
            tuple(max(0.0, max(row.values()) - row[token]) for token, row in zip(output_ids, told, strict=True))
        )

    def gap_tolerance(self, requests: Sequence[Request]) -> float:
        """1e-3 in float32; else twice the largest change of a top-2 log-prob between decoding and one wide pass, but at
        least one rounding step of the dtype at a logit of 16 to 32, and at most 0.5."""
        if self.dtype() == "float32":
            return FP32_GAP
        tolerance = 2.0 ** (LOGIT_EXPONENT - MANTISSA_BITS[self.dtype()])
        for request in requests:
            output, decoded = self.decoded_log_probs(request)
            for narrow, wide in zip(decoded, self.prompt_log_probs(request, output, 2), strict=True):
                changes = [abs(narrow[token] - wide[token]) for token in narrow.keys() & wide.keys()]
                tolerance = max([tolerance, *(2 * change for change in changes)])
        return min(tolerance, LARGEST_GAP)


def improbable(outside: Sequence[bool], chances: Sequence[float]) -> Score:
    """The score of a text that was drawn with noise nobody knows: a test, where an argmax can be compared.

    Args:
        outside: by position, whether the token is not among the target's most probable ones.
        chances: by position, the probability that it is not, at most.

    By Chernoff's bound a text has k tokens outside with a probability of at most e^(k − m) (m / k)^k, m being the sum
    of the chances. Where that is below one in a billion these tokens have an infinite gap: they were not drawn from the
    target. Below temperature 1, and under filters, chances are lower, so that those at temperature 1 serve as bounds.
    What draws too greedily goes unnoticed.
    """
    k, mean = sum(outside), max(sum(chances), 1e-9)
    likely = k <= mean or k - mean + k * math.log(mean / k) > math.log(UNLIKELY)
    return Score(tuple(math.inf if out and not likely else 0.0 for out in outside))
