"""Faults in the drafter cost nothing but acceptance: only a recorded value shows them."""

from __future__ import annotations

import pytest
import torch
from test_lossless import opened, requests, tokenizer  # noqa: F401

from methods.autoregressive import Autoregressive
from methods.base import Sampling
from methods.dflash import DFlash
from methods.reference.drafter import Drafter

RECORDED = 8.526  # acceptance length of DFlash on the prompts below, float32


def shifted_context(monkeypatch):
    right = Drafter.extend
    monkeypatch.setattr(Drafter, "extend", lambda self, features, start: right(self, features, start + 1))


def swapped_features(monkeypatch):
    right = Drafter.extend
    monkeypatch.setattr(
        Drafter,
        "extend",
        lambda self, features, start: right(self, features.roll(self.config.transformer.hidden, dims=1), start),
    )


def unfed(monkeypatch):
    right = Drafter.extend
    monkeypatch.setattr(Drafter, "extend", lambda self, features, start: right(self, torch.zeros_like(features), start))


def root_left_out(monkeypatch):
    right = Drafter.block

    def wrong(self, embedded_bh, start, seen):
        return right(self, torch.cat([embedded_bh[1:2], embedded_bh[1:]]), start, seen)

    monkeypatch.setattr(Drafter, "block", wrong)


@pytest.fixture(scope="module")
def texts(tokenizer):  # noqa: F811
    """Requests, each with the target's own text, in which no drafter has a part."""
    asked = [r for name in ("code", "math") for r in requests(tokenizer, name, 2, 48, Sampling())]
    with opened([Autoregressive()], asked) as engine:
        return [(request, engine.generate(Autoregressive(), request).output_ids) for request in asked]


def acceptance_length(texts) -> float:
    accepted = rounds = 0
    with opened([DFlash()], [request for request, _ in texts]) as engine:
        for request, expected in texts:
            generation = engine.generate(DFlash(), request)
            assert generation.output_ids == expected
            uncut = [r for r in generation.rounds if not r.cut]
            accepted, rounds = accepted + sum(r.accepted for r in uncut), rounds + len(uncut)
    return 1 + accepted / rounds


def test_acceptance_is_the_recorded_one(texts):
    assert acceptance_length(texts) == pytest.approx(RECORDED, rel=0.02)


@pytest.mark.parametrize("plant", [shifted_context, swapped_features, unfed, root_left_out])
def test_a_drafter_fault_shows_in_the_acceptance(texts, monkeypatch, plant):
    plant(monkeypatch)
    assert acceptance_length(texts) < 0.8 * RECORDED
