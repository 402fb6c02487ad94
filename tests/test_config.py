"""Settings: every option composes, every wrong one ends in a sentence that names it."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from harness import machine
from harness.__main__ import compose
from harness.cells import gather
from harness.config import job_from, register
from harness.machine import Gpu, TorchBuild
from harness.sentences import sentence
from harness.targets import build_method
from methods.base import Refusal

CONF = Path(__file__).parents[1] / "conf"
COMPOSED = {  # refused while Hydra composes: the whole way, from words to sentence
    "bugdet=3": "did you mean budget?",
    "budget=abc": "budget=abc is not accepted: an integer is.",
    "budget=": "an integer is",
    "budget=1.5": "budget=1.5 is not accepted: an integer is.",
    "budget=null": "an integer is",
    "budget=16,32": "needs -m",
    "budget=range(1,3)": "needs -m",
    "-m budget=16,0": "budget=0 is not accepted",
    "~budget": "not removed",
    "repeats=${nope}": "nope",
    "method=ddtre": "did you mean ddtree?",
    "method=nothing": "autoregressive, ddtree, ddtree_adaptive, dflash",
    "method=[a,b]": "one of",
    "method.chain_sed=true": "did you mean method.chain_seed?",
    "+method.depth=3": "budget, chain_seed",
    "method=dflash +method.budget=3": "settings are: none",
    "engine=null": "one of reference",
    "model=5": "one of",
    "model.tagret=x": "did you mean model.target?",
    "experiment=nothing": "smoke",
    "+colour=red": "no such setting",
    "=3": "cannot be read",
    "budget=(": "cannot be read",
    "--bogus budget=16": "--bogus is no option",
    "experiment=null": "experiment=null is not accepted",
    "workload=true": "workload=true is not accepted",
    "workload.limit=many": "workload.limit=many is not accepted: an integer or null is.",
    "+budget=3": "+budget=3 is not accepted: budget is a setting already",
    "+experiment=smoke": "experiment=… without the +",
    "top_k=often top_k=3": "top_k=often is not accepted",
    "hydra.run.dir=/dev/null/x": "/dev/null/x cannot be written",
    "--config-name=nothing": "Cannot find primary config 'nothing'",
    "--config-dir=/nowhere": "/nowhere",
    "hydra/launcher=joblib": "basic",
}
REFUSED = {  # composed well, refused for their value
    "budget=0": "at least 1",
    "tp=-2": "at least 1",
    "repeats=0": "at least 1",
    "temperature=.nan": "at least 0",
    "temperature=-0.5": "at least 0",
    "top_p=0": "at most 1",
    "top_p=1.01": "at most 1",
    "top_k=-1": "0 (off)",
    "seed=-1": "at least 0",
    "model.drafter=???": "model.drafter is missing",
    "concurrency=4": "so 1 is",
    "device=gpu": "auto, cpu or cuda",
    "dtype=int8": "bfloat16",
    "cluster.executor=local": "with a cluster",
    "timeout_s=0": "above 0",
    "timeout_s=.nan": "above 0",
    "dry_run=2": "true or false",
    "overwrite=true retry_failed=true": "contradict",
    "method.chain_seed=2": "true or false",
    "method.budget=0": "at least 1",
    "method._target_=nowhere.Method": "no module nowhere",
    "method._target_=pathlib.Path": "methods.base.Method",
    "engine._target_=methods.dflash.DFlash": "methods.base.Engine",
    "tracker._target_=methods.dflash.DFlash": "harness.tracker.Tracker",
    "model.weights=none": "checkpoint or random",
    "workload.split=train": "all, dev or test is",
    "workload.limit=0": "at least 1 or null",
    "workload.context=1000": "at least 1024 or null",
    "workload.context_path=book.txt": "without workload.context",
    "workload.system=''": "some text or null",
    "workload.enable_thinking=2": "true or false",
}


@pytest.mark.parametrize("words", COMPOSED)
def test_a_wrong_word_ends_in_a_sentence(words):
    with pytest.raises(Exception) as caught:
        compose(words.split())
    said = sentence(caught.value, words.split())
    assert said is not None, repr(caught.value)
    assert COMPOSED[words] in said
    assert "\n" not in said and said[-1] in ".?"


@pytest.fixture(scope="module")
def defaults():
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra_compose("config")


@pytest.mark.parametrize("words", REFUSED)
def test_a_value_out_of_range_ends_in_a_sentence(words, defaults):
    config = deepcopy(defaults)
    for word in words.split():
        name, _, value = word.partition("=")
        OmegaConf.update(config, name, yaml.safe_load(value))
    with pytest.raises(Refusal, match=re.escape(REFUSED[words])) as caught:
        job_from(config, words.split())
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize("group", ["method", "model", "workload", "engine", "tracker", "cluster"])
def test_every_option_composes(group):
    names = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    extra = {"file": ["workload.path=x.jsonl"]}
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for name in names:
            words = [f"{group}={name}", "device=cpu", *extra.get(name, [])]
            assert job_from(hydra_compose("config", words), words).cell.tp == 1


SWEEPS = {  # what is left of the experiment's own sweep once budgets and workload are narrowed: cells
    "smoke": 1,
    "adaptive": 1,
    "paper": 2,
    "phase8": 3,
    "tp_scaling": 3,
    "tune": 1,
}


def test_every_experiment_says_what_it_answers():
    files = sorted((CONF / "experiment").glob("*.yaml"))
    assert {file.stem for file in files} == {*SWEEPS, "null_test", "replay"}
    for file in files:
        package, question, *_ = file.read_text().splitlines()
        assert package == "# @package _global_" and question.startswith("# ") and "?" in file.read_text()


@pytest.mark.parametrize("name", SWEEPS)
def test_every_experiment_sweeps(name):
    jobs = compose([f"experiment={name}", "budget=16", "workload=chat", "device=cpu"])
    cells = gather((job.cell, job.method) for job in jobs)
    assert len(cells) == SWEEPS[name]
    more = ["ddtree-16-adaptive"] if name == "adaptive" else []
    for cell in cells:
        assert [arm.name for arm in cell.arms] == ["autoregressive", "dflash", "ddtree-16", *more]


def test_the_null_test_is_ar_beside_itself():
    (job,) = compose(["experiment=null_test", "device=cpu"])
    (cell,) = gather([(job.cell, job.method)])
    assert [arm.name for arm in cell.arms] == ["autoregressive", "autoregressive-twin"]


def test_the_defaults():
    (job,) = compose(["device=cpu"])
    cell = job.cell
    assert (cell.workload, cell.model, cell.engine, cell.repeats, cell.max_new_tokens) == (
        *("smoke", "tiny", "reference"),
        *(1, 64),
    )
    assert (job.method.arm, job.command.results_dir, job.command.dry_run) == ("ddtree-64", None, False)
    (job,) = compose(["workload=math", "repeats=5", "device=cpu"])
    assert (job.cell.repeats, job.cell.max_new_tokens) == (5, 256)


def test_flags_may_stand_anywhere():
    words = ["method=dflash,ddtree", "-m", "budget=16,64", "device=cpu"]
    assert [job.method.arm for job in compose(words)] == ["dflash", "dflash", "ddtree-16", "ddtree-64"]


def test_a_bug_keeps_its_traceback():
    assert sentence(ValueError("a bug of ours")) is None
    assert sentence(KeyError("x")) is None


def test_a_method_is_checked_against_its_dataclass():
    assert build_method({"_target_": "methods.ddtree.DDTree", "budget": 32}).arm == "ddtree-32"
    with pytest.raises(Refusal, match="no _target_"):
        build_method({"budget": 3})


@pytest.mark.parametrize(
    ("device", "tp", "gpus", "cuda", "expected"),
    [
        ("auto", 1, 0, None, "cpu"),
        ("auto", 2, 2, "13.0", "cuda"),
        ("auto", 8, 2, None, "cpu"),
        ("cpu", 8, 2, "13.0", "cpu"),
        ("cuda", 1, 0, "13.0", "no NVIDIA GPU"),
        ("cuda", 1, 1, None, "CPU build"),
        ("auto", 4, 2, "13.0", "shows 2 GPUs"),
    ],
)
def test_the_device(monkeypatch, device, tp, gpus, cuda, expected):
    monkeypatch.setattr(machine, "gpus", lambda: (Gpu("one", 1),) * gpus)
    monkeypatch.setattr(machine, "torch_build", lambda: TorchBuild("2.13.0", cuda))
    if expected in ("cpu", "cuda"):
        assert machine.choose_device(device, tp) == expected
    else:
        with pytest.raises(Refusal, match=expected):
            machine.choose_device(device, tp)
