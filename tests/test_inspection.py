"""Looking at rounds: the oracle against sound and faulty trees, the linear shadow, the dump."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_decode import METHODS, PlantedDecoder, autoregressive, decoder, folders, prompt  # noqa: F401

from methods.autoregressive import Autoregressive
from methods.base import Inspect, Refusal, Request, Sampling
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.reference import attention, tree
from methods.reference.target import Target

GAP = 1e-3
ALL = Inspect(oracle_rate=1.0, shadow_linear=True, dump_rounds=True, tolerance=GAP)


def inspected(decoder, method, request, inspect=ALL):  # noqa: F811
    decoder.text = autoregressive(decoder, request).output_ids
    generation = decoder.generate(method, request, inspect=inspect)
    assert generation.output_ids == decoder.text
    return generation


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", [Autoregressive(), *METHODS], ids=lambda m: m.arm)
def test_the_oracle_agrees_and_changes_nothing(decoder, method, temperature):  # noqa: F811
    request = Request("p", prompt(20, 3), 40, sampling=Sampling(temperature, seed=5))
    generation = inspected(decoder, method, request)
    plain = decoder.generate(method, request)
    assert replace(generation, inspected=None, ttft_s=0, decode_s=0, peak_mem_bytes=0) == replace(
        plain, ttft_s=0, decode_s=0, peak_mem_bytes=0
    )
    assert len(generation.inspected) == len(generation.rounds)
    for seen in generation.inspected:
        assert seen.oracle.nodes > seen.accepted
        assert seen.oracle.max_gap < GAP and not seen.oracle.disagreements


@pytest.mark.parametrize("method", [DFlash(), DDTree(16), DDTree(64)], ids=lambda m: m.arm)
def test_a_dump_holds_the_round(decoder, method):  # noqa: F811
    request = Request("p", prompt(12, 1), 40)
    generation = inspected(decoder, method, request)
    text, at = (*request.prompt_ids, *generation.output_ids), len(request.prompt_ids)
    for seen, made in zip(generation.inspected, generation.rounds, strict=True):
        dump = seen.tree
        rows = [torch.tensor(column) for column in (dump.tokens, dump.parents, dump.depths)]
        valid = torch.ones(len(dump.tokens), dtype=torch.bool)
        tree.check(tree.Tree(*rows, torch.zeros(len(dump.tokens)), valid))
        assert dump.root_at == at
        assert [dump.parents[row] for row in dump.path[1:]] == list(dump.path[:-1])
        spoken = (*(dump.tokens[row] for row in dump.path), dump.bonus)
        assert spoken[: len(text) - at] == text[at : at + len(spoken)]
        assert seen.accepted == len(dump.path) - 1 and seen.accepted >= made.accepted
        at += len(dump.path)


def test_the_shadow_of_dflash_is_dflash(decoder):  # noqa: F811
    """A chain's own first choices are the chain; only the output's end hides some of them."""
    generation = inspected(decoder, DFlash(), Request("p", prompt(12, 1), 60))
    for seen, made in zip(generation.inspected, generation.rounds, strict=True):
        assert seen.shadow_accepted == (seen.accepted if not made.cut else min(seen.accepted, made.emitted))


def test_the_shadow_never_beats_a_tree_that_holds_the_chain(decoder):  # noqa: F811
    generation = inspected(decoder, DDTree(64, chain_seed=True), Request("p", prompt(12, 1), 60))
    assert all(seen.shadow_accepted <= seen.accepted for seen in generation.inspected)
    assert any(seen.shadow_accepted < seen.accepted for seen in generation.inspected)


def test_the_rate_is_a_share_of_rounds(decoder):  # noqa: F811
    checked = [
        seen.oracle is not None
        for seed in range(6)
        for seen in inspected(
            decoder, DFlash(), Request(f"p{seed}", prompt(10, seed), 40), Inspect(0.4, tolerance=GAP)
        ).inspected
    ]
    assert 0.2 < sum(checked) / len(checked) < 0.6


@pytest.mark.parametrize("rate", [-0.1, 1.1])
def test_a_rate_out_of_range_is_refused(rate):
    with pytest.raises(Refusal, match="oracle_rate"):
        Inspect(rate)


def off_the_text(text, tokens_n, view, parents) -> torch.Tensor:
    """Rows whose path is not what the target will write. bool [n]"""
    root, depth, on = int(view.slots_n[0]), [0] * len(tokens_n), [True] * len(tokens_n)
    for row in range(1, len(tokens_n)):
        depth[row] = depth[parents[row]] + 1
        place = root + depth[row]
        on[row] = on[parents[row]] and place < len(text) and text[place] == int(tokens_n[row])
    return ~torch.tensor(on)


def siblings_in_sight(off, view, ancestry, cos, sin):
    flat = torch.where(off[:, None], torch.ones_like(ancestry.visible_nn).tril(), ancestry.visible_nn)
    seen = attention.visible(view.slots_n[0], flat, view.mask_ns.shape[1])
    return replace(view, mask_ns=attention.additive(seen, torch.float32))


def a_parent_out_of_sight(off, view, ancestry, cos, sin):
    rows, start = off.nonzero()[:, 0], int(view.slots_n[0])
    mask = view.mask_ns.clone()
    mask[rows, start + ancestry.parents_n[rows]] = -torch.inf
    return replace(view, mask_ns=mask)


def the_next_position(off, view, ancestry, cos, sin):
    moved = [torch.where(off[:, None, None], table.roll(-1, 0), table) for table in (cos, sin)]
    return replace(view, rotary=tuple(moved))


@pytest.mark.parametrize("fault", [siblings_in_sight, a_parent_out_of_sight, the_next_position])
def test_the_oracle_catches_faults_on_rejected_branches(decoder, monkeypatch, fault):  # noqa: F811
    """The output stays right, so the gate must pass: only the oracle looks at what was rejected."""
    request = Request("fault", prompt(20, 5), 64)
    decoder.text = autoregressive(decoder, request).output_ids
    text = (*request.prompt_ids, *decoder.text)
    right, right_view, last = Target.forward, Target.view, []

    def note(self, start, positions_n, ancestry, seen):
        last[:] = [ancestry]
        return right_view(self, start, positions_n, ancestry, seen)

    def wrong(self, tokens_n, view, features=()):
        if len(tokens_n) == 17:  # the verify pass of DDTree-16
            off = off_the_text(text, tokens_n, view, last[0].parents_n.tolist())
            view = fault(off, view, last[0], *view.rotary)
        return right(self, tokens_n, view, features)

    with monkeypatch.context() as patch:
        patch.setattr(Target, "view", note)
        patch.setattr(Target, "forward", wrong)
        generation = decoder.generate(DDTree(16), request, inspect=Inspect(1.0, tolerance=GAP))
    assert generation.output_ids == decoder.text
    assert decoder.score(request, generation.output_ids, GAP).true_violations(GAP) == 0
    assert sum(seen.oracle.disagreements for seen in generation.inspected) > 0
