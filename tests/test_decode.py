"""The loop over rounds: every method's output is the target's own, and the counts add up."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.stats import chisquare
from tiny_models import hf_model, save_drafter, save_target

from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, Method, ModelSpec, Request, Sampling
from methods.ddtree import DDTree
from methods.dflash import DFlash
from methods.engines.reference import ReferenceEngine
from methods.reference import reading, sampling
from methods.reference.attention import Ancestry
from methods.reference.config import drafter_config, target_config
from methods.reference.decode import Decoder
from methods.reference.drafter import Drafter
from methods.reference.loading import Weights
from methods.reference.parallel import Group
from methods.reference.reading import read
from methods.reference.rounds import Cycle
from methods.reference.target import Target
from methods.reference.tree import Candidates

CPU = torch.device("cpu")
BLOCK = 8
METHODS: list[Method] = [DFlash(), DDTree(1), DDTree(3), DDTree(7), DDTree(16), DDTree(64), DDTree(12, chain_seed=True)]


class PlantedCycle(Cycle):
    text: tuple[int, ...] = ()

    def propose(self, seen):
        super().propose(seen)
        first, vocabulary = int(self._state.written), self._target.config.vocabulary
        generator = torch.Generator().manual_seed(first)
        k = min(self._method.candidates(self._block), vocabulary)
        scores = torch.rand(self._depth_limit, vocabulary, generator=generator)
        for position, token in enumerate(PlantedCycle.text[first : first + self._depth_limit]):
            if torch.rand((), generator=generator) < 0.9:
                scores[position, token] = 0.97 + 0.05 * torch.rand((), generator=generator)
        top = torch.log_softmax(scores * 60, dim=-1).topk(k, dim=-1)
        return Candidates(top.values, top.indices)


class PlantedDecoder(Decoder):
    """A decoder whose drafts hold the text the target will write, at ranks drawn at random: long accepted paths."""

    cycle_type = PlantedCycle

    @property
    def text(self):
        return PlantedCycle.text

    @text.setter
    def text(self, text):
        PlantedCycle.text = text


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return save_target(folder / "target"), save_drafter(folder / "drafter")


@pytest.fixture(scope="module")
def decoder(folders):
    target_folder, drafter_folder = folders
    target = Target(target_config(target_folder), Weights(target_folder, Group(), CPU, torch.float32), 512)
    drafter = Drafter(drafter_config(drafter_folder), Weights(drafter_folder, Group(), CPU, torch.float32), 512)
    with torch.inference_mode():
        return PlantedDecoder(target, drafter)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(torch.randint(0, 203, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def autoregressive(decoder: PlantedDecoder, request: Request):
    """The arm to equal; its text is planted for the others."""
    decoder.text = ()
    generation = decoder.generate(Autoregressive(), request)
    decoder.text = generation.output_ids
    return generation


def check_counts(generation, request: Request) -> None:
    rounds = generation.rounds
    assert 1 + sum(r.emitted for r in rounds) == len(generation.output_ids) <= request.max_new_tokens
    for i, r in enumerate(rounds):
        assert 1 <= r.emitted <= BLOCK
        if r.cut:
            assert i == len(rounds) - 1 and r.accepted == r.emitted
            assert r.cut == generation.finish_reason
        else:
            assert r.accepted == r.emitted - 1
    stopped = generation.output_ids[-1] in request.stop_ids
    assert generation.finish_reason == ("stop" if stopped else "length")
    assert stopped or len(generation.output_ids) == request.max_new_tokens
    assert not set(generation.output_ids[:-1]) & set(request.stop_ids)
    assert generation.ttft_s > 0 and generation.decode_s >= 0


def test_greedy_decoding_equals_transformers(decoder, folders):
    ids = prompt(23, 1)
    expected = hf_model("qwen3").generate(
        torch.tensor([ids]), max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    generation = autoregressive(decoder, Request("p", ids, 40))
    assert list(generation.output_ids) == expected[0, len(ids) :].tolist()


@pytest.mark.parametrize("settings_", [Sampling(), Sampling(1.0), Sampling(0.8, 0.9, 50, seed=3)])
@pytest.mark.parametrize("length", [1, 30, 100])
def test_every_method_emits_what_the_target_alone_would(decoder, settings_, length):
    request = Request(f"p{length}", prompt(length, length), 48, sampling=settings_)
    expected = autoregressive(decoder, request)
    check_counts(expected, request)
    for method in METHODS:
        generation = decoder.generate(method, request)
        assert generation.output_ids == expected.output_ids, method.arm
        check_counts(generation, request)
    assert len(decoder.generate(DDTree(64), request).rounds) < 20  # the planted text is really accepted


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9, 16, 17])
def test_length_limits_down_to_one_token(decoder, limit):
    request = Request("limit", prompt(20, 5), limit)
    expected = autoregressive(decoder, request)
    assert len(expected.output_ids) == limit
    for method in METHODS:
        generation = decoder.generate(method, request)
        assert generation.output_ids == expected.output_ids
        check_counts(generation, request)


def test_stops_anywhere_in_the_accepted_path(decoder):
    whole = autoregressive(decoder, Request("stop", prompt(20, 5), 40, sampling=Sampling(1.0)))
    cuts = set()
    for place in range(0, 24):
        stop_ids = (whole.output_ids[place], 9_999)
        request = Request("stop", prompt(20, 5), 40, stop_ids, sampling=Sampling(1.0))
        expected = autoregressive(decoder, request)
        decoder.text = whole.output_ids
        for method in METHODS:
            generation = decoder.generate(method, request)
            assert generation.output_ids == expected.output_ids
            check_counts(generation, request)
            cuts.update(r.cut for r in generation.rounds)
    assert cuts == {"", "stop"}


def test_prompts_may_hold_the_mask_token_and_span_chunks(decoder, monkeypatch):
    monkeypatch.setattr(reading, "PREFILL_ROWS", 16)
    ids = (*prompt(40, 6), 202, 202, *prompt(30, 7))
    request = Request("mask", ids, 30)
    expected = autoregressive(decoder, request)
    assert all(decoder.generate(method, request).output_ids == expected.output_ids for method in METHODS)


@torch.inference_mode()
def test_the_cache_after_a_request_is_that_of_a_fresh_prefill(decoder):
    request = Request("cache", prompt(20, 8), 40)
    autoregressive(decoder, request)
    generation = decoder.generate(DDTree(16), request)
    text = (*request.prompt_ids, *generation.output_ids[:-1])
    left = decoder.target.cache.data[:, :, :, : len(text)].clone()
    list(read(decoder.target, text))
    fresh = decoder.target.cache.data[:, :, :, : len(text)]
    torch.testing.assert_close(left, fresh, atol=2e-5, rtol=1e-4)


def test_a_stronger_draft_saves_rounds_in_order_of_budget(decoder):
    request = Request("order", prompt(20, 9), 64)
    autoregressive(decoder, request)
    rounds = [len(decoder.generate(DDTree(b), request).rounds) for b in (1, 4, 16, 64)]
    assert rounds == sorted(rounds, reverse=True) and rounds[-1] < rounds[0]


def test_profiling_times_the_stages_and_changes_nothing(decoder):
    request = Request("profile", prompt(20, 10), 30)
    plain, profiled = (decoder.generate(DDTree(16), request, profile=on) for on in (False, True))
    assert plain.stages is None and plain.output_ids == profiled.output_ids
    stages = profiled.stages
    assert stages is not None and min(stages.draft_s, stages.build_s, stages.verify_s, stages.commit_s) > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_are_zero_for_own_output_and_not_for_another(decoder, temperature):
    request = Request("score", prompt(20, 11), 30, sampling=Sampling(temperature))
    own = autoregressive(decoder, request).output_ids
    score = decoder.score(request, own, 0.0)
    assert score.max_gap <= 1e-4 and len(score.gaps) == len(own)
    wrong = list(own)
    wrong[12] = (own[12] + 1) % 203
    score = decoder.score(request, wrong, 0.0)
    assert score.first_divergence == 12 and score.true_violations(1e-3) >= 1


@pytest.fixture(scope="module")
def small_vocabulary(tmp_path_factory):
    """A pair over five tokens whose target is random enough for every text to occur."""
    folder = tmp_path_factory.mktemp("small")
    target_folder = save_target(folder / "target", vocab_size=5)
    drafter_folder = save_drafter(
        folder / "drafter", vocab_size=5, dflash_config={"mask_token_id": 4, "target_layer_ids": [0, 2]}
    )
    target = Target(target_config(target_folder), Weights(target_folder, Group(), CPU, torch.float32), 128)
    drafter = Drafter(drafter_config(drafter_folder), Weights(drafter_folder, Group(), CPU, torch.float32), 128)
    with torch.inference_mode():
        return Decoder(target, drafter)


def joint_p_value(decoder: Decoder, method: Method, samples: int = 700) -> float:
    """How well the first three tokens of many requests fit the target's own distribution."""
    ids, temperature = (1, 2, 3, 0), 1.5
    counts = torch.zeros(5, 5, 5)
    for sample in range(samples):
        request = Request(f"r{sample}", ids, 3, sampling=Sampling(temperature))
        counts[decoder.generate(method, request).output_ids] += 1
    expected = torch.zeros(5, 5, 5, dtype=torch.float64)
    with torch.inference_mode():
        for first, second in itertools.product(range(5), repeat=2):
            text = (*ids, first, second)
            hidden = torch.cat([chunk.hidden_ch for chunk in read(decoder.target, text)])[-3:]
            steps = torch.softmax(decoder.target.logits(hidden)[:, :5].double() / temperature, dim=-1)
            expected[first, second] = steps[0, first] * steps[1, second] * steps[2]
    enough = expected * samples >= 5
    observed = torch.cat([counts[enough], counts[~enough].sum()[None]])
    model = torch.cat([expected[enough], expected[~enough].sum()[None]]) * samples
    return float(chisquare(observed.numpy(), model.numpy()).pvalue)


@pytest.mark.parametrize("method", [DFlash(), DDTree(16)])
def test_sampling_follows_the_targets_distribution(small_vocabulary, method):
    assert joint_p_value(small_vocabulary, method) > 1e-3


def test_the_distribution_test_sees_a_wrong_verifier(small_vocabulary, monkeypatch):
    """A verifier that reuses one noise row for all depths makes each token right and their joint wrong."""
    right = sampling.choose

    def wrong(logits, first, depths, *rest):
        return right(logits, first, torch.zeros_like(depths), *rest)

    monkeypatch.setattr(sampling, "choose", wrong)
    assert joint_p_value(small_vocabulary, DDTree(16)) < 1e-6


def siblings_in_sight(monkeypatch):
    """The tree read as a flat text: every row sees all rows before it."""
    right = Target.view

    def wrong(self, start, positions_n, ancestry, seen):
        flat = Ancestry(ancestry.parents_n, torch.ones_like(ancestry.visible_nn).tril())
        return right(self, start, positions_n, flat, seen)

    monkeypatch.setattr(Target, "view", wrong)


def positions_by_row(monkeypatch):
    right = Target.view

    def wrong(self, start, positions_n, ancestry, seen):
        return right(self, start, start + torch.arange(len(positions_n)), ancestry, seen)

    monkeypatch.setattr(Target, "view", wrong)


def commit_the_wrong_rows(monkeypatch):
    right = Target.commit

    def wrong(self, start, path_d, accepted):
        right(self, start, path_d if len(path_d) > BLOCK else path_d + 1, accepted)

    monkeypatch.setattr(Target, "commit", wrong)


@pytest.mark.parametrize("plant", [siblings_in_sight, positions_by_row, commit_the_wrong_rows])
def test_the_gate_catches_faults_on_the_accepted_path(decoder, monkeypatch, plant):
    request = Request("fault", prompt(20, 5), 64)
    expected = autoregressive(decoder, request).output_ids
    with monkeypatch.context() as patch:
        plant(patch)
        generation = decoder.generate(DDTree(16), request)
    assert generation.output_ids != expected
    score = decoder.score(request, generation.output_ids, 1e-3)
    assert score.true_violations(1e-3) > 0
    pairs = enumerate(zip(generation.output_ids, expected, strict=False))
    assert score.first_divergence == next(i for i, (mine, theirs) in pairs if mine != theirs)


@pytest.mark.parametrize(("dtype", "least"), [("float32", 1e-3), ("bfloat16", 2.0**-8)])
def test_the_stated_gap_covers_what_widths_do(folders, dtype, least):
    engine = ReferenceEngine(EngineSpec(ModelSpec("random", *map(str, folders)), dtype=dtype, max_length=128))
    with engine:
        engine.open([Autoregressive(), *METHODS])
        asked = [Request(f"p{seed}", prompt(30, seed), 24) for seed in range(3)]
        tolerance = engine.gap_tolerance(asked)
        assert least <= tolerance <= 0.5
        for request, method in itertools.product(asked, METHODS):
            output = engine.generate(method, request).output_ids
            assert engine.score(request, output, tolerance).true_violations(tolerance) == 0
