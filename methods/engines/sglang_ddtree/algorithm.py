"""DDTREE as SGLang's registry knows it. Imports SGLang: nothing but its own processes loads this module.

The algorithm answers `is_dflash` with yes, since that is what makes SGLang capture the drafter's features of the target
and build DFlash's drafter. SGLang 0.5.15 calls three more methods on an algorithm than its registry asks for
(`create_future_map`, `carries_draft_hidden_states`, `need_topk`); without them its scheduler does not start.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from methods.engines.sglang_ddtree import NAME
from methods.engines.sglang_ddtree.entry import LINE, check_version
from methods.engines.sglang_ddtree.settings import Settings, refuse

if TYPE_CHECKING:
    import torch


def register() -> None:
    """Make the algorithm known in this process and say so in the server's log.

    Raises:
        Refusal: this version of SGLang has not been tried.
    """
    import sglang
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    check_version(sglang.__version__)
    registered = SpeculativeAlgorithm.register(
        NAME, supports_overlap=False, validate_server_args=_validate, spec_class=algorithm_class()
    )
    registered(_worker)
    print(LINE.format(name=NAME, pid=os.getpid()), file=sys.stderr, flush=True)


def _validate(server_args: Any) -> None:
    refuse(server_args, Settings.told())


def _worker(server_args: Any) -> type:
    from methods.engines.sglang_ddtree.worker import DDTreeWorker

    return DDTreeWorker


def algorithm_class() -> type:
    """The class whose one instance stands for DDTREE."""
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class DDTreeAlgorithm(CustomSpecAlgo):  # type: ignore[misc]
        """DFlash at every branch of SGLang's own, but for the width of the two passes."""

        def is_dflash(self) -> bool:
            return True

        def supports_target_verify_for_draft(self) -> bool:
            return True

        def carries_draft_hidden_states(self) -> bool:
            return False

        def need_topk(self) -> bool:
            return False

        def has_draft_kv(self) -> bool:
            """A tree lies in the verify mask alone: no slots beyond its rows are reserved."""
            return False

        def create_future_map(self, device: torch.device, pool: Any, needs_cpu_seq_lens: bool = True) -> Any:
            from sglang.srt.managers.overlap_utils import FutureMap

            return FutureMap(device, self, pool, needs_cpu_seq_lens)

        def handle_server_args(self, server_args: Any) -> None:
            """DFlash's own settings, with the verify pass as wide as the tree."""
            from sglang.srt.arg_groups.speculative_hook import _handle_dflash

            server_args.speculative_num_draft_tokens = Settings.told().width
            _handle_dflash(server_args)

        def get_num_tokens_per_bs_for_target_verify(self, num_draft_tokens: int, is_draft_worker: bool) -> int:
            """Rows a request in a captured pass: the drafter's block, or the tree."""
            return Settings.told().block_size if is_draft_worker else num_draft_tokens

    return DDTreeAlgorithm
