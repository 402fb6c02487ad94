"""A request in flight, on the device: buffers that are made once and changed in place, so that a captured round finds
them again. Scalars are 0-dim tensors; nothing here is read on the host before the request ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from methods.base import Cut, Refusal, Request
from methods.reference.sampling import noise_key

CUTS: tuple[Cut, ...] = ("", "stop", "length")
STOP_IDS = 64  # how many stop ids a request may name


@dataclass(frozen=True)
class State:
    """What a round reads and leaves behind.

    `features` are the target's, of positions from `features_at` on, which the drafter has not seen yet; None without
    a drafter. `log` holds a row a round: accepted, emitted, index into `CUTS`.
    """

    root: Tensor  # the last committed token
    root_at: Tensor  # its position
    written: Tensor  # output tokens so far
    limit: Tensor  # output tokens asked for
    finished: Tensor
    rounds: Tensor  # rounds run
    noise: Tensor  # the key of the request's noise
    checksum: Tensor
    stop_ids: Tensor
    output: Tensor
    log: Tensor
    features_at: Tensor
    features: Tensor | None

    @classmethod
    def empty(cls, device: torch.device, length: int, block_size: int, features: Tensor | None) -> State:
        """Buffers for outputs of up to `length` tokens; `features` is [block, f]."""

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        return cls(
            root=whole(),
            root_at=whole(),
            written=whole(),
            limit=whole(),
            finished=torch.ones((), dtype=torch.bool, device=device),
            rounds=whole(),
            noise=whole(),
            checksum=whole(),
            stop_ids=whole(STOP_IDS),
            output=whole(length + block_size),
            log=whole(length, 3),
            features_at=whole(),
            features=features,
        )

    def begin(self, request: Request, root: Tensor) -> None:
        """The prompt is read and its first token chosen."""
        self.root.copy_(root)
        self.root_at.fill_(len(request.prompt_ids))
        self.written.fill_(1)
        self.limit.fill_(request.max_new_tokens)
        self.stop_ids.copy_(stop_row(request, self.root.device))
        self.finished.copy_(self._stops(root) | (request.max_new_tokens == 1))
        self.rounds.zero_()
        self.noise.fill_(noise_key(request))
        self.checksum.zero_()
        self.output[0] = root

    def emit(self, tokens_d: Tensor, accepted: Tensor) -> None:
        """Add what a round emits, cut at a stop or the limit, and move on to the next root.

        Args:
            tokens_d: after depth d comes the target's choice: a node's token, or, at depth `accepted`, the bonus.
        """
        depths_d = torch.arange(len(tokens_d), device=tokens_d.device)
        stops_d = self._stops(tokens_d) & (depths_d <= accepted)
        until_stop = torch.where(stops_d, depths_d, len(depths_d)).amin() + 1
        emitted = torch.minimum(torch.minimum(accepted + 1, until_stop), self.limit - self.written)
        emitted = torch.where(self.finished, 0, emitted)
        stopped = until_stop <= emitted
        cut = torch.where(emitted == accepted + 1, 0, torch.where(stopped, 1, 2))
        row = torch.stack([torch.minimum(accepted, emitted), emitted, cut])
        self.log.index_copy_(0, self.rounds[None].clamp_max(len(self.log) - 1), row[None])
        self.rounds.add_(1)
        self.output.index_copy_(0, self.written + depths_d, tokens_d)
        self.written.add_(emitted)
        self.finished.logical_or_(stopped | (self.written == self.limit))
        self.root.copy_(tokens_d.index_select(0, accepted[None])[0])  # [accepted] would read it on the host
        self.root_at.add_(torch.where(self.finished, 0, accepted + 1))

    def _stops(self, tokens: Tensor) -> Tensor:
        """Whether each token is a stop. (torch.isin would wait for the device.)"""
        return (tokens[..., None] == self.stop_ids).any(dim=-1)


def stop_row(request: Request, device: torch.device) -> Tensor:
    """The request's stop ids in a row of fixed length; −1 is no token."""
    if len(request.stop_ids) > STOP_IDS:
        raise Refusal(f"{len(request.stop_ids)} stop ids are not accepted: at most {STOP_IDS} are.")
    padded = [*request.stop_ids, *[-1] * (STOP_IDS - len(request.stop_ids))]
    return torch.tensor(padded, dtype=torch.int64, device=device)
