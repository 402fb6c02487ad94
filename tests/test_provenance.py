"""What a sitting says of its machine, code, models and prompts; what NVML adds; what never gets in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine, Faulty
from fake_world import WORDS

from harness import gpu, machine, memory
from harness.environment import git_state, redacted, tokenizer_facts
from harness.gpu import GpuWatch
from harness.machine import Gpu
from harness.records import read_json
from methods.base import EngineSpec, ModelSpec

SECRETS = {
    "HF_TOKEN": "hf-value-1",
    "WANDB_API_KEY": "key-value-2",
    "AWS_SECRET_ACCESS_KEY": "secret-value-3",
    "MY_PASSWORD": "password-value-4",
}


def test_a_sitting_says_where_it_comes_from_and_no_secret(world):
    done = world.started("method=dflash", "seed=5", OMP_NUM_THREADS="1", **SECRETS)
    assert done.returncode == 0, done.stderr
    facts = read_json(world.cell / "sittings/0/environment.json")
    assert facts["settings"]["seed"] == facts["seed"] == 5 and facts["settings"]["workload"] == "file"
    assert [arm["_target_"] for arm in facts["arms"]] == [
        "methods.autoregressive.Autoregressive",
        "methods.dflash.DFlash",
    ]
    hashes = ("tokenizer_sha256", "chat_template_sha256", "rendered_prompts_sha256", "hostname_sha256")
    assert all(len(facts[name]) == 64 for name in hashes) and set(facts["fingerprints"]) == {
        *("target", "drafter", "prompts")
    }
    assert facts["started_utc"] < facts["finished_utc"] and facts["cpu"] and facts["packages"]["hydra-core"]
    assert "seed=5" in facts["argv"] and facts["variables"]["OMP_NUM_THREADS"] == "1"
    assert facts["gpu_facts"] == facts["gpu_samples"] == []

    written = b"".join(path.read_bytes() for path in world.results.rglob("*") if path.is_file())
    assert not [name for name, value in SECRETS.items() if value.encode() in written]

    world.write_prompts((*WORDS[:4], "purple"))
    assert world.run("method=dflash", "seed=5", "overwrite=true").returncode == 0
    other = read_json(world.cell / "sittings/0/environment.json")
    changed = {name for name in hashes if other[name] != facts[name]}
    assert changed == {"rendered_prompts_sha256"}


def test_named_secrets_are_taken_off_the_command_line():
    words = ["tracker.api_key=abc", "hf_token=abc", "tokenizer=t", "max_new_tokens=8"]
    assert redacted(words) == ["tracker.api_key=<redacted>", "hf_token=<redacted>", "tokenizer=t", "max_new_tokens=8"]


def test_the_code_is_told_by_commit_and_difference(tmp_path):
    def git(*words: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    assert git_state(tmp_path) == {"commit": "unknown", "dirty": "unknown"}
    git("init", "-q")
    (tmp_path / "a.py").write_text("a = 1\n")
    git("add", "a.py")
    git("commit", "-qm", "first")
    clean = git_state(tmp_path)
    assert clean["dirty"] is False and len(str(clean["commit"])) == 40 and "diff_sha256" not in clean
    seen = set()
    for name, text in (("a.py", "a = 2\n"), ("a.py", "a = 3\n"), ("new.py", "b = 1\n"), ("new.py", "b = 2\n")):
        (tmp_path / name).write_text(text)
        state = git_state(tmp_path)
        assert state["dirty"] is True and state["commit"] == clean["commit"]
        seen.add(state["diff_sha256"])
    assert len(seen) == 4


def test_tokenizer_and_template_are_told_apart(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    first = tokenizer_facts(tmp_path, "template")
    assert first == tokenizer_facts(tmp_path, "template")
    other = tokenizer_facts(tmp_path, "another")
    assert other["tokenizer_sha256"] == first["tokenizer_sha256"]
    assert other["chat_template_sha256"] != first["chat_template_sha256"]
    (tmp_path / "tokenizer.json").write_text("{ }")
    assert tokenizer_facts(tmp_path, "template")["tokenizer_sha256"] != first["tokenizer_sha256"]


class FakeNvml:
    """Two GPUs: the second is colder, throttled by power once, and counts no energy unless told to."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def __init__(self, counts: bool = True) -> None:
        self.counts, self.reads = counts, 0

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return {"GPU-a": 0, "GPU-b": 1}[uuid]

    def nvmlDeviceGetName(self, handle):
        return f"H{handle}"

    def nvmlSystemGetDriverVersion(self):
        return "580.1"

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 700_000

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=10 * 2**30, free=(5 - handle) * 2**30)

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 1900 + kind

    def nvmlDeviceGetPowerUsage(self, handle):
        self.reads += 1
        return 100_000 * self.reads

    def nvmlDeviceGetTemperature(self, handle, kind):
        return 60 - handle

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return 0x4 if handle == 1 and self.reads == 2 else 0x1

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if not self.counts and handle == 1:
            raise RuntimeError("not supported")
        return 5_000


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(machine, "gpus", lambda: (Gpu("H", 1, "GPU-a"), Gpu("H", 1, "GPU-b"), Gpu("H", 1, "GPU-c")))
    return fake


def test_gpus_are_watched_where_nvml_is_there(nvml, monkeypatch):
    monkeypatch.setattr(gpu, "SAMPLE_EVERY_S", 0.0)
    watch = GpuWatch.open("cuda", 2)
    (one, two) = watch.facts()
    assert (one["name"], one["driver"], one["power_limit_w"], one["memory_bytes"]) == ("H0", "580.1", 700, 10 * 2**30)
    assert two["uuid"] is None and two["mig_mode"] is None  # this NVML does not offer them
    watch.sample()
    watch.sample()
    first, second = watch.summary()
    assert first["power_w"] == {"min": 100, "median": 200, "samples": 2} and first["sm_clock_hz"]["min"] == 1.901e9
    assert first["throttled"] is False and first["throttle_reasons"] == {"idle": 2}
    assert second["throttled"] is True and second["throttle_reasons"] == {"software power cap": 1, "idle": 1}
    assert watch.energy_j() == 10.0 and watch.free_bytes() == 4 * 2**30
    nvml.counts = False
    assert watch.energy_j() is None


def test_gpus_are_sampled_once_a_second_at_most(nvml):
    watch = GpuWatch.open("cuda", 1)
    for _ in range(100):
        watch.sample()
    assert watch.summary()[0]["power_w"]["samples"] == 1


def test_nothing_is_watched_without_nvml_or_on_a_cpu(nvml, monkeypatch):
    assert GpuWatch.open("cpu", 1).facts() == []
    assert GpuWatch.open("cuda", 3).handles == ()  # NVML does not know the third
    monkeypatch.setitem(sys.modules, "pynvml", None)
    watch = GpuWatch.open("cuda", 1)
    watch.sample()
    assert (watch.summary(), watch.energy_j(), watch.free_bytes()) == ([], None, None)


def test_an_arm_that_cannot_fit_is_told_by_how_much():
    spec = EngineSpec(ModelSpec("m", "t", "d"), tp=2)
    methods = [Faulty(), Faulty("huge")]
    found = memory.unfit(FakeEngine, spec, methods, 3 * 2**29)
    assert found == {"faulty-huge": "needs 1.07e+09 GiB a rank, 1.5 GiB are free"}
    assert memory.unfit(FakeEngine, spec, methods, None) == {}
    free = memory.free_host_bytes()
    assert free is None or memory.free_per_rank(spec, GpuWatch(None, ())) in range(int(0.3 * free), int(0.8 * free))


def test_the_limit_of_a_control_group_counts(tmp_path: Path):
    assert memory._left_in_group(tmp_path) is None
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    for limit, left in (("max", None), ("1000", 450), ("100", 0)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert memory._left_in_group(tmp_path) == left
