"""The recipe's hybrid target: chunks against a plain recurrence and transformers' layer, and a small run of it all."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from methods.checkpoints.recipe import corpus, evaluation, generation
from methods.checkpoints.recipe.corpus import Plan
from methods.checkpoints.recipe.delta_rule import advance, chunked, unit_inverse
from methods.checkpoints.recipe.folders import load_drafter, load_target, save_drafter, save_target
from methods.checkpoints.recipe.gated_delta import GatedDelta
from methods.checkpoints.recipe.model import Drafter, Target
from methods.checkpoints.recipe.parts import rope
from methods.checkpoints.recipe.shapes import PAIRS, Delta, Shape
from methods.checkpoints.recipe.training import Budget, Machine, train_drafter, train_target

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = ROOT / "methods/checkpoints/tiny/target"
SMALL = Shape(layers=4, ffn=48, hidden=64, heads=4, kv_heads=2, head_dim=32, delta=Delta(2, 4, 16, 8))


def recurrence(q, k, v, decay, strength):
    """The delta rule token by token, from its definition alone."""
    groups = v.shape[2] // k.shape[2]
    q, k = q.repeat_interleave(groups, 2), k.repeat_interleave(groups, 2)
    state = torch.zeros(*v.shape[:1], v.shape[2], k.shape[3], v.shape[3], dtype=v.dtype)
    outs = []
    for t in range(v.shape[1]):
        state = decay[:, t].exp()[..., None, None] * state
        u = strength[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        outs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outs, 1), state


def inputs(length, *, strong=1.0, dtype=torch.float64, same=False):
    torch.manual_seed(length)
    q, k = (F.normalize(torch.randn(2, length, 2, 16, dtype=dtype), dim=-1) for _ in range(2))
    if same:
        k = k[:, :1].expand(-1, length, -1, -1)
    v = torch.randn(2, length, 4, 8, dtype=dtype)
    return q / 4, k, v, -torch.rand(2, length, 4, dtype=dtype) * strong, torch.rand(2, length, 4, dtype=dtype)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 150])
@pytest.mark.parametrize("strong", [0.01, 1.0, 200.0])
def test_chunks_equal_the_recurrence(length, strong):
    data = inputs(length, strong=strong)
    for mine, theirs in zip(chunked(*data), recurrence(*data), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-9)


def test_chunks_stay_sound_where_every_key_is_the_same():
    """The worst system: powers of it reach 1e8 and more, so an inverse by powers would lose everything in float32."""
    q, k, v, _, _ = inputs(96, dtype=torch.float32, same=True)
    decay, strength = torch.zeros(2, 96, 4), torch.full((2, 96, 4), 0.99)
    exact = recurrence(*(x.double() for x in (q, k, v, decay, strength)))
    for mine, theirs in zip(chunked(q, k, v, decay, strength), exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=2e-5, rtol=2e-5)


def test_gradients_equal_the_recurrences():
    data = [x.requires_grad_() for x in inputs(70)]
    probe = torch.randn(2, 70, 4, 8, dtype=torch.float64)
    mine = torch.autograd.grad((chunked(*data)[0] * probe).sum(), data)
    theirs = torch.autograd.grad((recurrence(*data)[0] * probe).sum(), data)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-8)
    below = torch.randn(3, 8, 8, dtype=torch.float64).tril(-1)
    torch.testing.assert_close(unit_inverse(below), torch.linalg.inv(torch.eye(8, dtype=torch.float64) + below))


def test_one_token_at_a_time_equals_the_chunks():
    q, k, v, decay, strength = inputs(40)
    out, last = chunked(q, k, v, decay, strength)
    state = torch.zeros_like(last)
    wide = [x.repeat_interleave(2, 2) for x in (q, k)]
    for t in range(40):
        one = advance(state, wide[0][:, t], wide[1][:, t], v[:, t], decay[:, t], strength[:, t])
        torch.testing.assert_close(one, out[:, t], atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(state, last, atol=1e-12, rtol=1e-9)


def test_padding_leaves_no_trace_in_states_windows_or_steps():
    torch.manual_seed(0)
    mixer = GatedDelta(SMALL, SMALL.delta)
    torch.nn.init.normal_(mixer.out_proj.weight, std=0.1)
    x, lengths = torch.randn(4, 96, 64), torch.tensor([1, 2, 45, 96])
    mixed, state, window = mixer.whole(x, lengths)
    more = torch.randn(4, 1, 64)
    stepped = mixer.step(more, state.clone(), window.clone())
    for row, n in enumerate(lengths):
        alone = mixer.whole(x[row : row + 1, :n])
        for a, b in zip((mixed[row, :n], state[row], window[row]), alone, strict=True):
            torch.testing.assert_close(a, b[0], atol=1e-5, rtol=1e-4)
        longer, *_ = mixer.whole(torch.cat([x[row, :n], more[row]])[None])
        torch.testing.assert_close(stepped[row, 0], longer[0, -1], atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:.past_key_values")
@pytest.mark.parametrize("shape", [SMALL, PAIRS["tiny_hybrid"].target], ids=["small", "tiny_hybrid"])
def test_a_random_hybrid_equals_transformers_in_prefill_and_step_by_step(shape, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    target = Target(shape)
    for name, p in target.named_parameters():
        if "norm" in name:
            p.data += 0.3 * torch.randn_like(p)
        elif not p.any():
            p.data = 0.05 * torch.randn_like(p)
    save_target(target, tmp_path, TOKENIZER)
    target = load_target(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert type(theirs).__name__ == "Qwen3_5ForCausalLM"
    assert sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in target.parameters())
    ids = torch.randint(4, 4096, (1, 75))
    with torch.no_grad():
        hidden, outputs = target(ids, rope(shape, "cpu"), torch.float32)
        out = theirs(ids, output_hidden_states=True)
        torch.testing.assert_close(target.logits(hidden), out.logits, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(outputs[1], out.hidden_states[2], atol=1e-4, rtol=1e-4)
        batch = generation.Batch(target, [ids[0, :40].numpy(), ids[0, 7:9].numpy()], 40, torch.float32)
        mine, cached = batch.prefill()[0], theirs(ids[:, :40], use_cache=True)
        for t in range(40, 75):
            torch.testing.assert_close(mine, cached.logits[0, -1], atol=1e-4, rtol=1e-4)
            places = torch.tensor([t, t - 38])
            mine = batch.step(ids[0, t].expand(2), places, t + 1)[0]
            cached = theirs(ids[:, t : t + 1], past_key_values=cached.past_key_values, use_cache=True)


def test_the_hybrid_pair_fits_its_budget_and_shards_over_four():
    pair = PAIRS["tiny_hybrid"]
    models = Target(pair.target), Drafter(pair.drafter, pair.features)
    assert 2 * sum(p.numel() for m in models for p in m.parameters()) < 13_950_000
    assert pair.target.kinds == (["linear_attention"] * 2 + ["full_attention"]) * 2
    assert {pair.target.kinds[i] for i in pair.features} == set(pair.target.kinds)
    delta = pair.target.delta
    for count in (delta.key_heads, delta.value_heads, pair.target.heads, pair.target.kv_heads, pair.target.ffn):
        assert count % 4 == 0
    assert delta.value_heads % delta.key_heads == 0


@pytest.mark.gpu
def test_recorded_steps_give_the_gradients_of_eager_ones():
    from methods.checkpoints.recipe.captured import Captured

    target = Target(SMALL).cuda()
    tables = rope(SMALL, "cuda")

    def work(ids):
        hidden, _ = target(ids, tables, torch.float32)
        loss = target.logits(hidden).logsumexp(-1).mean()
        loss.backward()
        return loss.detach()

    def gradients():
        found = torch.cat([p.grad.flatten() for p in target.parameters()]).clone()
        target.zero_grad(set_to_none=False)
        return found

    captured = Captured(target, work)
    for width in (64, 96, 64, 96, 96, 64):
        ids = torch.randint(0, 4096, (4, width), device="cuda")
        loss, mine = captured(ids), gradients()
        torch.testing.assert_close(loss, work(ids))
        torch.testing.assert_close(mine, gradients())


def test_a_small_run_of_every_step(tmp_path, monkeypatch):
    """Corpus, target, its own text, drafter, evaluation, for a small hybrid."""
    from tokenizers import Tokenizer

    monkeypatch.setattr(corpus, "SHARD_CONVERSATIONS", 60)
    plan, machine = Plan(1, 1, TOKENIZER, ROOT / "workloads/builtin"), Machine("cpu", torch.float32)
    corpus._start(plan)
    corpus._shard((0, corpus.shard_path(tmp_path, 0)))
    pair = replace(PAIRS["tiny_hybrid"], target=SMALL, features=(1, 2), drafter=Shape(layers=1, ffn=32, hidden=64))
    target = train_target(pair.target, plan, tmp_path, machine, Budget(steps=2, batch=1024, batches=2))
    save_target(target, tmp_path / "target", TOKENIZER)
    target = load_target(tmp_path / "target")
    prompts = [p for p in generation._prompts((plan, 0, 12)) if len(p) < 400]
    samples = generation.self_generate(target, prompts, machine.dtype, 1, limit=6)
    assert len(samples) > 4
    drafter = train_drafter(pair, target, samples, machine, Budget(steps=2, batch=1024, batches=1), 1, anchors=4)
    save_drafter(drafter, tmp_path / "drafter", target.shape.layers)
    drafter = load_drafter(tmp_path / "drafter")
    assert drafter.features == (1, 2)
    talks = [t for t in evaluation.generated(2, 1) if t.category != "long_context"]
    words = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    report = evaluation.evaluate(target, drafter, talks, words, 6)
    assert report["acceptance"]["all"]["dflash"] >= 1
    assert json.loads((tmp_path / "target/config.json").read_text())["model_type"] == "qwen3_5_text"
    assert sorted(os.listdir(tmp_path / "target")) == sorted(os.listdir(TOKENIZER))
    assert np.isfinite(float(next(iter(drafter.parameters())).detach().sum()))
