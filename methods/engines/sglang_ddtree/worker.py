"""The round inside SGLang: its own DFlash worker up to the drafter's hidden states, then trees instead of a chain.

Imports SGLang: its scheduler's process alone loads this module. A prompt's pass, the drafter's caches and the settings
of the two models are SGLang's (`DFlashWorkerV2`). Here are the four steps of a decoding round: the block is drafted as
DFlash drafts it, every request's tree is built from the drafter's logits, one pass of width 1 + budget verifies it
behind a custom mask, and what was accepted is moved to the front.

It runs one round after the other, without captured graphs: it reads lengths on the host for the mask, and SGLang
captures DFlash's verify pass without one (`DFlashVerifyInput` in its `get_spec_info`), which would drop it in silence.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.triton_ops.cache_locs import assign_extend_cache_locs_func
from torch import Tensor

from methods.engines.sglang_ddtree.commit import Commit, commit, walk
from methods.engines.sglang_ddtree.rounds import RoundLog
from methods.engines.sglang_ddtree.settings import Settings, refuse_request
from methods.engines.sglang_ddtree.trees import Trees, build, candidates, mask, positions, visibility
from methods.reference.parallel import Group, Vocabulary
from methods.reference.tree import Candidates


class DDTreeWorker(DFlashWorkerV2):  # type: ignore[misc]
    """Drafts blocks of `block_size` positions and verifies trees of `width` rows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.told = Settings.told()
        self.block_size = self.told.block_size  # SGLang takes the width of the verify pass for it
        self.speculative_num_draft_tokens = self.told.width
        self._block_pos_offsets = torch.arange(self.block_size, device=self.device, dtype=torch.int64)
        self._draft_block_spec_info = self._verify_input(
            torch.empty(0, dtype=torch.int64, device=self.device), self.block_size, CaptureHiddenMode.NULL
        )
        self._log = RoundLog(self.told)
        self._seen: tuple[str, ...] = ()

    def init_attention_backends(self) -> None:
        super().init_attention_backends()
        self.draft_model_runner.attn_backend.num_draft_tokens = self.block_size

    @staticmethod
    def _verify_input(tokens: Tensor, width: int, hidden: CaptureHiddenMode, **more: Tensor) -> DFlashVerifyInput:
        given: dict[str, Any] = {"positions": tokens, "custom_mask": None, **more}
        return DFlashVerifyInput(draft_token=tokens, draft_token_num=width, capture_hidden_mode=hidden, **given)

    def forward_batch_generation(self, batch: Any, on_publish: Any = None) -> Any:
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return super().forward_batch_generation(batch, on_publish)
        if batch.forward_mode.is_idle() or batch.spec_info is None:
            result = super().forward_batch_generation(batch, on_publish)
            result.speculative_num_draft_tokens = self.told.width
            return result
        for request in batch.reqs:
            how = request.sampling_params
            refuse_request(how.temperature, how.top_k, request.grammar is not None, request.return_logprob)
        lengths_b, roots_b = batch.seq_lens, batch.spec_info.bonus_tokens.view(-1)
        found = self._drafted(batch, roots_b, lengths_b)
        trees = build(found, roots_b, self.told.budget, chain_seed=self.told.chain_seed)
        slots_bn = self._slots(batch, self.told.width)
        logits_rv, hidden_rh, graph = self._verified(batch, trees, slots_bn)
        choices_bn = logits_rv.argmax(dim=-1).view(trees.tokens_bn.shape)
        walks = walk(trees, choices_bn, self.told.depth)
        done = commit(walks, choices_bn, lengths_b, slots_bn)
        if on_publish is not None:
            on_publish(done.lengths_b)
        self._move(done, hidden_rh)
        self._note(tuple(request.rid for request in batch.reqs), trees, walks, done, found)
        return GenerationBatchResult(
            logits_output=None,
            next_token_ids=done.tokens_bn.reshape(-1),
            accept_lens=done.accept_lens_b,
            can_run_cuda_graph=graph,
            next_draft_input=self._make_next_draft_input_decode(bonus_tokens=done.bonus_b, new_seq_lens=done.lengths_b),
            speculative_num_draft_tokens=self.told.width,
            new_seq_lens=done.lengths_b,
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

    def _drafted(self, batch: Any, roots_b: Tensor, lengths_b: Tensor) -> Candidates:
        """The drafter's best tokens after every root, [b, l, k]."""
        requests, model = len(lengths_b), self.target_worker.model_runner.model
        ids_bl = torch.full((requests, self.block_size), int(self._mask_token_id), device=self.device)
        ids_bl[:, 0] = roots_b
        bound = batch.seq_lens.to("cpu") + self.block_size
        forward = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=requests,
            input_ids=ids_bl.flatten(),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=lengths_b,
            out_cache_loc=self._slots(batch, self.block_size).flatten(),
            seq_lens_sum=int(bound.sum()),
            seq_lens_cpu=bound.to(torch.int32),
            positions=(lengths_b[:, None] + self._block_pos_offsets).flatten(),
            input_embeds=model.get_input_embeddings()(ids_bl).flatten(0, 1),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
        with torch.inference_mode():
            out = self.draft_model_runner.forward(forward)
        hidden_blh = out.logits_output.hidden_states.view(requests, self.block_size, -1)[:, 1:]
        weight_vh = model.lm_head.weight
        size = self.model_runner.model_config.vocab_size
        logits_rv = hidden_blh.flatten(0, 1).to(weight_vh.dtype) @ weight_vh[:size].T
        vocabulary = Vocabulary(size, Group())
        logits_rv = torch.nn.functional.pad(logits_rv, (0, vocabulary.padded - size), value=-torch.inf)
        return candidates(logits_rv, requests, self.told.budget, vocabulary)

    def _verified(self, batch: Any, trees: Trees, slots_bn: Tensor) -> tuple[Tensor, Tensor, bool]:
        """One pass of the target over all trees: its logits and features of every row, and whether a graph ran."""
        visible_bnn = visibility(trees.parents_bn, self.told.depth)
        lengths_b, bound = batch.seq_lens, batch.seq_lens.to("cpu") + self.told.width
        verify = self._verify_input(
            trees.tokens_bn.flatten(),
            self.told.width,
            CaptureHiddenMode.FULL,
            positions=positions(trees, lengths_b).flatten(),
            custom_mask=mask(visible_bnn, lengths_b),
        )
        batch.out_cache_loc = slots_bn.flatten()
        kept = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_cpu, batch.seq_lens_sum = bound, int(bound.sum())
        forward, graph = verify.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = kept
        if graph:
            raise RuntimeError("a captured graph would leave the trees' mask out")
        out = self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward, is_verify=True, skip_attn_backend_init=True
        ).logits_output
        return out.next_token_logits, out.hidden_states, graph

    def _move(self, done: Commit, hidden_rh: Tensor) -> None:
        """Keys and values of the accepted rows to the slots of their depths, and their features to the drafter."""
        sources, targets = done.sources_bd.flatten(), done.targets_bd.flatten()
        pool = self.model_runner.token_to_kv_pool
        for buffer in (*pool.k_buffer, *pool.v_buffer):
            buffer[targets] = buffer[sources]
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden_rh.view(-1, hidden_rh.shape[-1])[done.rows_bd.flatten()],
            cache_loc=targets,
            cache_loc_2d=done.targets_bd.contiguous(),
            positions=done.positions_bd.flatten(),
            commit_lens=done.accept_lens_b,
        )

    def _note(self, requests: tuple[str, ...], trees: Trees, walks: Any, done: Commit, found: Candidates) -> None:
        """Keep the round for the records; a request that is gone has ended."""
        if self.told.rounds is None:
            return
        for request in self._seen:
            if request not in requests:
                self._log.finish(request)
        self._seen = requests
        self._log.add(requests, trees, walks, done, found.ids_lk[:, :, 0])
