"""The round inside SGLang: its own DFlash worker up to the drafter's hidden states, then trees instead of a chain.

Imports SGLang: its scheduler's process alone loads this module. A prompt's pass, the drafter's caches and the settings
of the two models are SGLang's (`DFlashWorkerV2`). Here are the four stages of a decoding round: the block is drafted as
DFlash drafts it, every request's tree is built from the drafter's logits, one pass of width 1 + budget verifies it
behind a custom mask, and what was accepted is moved to the front.

It runs one round after the other. Where SGLang captures graphs, both passes (`graphs`) and all that is computed between
them (`steps`) are replayed; what remains is what SGLang's own DFlash leaves uncaptured: embedding the block, laying out
the batch and writing the drafter's keys and values.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.triton_ops.cache_locs import assign_extend_cache_locs_func
from torch import Tensor

from methods.engines.sglang_ddtree.commit import Commit
from methods.engines.sglang_ddtree.graphs import Pass, Ranks, Runner, capturing, use
from methods.engines.sglang_ddtree.rounds import RoundLog
from methods.engines.sglang_ddtree.settings import Settings, refuse_request
from methods.engines.sglang_ddtree.steps import Head, Shards, Steps
from methods.engines.sglang_ddtree.trees import Trees


class DDTreeWorker(DFlashWorkerV2):  # type: ignore[misc]
    """Drafts blocks of `block_size` positions and verifies trees of `width` rows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.told = Settings.told()
        self.block_size = self.told.block_size  # SGLang takes the width of the verify pass for it
        self.speculative_num_draft_tokens = self.told.width
        self._block_pos_offsets = torch.arange(self.block_size, device=self.device, dtype=torch.int64)
        self._ranks = Ranks.of(get_tp_group())
        self._log = RoundLog(self.told, torch.device(self.device), self._ranks)

    def init_attention_backends(self) -> None:
        super().init_attention_backends()
        runner = self.model_runner
        head, vocabulary = runner.model.lm_head, Shards(runner.model_config.vocab_size, self._ranks)
        if (shard := getattr(head, "shard_indices", None)) and shard.org_vocab_start_index != vocabulary.rows.start:
            raise RuntimeError(f"SGLang shares the vocabulary out from {shard.org_vocab_start_index}")
        self._steps = Steps(
            self.told,
            runner.req_to_token_pool.size,
            runner.model_config.context_len,
            Head(head.weight, vocabulary),
            [*runner.token_to_kv_pool.k_buffer, *runner.token_to_kv_pool.v_buffer],
        )
        self._draft = Pass(self.block_size, CaptureHiddenMode.NULL)
        self._verify = Pass(self.told.width, CaptureHiddenMode.FULL, self._steps.mask)
        use(self.draft_model_runner, self._draft)
        use(runner, self._verify)

    def init_cuda_graphs(self) -> None:
        super().init_cuda_graphs()
        runner = self.model_runner.decode_cuda_graph_runner
        if isinstance(runner, Runner):
            with capturing(get_tp_group()) as captured:
                self._steps.capture(runner.capture_bs, captured)

    def _maybe_build_draft_sampler(self) -> None:
        """DFlash's own choice of tokens would be captured with the drafter's pass."""

    def forward_batch_generation(self, batch: Any, on_publish: Any = None) -> Any:
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            self._log.expect(batch.reqs)
            return super().forward_batch_generation(batch, on_publish)
        if batch.forward_mode.is_idle() or batch.spec_info is None:
            result = super().forward_batch_generation(batch, on_publish)
            result.speculative_num_draft_tokens = self.told.width
            return result
        for request in batch.reqs:
            how = request.sampling_params
            refuse_request(how.temperature, how.top_k, request.grammar is not None, request.return_logprob)
        self._log.begin(batch.reqs)
        lengths_b, roots_b = batch.seq_lens, batch.spec_info.bonus_tokens.view(-1)
        slots_bn = self._slots(batch, self.told.width)
        self._steps.begin(roots_b, lengths_b, slots_bn)
        found = self._steps.propose(self._drafted(batch, roots_b, lengths_b))
        self._log.mark()
        trees, positions_bn = self._steps.grow()
        self._log.mark()
        logits_rv, hidden_rh, graph = self._verified(batch, trees, positions_bn, slots_bn)
        self._log.mark()
        walks, done = self._steps.settle(logits_rv)
        lengths_b, bonus_b = done.lengths_b.clone(), done.bonus_b.clone()  # the next round writes over what it reads
        if on_publish is not None:
            on_publish(lengths_b)
        self._append(done, hidden_rh)
        self._log.mark()
        self._log.end(trees, walks, done, found, self._steps.choices_bn)
        return GenerationBatchResult(
            logits_output=None,
            next_token_ids=done.tokens_bn.reshape(-1),
            accept_lens=done.accept_lens_b,
            can_run_cuda_graph=graph,
            next_draft_input=self._make_next_draft_input_decode(bonus_tokens=bonus_b, new_seq_lens=lengths_b),
            speculative_num_draft_tokens=self.told.width,
            new_seq_lens=lengths_b,
        )

    def _slots(self, batch: Any, width: int) -> Tensor:
        """The slots of the next `width` positions of every request, int64 [b, width]: SGLang reserved them."""
        requests = len(batch.seq_lens)
        found: Tensor = assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=self.model_runner.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            end_offset=batch.seq_lens + width,
            batch_size=requests,
            draft_token_num=width,
            device=self.device,
        )
        return found.view(requests, width).to(torch.int64)

    def _bound(self, batch: Any, width: int) -> Tensor:
        """The lengths with the rows of a pass, on the host, where SGLang keeps the lengths anyway."""
        lengths = batch.seq_lens_cpu if batch.seq_lens_cpu is not None else batch.seq_lens.to("cpu")
        bound: Tensor = (lengths + width).to(torch.int32)
        return bound

    def _drafted(self, batch: Any, roots_b: Tensor, lengths_b: Tensor) -> Tensor:
        """The drafter's hidden states of the positions after every root, [b, l, hidden]."""
        requests = len(lengths_b)
        ids_bl = torch.full((requests, self.block_size), int(self._mask_token_id), device=self.device)
        ids_bl[:, 0] = roots_b
        bound = self._bound(batch, self.block_size)
        forward = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=requests,
            input_ids=ids_bl.flatten(),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=lengths_b,
            out_cache_loc=self._slots(batch, self.block_size).flatten(),
            seq_lens_sum=int(bound.sum()),
            seq_lens_cpu=bound,
            positions=(lengths_b[:, None] + self._block_pos_offsets).flatten(),
            input_embeds=self.model_runner.model.get_input_embeddings()(ids_bl).flatten(0, 1),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft.input(None, None, captured=True),
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
        with torch.inference_mode():
            out = self.draft_model_runner.forward(forward)
        hidden_blh: Tensor = out.logits_output.hidden_states.view(requests, self.block_size, -1)
        return hidden_blh[:, 1:]

    def _verified(
        self, batch: Any, trees: Trees, positions_bn: Tensor, slots_bn: Tensor
    ) -> tuple[Tensor, Tensor, bool]:
        """One pass of the target over all trees: its logits and features of every row, and whether a graph ran."""
        runner = self.model_runner.decode_cuda_graph_runner
        captured = isinstance(runner, Runner) and len(slots_bn) <= runner.max_bs
        verify = self._verify.input(trees.tokens_bn.flatten(), positions_bn.flatten(), captured=captured)
        batch.out_cache_loc = slots_bn.flatten()
        kept, bound = (batch.seq_lens_cpu, batch.seq_lens_sum), self._bound(batch, self.told.width)
        batch.seq_lens_cpu, batch.seq_lens_sum = bound, int(bound.sum())
        forward, graph = verify.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = kept
        if graph != captured:
            raise RuntimeError("SGLang would not replay the verify pass, or replay another than was meant")
        if not graph:
            self._verify.check(self.model_runner.attn_backend.forward_metadata)
        out = self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward, is_verify=True, skip_attn_backend_init=True
        ).logits_output
        return out.next_token_logits, out.hidden_states, graph

    def _append(self, done: Commit, hidden_rh: Tensor) -> None:
        """The features of the accepted rows to the drafter, as keys and values in the slots of their depths."""
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden_rh.view(-1, hidden_rh.shape[-1])[done.rows_bd.flatten()],
            cache_loc=done.targets_bd.flatten(),
            cache_loc_2d=done.targets_bd,
            positions=done.positions_bd.flatten(),
            commit_lens=done.accept_lens_b,
        )
