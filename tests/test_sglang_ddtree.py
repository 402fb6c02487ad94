"""DDTree's parts for SGLang against the reference tree, request by request; and SGLang's own registry, where it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.base import Refusal
from methods.engines.sglang_ddtree import NAME, TESTED, entry
from methods.engines.sglang_ddtree.commit import commit, walk
from methods.engines.sglang_ddtree.rounds import RoundLog
from methods.engines.sglang_ddtree.settings import (
    VARIABLE,
    Settings,
    mask_bytes,
    refuse,
    refuse_request,
    refuse_target,
)
from methods.engines.sglang_ddtree.trees import Mask, build, candidates, positions, visibility
from methods.reference import sampling, tree
from methods.reference.parallel import Group, Vocabulary

LENGTH = 5
VOCABULARY = 40


def drafts(seed: int, requests: int, k: int, step: float) -> tree.Candidates:
    """Candidates of every request. With `step` log-probs are multiples of it, so that many scores are equal."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(requests, LENGTH, VOCABULARY, generator=generator)
    log_probs, ids = logits.log_softmax(-1).topk(k, dim=-1)
    if step:
        log_probs = (log_probs / step).round() * step
    return tree.Candidates(log_probs, ids)


def mask(visible_bnn: torch.Tensor, lengths_b: torch.Tensor) -> torch.Tensor:
    """SGLang's custom mask: per request [n, length + n] row by row, True where a row may attend, one after the other.

    The definition, by which `Mask` is judged; it reads the lengths on the host.
    """
    rows = visible_bnn.shape[1]
    parts = [
        torch.cat([visible.new_ones(rows, length), visible], dim=1).flatten()
        for visible, length in zip(visible_bnn, lengths_b.tolist(), strict=True)
    ]
    return torch.cat(parts)


shapes = st.tuples(
    st.integers(0, 2**16), st.integers(1, 4), st.integers(1, 30), st.sampled_from([0.0, 0.5, 2.0]), st.booleans()
)


def built(shape):
    seed, requests, budget, step, chain_seed = shape
    found = drafts(seed, requests, min(budget, VOCABULARY), step)
    roots = torch.arange(requests) + 7
    return found, roots, build(found, roots, budget, chain_seed=chain_seed)


@settings(max_examples=150, deadline=None)
@given(shapes)
def test_every_request_has_the_reference_tree_bit_for_bit(shape):
    found, roots, trees = built(shape)
    for request, root in enumerate(roots):
        own = tree.Candidates(*(part[request] for part in found))
        wanted = tree.build_by_heap(own, root, shape[2], chain_seed=shape[4])
        for column, right in zip(trees.of(request), wanted, strict=True):
            assert torch.equal(column, right)
        tree.check(trees.of(request))


def test_a_tree_that_the_drafter_cannot_fill_is_padded():
    found = drafts(0, 2, 1, 0.0)  # one token a position: a chain of 5
    trees = build(found, torch.tensor([1, 2]), 9)
    assert trees.valid_bn.sum(1).tolist() == [6, 6]
    assert trees.parents_bn[:, 6:].eq(0).all() and trees.depths_bn[:, 6:].eq(0).all()


@settings(deadline=None)
@given(st.integers(0, 99), st.sampled_from([1, 2, 4]))
def test_candidates_are_the_samplers_own(seed, requests):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(requests * LENGTH, 48, generator=generator)
    vocabulary = Vocabulary(48, Group())
    found = candidates(logits, requests, 6, vocabulary)
    assert found.ids_lk.shape == (requests, LENGTH, 6)
    wanted = sampling.candidates(logits, 6, vocabulary)
    assert torch.equal(found.log_probs_lk.flatten(0, 1), wanted.log_probs_lk)


@dataclass(frozen=True)
class Turns(Group):
    """One rank of two that run one after the other: what the other one gave is known from the turn before."""

    given: tuple = ()

    def max(self, tensor):
        self.given[self.rank].append(tensor.clone())
        return torch.stack([tensor, self.given[1 - self.rank][len(self.given[self.rank]) - 1]]).amax(0)

    def gather(self, tensor, dim):
        self.given[self.rank].append(tensor.clone())
        other = self.given[1 - self.rank][len(self.given[self.rank]) - 1]
        return torch.cat([tensor, other] if self.rank == 0 else [other, tensor], dim=dim)


def test_shares_of_a_vocabulary_give_the_whole_ones_candidates():
    logits = torch.randn(2 * LENGTH, 64, generator=torch.Generator().manual_seed(3))
    whole = candidates(logits, 2, 9, Vocabulary(64, Group()))
    told: tuple[list, list] = ([], [])
    halves = logits.split(32, dim=1)
    # What each rank gives in each exchange, first alone: the maximum decides what follows, so it is put in by hand.
    top = logits.amax(1)
    for rank, half in enumerate(halves):
        powers = torch.exp(half - top[:, None])
        chunks = sampling.fixed_order_sum(powers.unflatten(-1, (8, -1)))
        keys = sampling.keys(half, torch.arange(32) + 32 * rank).topk(9, dim=-1).values
        told[rank].extend([keys, half.amax(1), chunks])
    for rank, half in enumerate(halves):
        given: list = [[], []]
        given[1 - rank] = list(told[1 - rank])
        found = candidates(half, 2, 9, Vocabulary(64, Turns(rank, 2, given=tuple(given))))
        assert torch.equal(found.ids_lk, whole.ids_lk) and torch.equal(found.log_probs_lk, whole.log_probs_lk)


@settings(deadline=None)
@given(shapes)
def test_positions_and_visibility_are_the_reference(shape):
    _, _, trees = built(shape)
    lengths = torch.arange(len(trees.tokens_bn)) * 3 + 4
    found = visibility(trees.parents_bn, LENGTH)
    for request, length in enumerate(lengths):
        own = trees.of(request)
        assert torch.equal(positions(trees, lengths)[request], tree.positions(own, length))
        assert torch.equal(found[request], tree.visibility(own.parents_n, LENGTH))


@settings(deadline=None)
@given(st.lists(shapes, min_size=1, max_size=4), st.data())
def test_a_mask_in_a_buffer_is_the_definition_round_after_round(rounds, data):
    most, rows = 4, 12
    buffer = torch.zeros(most * rows * (60 + rows), dtype=torch.uint8)
    kept = Mask(buffer, most, rows)
    for seed, requests, _, step, chain_seed in rounds:
        lengths = torch.tensor(data.draw(st.lists(st.integers(1, 60), min_size=requests, max_size=requests)))
        found = drafts(seed, requests, rows - 1, step)
        visible = visibility(build(found, lengths, rows - 1, chain_seed=chain_seed).parents_bn, LENGTH)
        begins = kept.fill(visible, lengths.to(torch.int32))
        wanted = mask(visible, lengths)
        assert begins[-1] == len(wanted) and torch.equal(buffer[: len(wanted)].bool(), wanted)
        for request, length in enumerate(lengths.tolist()):
            own = wanted[begins[request] : begins[request + 1]].view(rows, length + rows)
            assert own[:, :length].all() and torch.equal(own[:, length:], visible[request])


def choices(trees, seed: int):
    """The target's choices: often a child of the row, so that paths are long and not contiguous."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, VOCABULARY, trees.tokens_bn.shape, generator=generator)
    for request in range(len(found)):
        for row in torch.randperm(found.shape[1], generator=generator).tolist():
            if row and trees.valid_bn[request, row]:
                found[request, trees.parents_bn[request, row]] = trees.tokens_bn[request, row]
    return found


@settings(deadline=None)
@given(shapes, st.integers(0, 999))
def test_the_walk_is_the_reference(shape, seed):
    _, _, trees = built(shape)
    chosen = choices(trees, seed)
    found = walk(trees, chosen, LENGTH)
    for request, own_choices in enumerate(chosen):
        own = trees.of(request)
        wanted = tree.walk(own, tree.visibility(own.parents_n, LENGTH), own_choices, LENGTH)
        assert torch.equal(found.path_bd[request], wanted.path_d)
        assert found.accepted_b[request] == wanted.accepted


@settings(deadline=None)
@given(shapes, st.integers(0, 999))
def test_a_commit_moves_the_path_and_emits_what_the_target_chose(shape, seed):
    _, _, trees = built(shape)
    requests, rows = trees.tokens_bn.shape
    depth = Settings(rows - 1, LENGTH + 1).depth
    chosen = choices(trees, seed)
    walks = walk(trees, chosen, depth)
    lengths = torch.arange(requests, dtype=torch.int32) * 5 + 9
    slots = torch.randperm(500, generator=torch.Generator().manual_seed(seed))[: requests * rows].view(requests, rows)
    found = commit(walks, chosen, lengths, slots.to(torch.int32))
    memory = torch.arange(500)  # the key in each slot: where it was
    memory[found.targets_bd.flatten()] = memory[found.sources_bd.flatten()]
    assert found.lengths_b.dtype == lengths.dtype and found.tokens_bn.shape == (requests, rows)
    for request in range(requests):
        accepted = int(walks.accepted_b[request])
        path = walks.path_bd[request, : accepted + 1].tolist()
        assert path == sorted(path) and path[0] == 0
        emitted = [int(chosen[request, row]) for row in path]
        count = int(found.accept_lens_b[request])
        assert count == accepted + 1 and found.tokens_bn[request, :count].tolist() == emitted
        assert found.bonus_b[request] == emitted[-1] and not found.tokens_bn[request, count:].any()
        assert emitted[:-1] == [int(trees.tokens_bn[request, row]) for row in path[1:]]
        index = found.accept_index_bd[request].tolist()
        assert index == [request * rows + row for row in path] + [-1] * (depth - accepted)
        assert memory[slots[request, :count]].tolist() == [int(slots[request, row]) for row in path]
        assert memory[slots[request, count : depth + 1]].tolist() == slots[request, count : depth + 1].tolist()
        assert found.rows_bd[request, :count].tolist() == [request * rows + row for row in path]
        at = int(lengths[request])
        assert found.positions_bd[request].tolist() == list(range(at, at + depth + 1))
        assert int(found.lengths_b[request]) == at + count


def test_half_of_the_paths_here_are_not_contiguous():
    """What the commit has to move: a path whose rows are not the first ones."""
    moved = 0
    for seed in range(40):
        _, _, trees = built((seed, 1, 20, 0.0, False))
        walks = walk(trees, choices(trees, seed), LENGTH)
        accepted = int(walks.accepted_b[0])
        moved += walks.path_bd[0, : accepted + 1].tolist() != list(range(accepted + 1))
    assert moved >= 20


@dataclass
class Asking:
    """A request as SGLang's scheduler knows it."""

    rid: str
    custom_params: dict | None
    output_ids: list
    customized_info: dict | None = None

    @property
    def sampling_params(self):
        return self


def test_rounds_are_told_to_those_who_ask(tmp_path):
    told = Settings(6, LENGTH + 1, rounds=str(tmp_path / "rounds.jsonl"))
    log = RoundLog(told, torch.device("cpu"))
    words = {"silent": None, "counts": [], "all": ["stages", "chain", "tree", "choices"]}
    requests = [Asking(name, None if asked is None else {"draft_tree": asked}, []) for name, asked in words.items()]
    log.expect(requests)
    for request in requests:
        request.output_ids.append(5)
    wanted, sums = [], [torch.tensor(0)] * 3
    for seed in range(3):
        found, _, trees = built((seed, 3, 6, 0.0, False))
        chosen = choices(trees, seed)
        walks = walk(trees, chosen, told.depth)
        slots = torch.arange(3 * told.width).view(3, -1)
        done = commit(walks, chosen, torch.tensor([10, 20, 30]) + seed, slots)
        log.begin(requests)
        for _ in range(4):
            log.mark()
        log.end(trees, walks, done, found, chosen)
        for at, request in enumerate(requests):
            request.output_ids += [7] * int(done.accept_lens_b[at])
            sums[at] = tree.checksum(trees.of(at), sums[at])
        wanted.append((found, trees, walks, done, chosen, int(sums[2])))
    assert requests[0].customized_info is None
    for request in requests[1:]:
        beside = request.customized_info["draft_tree"]
        assert len(beside) == len(request.output_ids) and beside[0] is None
    rounds = [one for one in beside if one]
    assert requests[1].customized_info["draft_tree"][1].keys() == rounds[0].keys() - {*words["all"]}
    place = 1
    for one, (found, trees, walks, done, chosen, total) in zip(rounds, wanted, strict=True):
        own = trees.of(2)
        assert beside[place] is one and one["accepted"] == int(walks.accepted_b[2]) == one["emitted"] - 1
        assert one["drafted"] == sum(one["depths"]) == 6 and one["root_at"] == int(done.positions_bd[2, 0])
        assert one["chain"] == found.ids_lk[2, :, 0].tolist() and one["checksum"] == total
        assert one["choices"] == chosen[2][trees.valid_bn[2]].tolist()
        assert len(one["stages"]) == 4 and min(one["stages"]) >= 0
        assert one["tree"]["tokens"] == own.tokens_n.tolist() and one["tree"]["parents"] == own.parents_n.tolist()
        assert one["tree"]["path"] == walks.path_bd[2, : one["emitted"]].tolist()
        paths = [one["tree"]["log_probs"][0]]
        for row, parent in list(enumerate(one["tree"]["parents"]))[1:]:
            paths.append(paths[parent] + one["tree"]["log_probs"][row])
        assert paths == pytest.approx(own.scores_n.tolist(), abs=1e-5)
        place += one["emitted"]
    lines = [json.loads(text) for text in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line.pop("request") for line in lines] == ["counts", "all"] * 3 and lines[1::2] == rounds


def test_settings_reach_a_server_as_they_are(monkeypatch):
    told = Settings(64, 16, chain_seed=True, rounds="/x")
    monkeypatch.setenv(VARIABLE, told.variables()[VARIABLE])
    assert Settings.told() == told and told.width == 65 and told.depth == 15
    for text in ("{", "[1]", '{"budget": 0, "block_size": 16}', '{"bugdet": 4, "block_size": 16}'):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(Refusal):
            Settings.told()
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(Refusal, match=f"{VARIABLE} is not set"):
        Settings.told()


@dataclass
class Server:
    page_size: int | None = 1
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    disable_overlap_schedule: bool = True
    disable_radix_cache: bool = True
    attention_backend: str | None = "triton"
    speculative_num_draft_tokens: int | None = None
    speculative_draft_window_size: int | None = None
    max_running_requests: int | None = 1
    context_length: int | None = 4096


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"page_size": 16}, "page_size=16 is not accepted"),
        ({"tp_size": 3}, "tp_size=3 is not accepted by DDTREE: 1, 2, 4, 8, 16 are"),
        ({"disable_overlap_schedule": False}, "rounds run one after the other"),
        ({"disable_radix_cache": False}, "disable_radix_cache=False is not accepted"),
        ({"attention_backend": "fa3"}, "attention_backend=fa3 is not accepted"),
        ({"speculative_num_draft_tokens": 16}, "65 rows are verified at budget=64"),
    ],
)
def test_what_the_worker_cannot_do_is_refused_by_name(changes, said):
    refuse(Server(), Settings(64, 16))
    with pytest.raises(Refusal, match=said):
        refuse(Server(**changes), Settings(64, 16))


def test_requests_and_targets_are_refused_by_name():
    refuse_request(0.0, -1, False, False)
    refuse_request(1.0, 1, False, False)
    for asked, said in (((0.7, -1, False, False), "temperature=0.7"), ((0, -1, True, False), "grammar")):
        with pytest.raises(Refusal, match=said):
            refuse_request(*asked)
    refuse_target(("full_attention",) * 4)
    with pytest.raises(Refusal, match="linear_attention layers"):
        refuse_target(("full_attention", "linear_attention"))
    with pytest.raises(Refusal, match=r"SGLang 9\.9 is not accepted"):
        entry.check_version("9.9")


def test_a_mask_has_a_byte_for_every_row_and_slot():
    trees = build(drafts(0, 3, 6, 0.0), torch.arange(3), 6)
    whole = mask(visibility(trees.parents_bn, LENGTH), torch.tensor([40, 40, 40]))
    assert mask_bytes(Settings(6, LENGTH + 1), 3, 40) == whole.nbytes


def test_a_log_tells_which_processes_loaded_the_plugin():
    lines = [entry.LINE.format(name=NAME, pid=pid) for pid in (41, 42)]
    assert entry.loaded("\n".join(["INFO up", lines[0], "[pid 3] " + lines[1]])) == (41, 42)


def test_importing_the_package_imports_no_tensor_library():
    code = "import sys, methods.engines.sglang_ddtree; sys.exit('torch' in sys.modules or 'sglang' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


REGISTERED = """
import inspect
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
algorithm = SpeculativeAlgorithm.from_string("DDTREE")
assert algorithm.is_dflash() and not algorithm.has_draft_kv() and not algorithm.need_topk()
assert algorithm.get_num_tokens_per_bs_for_target_verify(65, False) == 65
assert algorithm.get_num_tokens_per_bs_for_target_verify(65, True) == 16
ours, theirs = type(algorithm), SpeculativeAlgorithm
for name, member in vars(theirs).items():
    if inspect.isfunction(member) and not name.startswith("_"):
        wanted = list(inspect.signature(member).parameters)
        found = list(inspect.signature(getattr(ours, name)).parameters)
        assert len(found) == len(wanted), (name, wanted, found)
print("REGISTERED")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_real_sglang_registers_it_through_its_entry_point(tmp_path):
    """Where `SGLANG_PYTHON` names an interpreter that has SGLang. Its registry, signatures and refusals; no GPU."""
    python = os.environ.get("SGLANG_PYTHON")
    if python is None:
        pytest.skip("SGLANG_PYTHON names no interpreter with SGLang")
    told = {"PYTHONPATH": entry.path(tmp_path), "SGLANG_USE_CPU_ENGINE": "1", **Settings(64, 16).variables()}
    done = subprocess.run([python, "-c", REGISTERED], env={**os.environ, **told}, capture_output=True, text=True)
    assert "REGISTERED" in done.stdout, done.stderr
    assert len(entry.loaded(done.stderr)) == 1 and TESTED == ("0.5.15",)
