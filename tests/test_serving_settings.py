"""What a served arm can be set to beside its load: noise, synthetic acceptance, servers that run already, ranks,
graphs; and a server of one's own for others."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest
from fake_world import REPOSITORY, TESTS
from test_serving import ASKED, run, served  # noqa: F401

from analysis import load_runs
from analysis.layouts import Setting
from analysis.plot_data import APART
from harness.records import read_json, sitting_lines
from methods.autoregressive import Autoregressive
from methods.base import EngineSpec, ModelSpec, Refusal, Request, Sampling
from methods.dflash import DFlash
from methods.engines.__main__ import main
from methods.engines.http import Http
from methods.engines.reference import ReferenceEngine
from methods.engines.scoring import improbable
from methods.engines.server import free_port
from methods.engines.vllm import VllmEngine, cores_by_rank, sampling
from methods.engines.vllm_told import alike, unlike

PAIR = ModelSpec("tiny", "builtin:tiny/target", "builtin:tiny/drafter")
ARMS = (Autoregressive(), DFlash())


class SimulatingEngine(VllmEngine):
    """vLLM as if it simulated acceptance on a CPU."""

    simulates: ClassVar[bool] = True

    @classmethod
    def check_simulation(cls, spec):
        pass


def spec(**changes) -> EngineSpec:
    return EngineSpec(PAIR, **{"device": "cuda", "python": sys.executable, "max_length": 100, **changes})


def test_above_temperature_0_verification_is_named_and_texts_are_tested(served):  # noqa: F811
    done = run(served, "temperature=0.7", "top_p=0.9")
    assert done.returncode == 0, done.stderr
    assert "rejection sampling" in done.stdout
    assert served.arm("dflash")["verify"] == "rejection" and served.arm("autoregressive")["verify"] is None
    assert all(line["true_violations"] == 0 for line in sitting_lines(served.cell))
    assert (load_runs(served.results)["verify"] == "rejection").all()


def test_one_improbable_token_is_chance_and_many_are_not():
    assert improbable([True, *[False] * 19], [0.01] * 20).max_gap == 0
    assert improbable([], []).max_gap == 0 and improbable([False] * 9, [0.0] * 9).max_gap == 0
    many = improbable([True] * 8 + [False] * 12, [0.01] * 20)
    assert many.true_violations(0.5) == 8 and many.first_divergence == 0
    draw = random.Random(0)
    for _ in range(200):  # of texts that were drawn rightly none fails
        assert improbable([draw.random() < 0.1 for _ in range(300)], [0.1] * 300).max_gap == 0


@pytest.mark.parametrize(
    ("temperature", "simulated", "judged"),
    [(0.0, None, True), (1.0, None, True), (1.5, None, False), (0.0, 3.0, False)],
)
def test_what_no_score_can_tell_stays_unchecked(temperature, simulated, judged):
    assert VllmEngine.judges(spec(simulate_acceptance=simulated), Sampling(temperature)) == judged


def test_verification_is_exact_unless_a_server_draws():
    for method, temperature, wanted in (
        (DFlash(), 0.0, "exact"),
        (DFlash(), 0.5, "rejection"),
        (Autoregressive(), 0.5, None),
    ):
        assert VllmEngine.verify(spec(), method, Sampling(temperature)) == wanted
        exact = None if wanted is None else "exact"
        assert ReferenceEngine.verify(spec(), method, Sampling(temperature)) == exact


def test_synthetic_acceptance_is_marked_and_a_cell_of_its_own(served):  # noqa: F811
    text = (served.folder / "conf/engine/served.yaml").read_text()
    served.write(
        "conf/engine/served.yaml", text.replace("methods.engines.vllm.Vllm", "test_serving_settings.Simulating")
    )
    done = run(served, "engine.simulate_acceptance=3.5", fault="dflash:lie")
    assert done.returncode == 0, done.stderr
    assert "SYNTHETIC acceptance 3.5" in done.stdout and "not checked" in done.stdout
    runs = load_runs(served.results)
    assert (runs["simulate_acceptance"] == 3.5).all()
    engine = read_json(served.cell / "sittings/0/environment.json")["engine"]
    assert engine["simulate_acceptance"] == 3.5
    assert '"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.5' in engine["server_dflash"]
    assert "synthetic" not in engine["server_autoregressive"]
    assert all(line["true_violations"] is None for line in sitting_lines(served.cell))
    both = pd.concat([runs, runs.assign(simulate_acceptance=math.nan)])
    assert "simulate_acceptance" in APART and len({Setting.of(row) for row in both.itertuples()}) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "cpu"}, "engine.simulate_acceptance=3.5 is not accepted: engine=vllm simulates on a GPU."),
        ({"simulate_acceptance": 17.0}, "engine.simulate_acceptance=17 is not accepted: a number from 1 to 16 is."),
        ({"simulate_acceptance": 0.5}, "engine.simulate_acceptance=0.5 is not accepted: a number from 1 to 16 is."),
    ],
)
def test_acceptance_that_cannot_be_is_refused(changes, said):
    with pytest.raises(Refusal, match=said):
        VllmEngine.check(spec(**{"simulate_acceptance": 3.5, **changes}), ARMS)


def test_only_an_engine_that_can_simulates(served):  # noqa: F811
    done = served.run("engine=reference", "model=tiny", "+engine.simulate_acceptance=2")
    done = done if "+engine" not in done.stderr else served.run("engine=reference", "engine.simulate_acceptance=2")
    assert done.returncode == 2
    assert "engine=reference accepts what its target would have chosen" in done.stderr


def test_graphs_cover_every_batch_at_both_widths_in_every_arm():
    engine = VllmEngine(spec(concurrency=20))
    plain, drafted = (
        "--cudagraph-capture-sizes 1 2 4 8 16 20 32 64 128 256 320" in " ".join(engine.arguments(arm)) for arm in ARMS
    )
    assert plain and drafted
    for given in ({"args": (("enforce_eager", True),)}, {"device": "cpu"}):
        assert "--cudagraph-capture-sizes" not in engine.__class__(spec(**given)).arguments(DFlash())


def test_a_request_has_a_seed_of_its_own():
    asked = [
        Request(name, (1,), 4, sampling=Sampling(1.0, 0.9, 5, seed)) for name, seed in (("a", 0), ("b", 0), ("a", 1))
    ]
    seeds = [sampling(each)["seed"] for each in asked]
    assert len(set(seeds)) == 3 and all(0 <= seed < 2**31 for seed in seeds)
    assert sampling(asked[0])["top_p"] == 0.9 and sampling(asked[0])["top_k"] == 5
    assert "seed" not in sampling(asked[0], seeded=False) and "seed" not in sampling(Request("a", (1,), 4))


def test_every_rank_has_cores_of_its_own(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 8, 9, 11})
    assert cores_by_rank(2) == "3,5|8,9" and cores_by_rank(4) == "3|5|8|9"
    variables = VllmEngine(spec(device="cpu", tp=2)).variables()
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "3,5|8,9"
    with pytest.raises(Refusal, match="tp=8 is not accepted: engine=vllm needs a core for each rank, 5 are there"):
        VllmEngine.check(spec(device="cpu", tp=8), ARMS)


@contextmanager
def running(world, *arms, env=None, **changes):
    """Servers as somebody else would have started them, by arm."""
    engine = VllmEngine(spec(device="cpu", python=str(world.folder / "python"), max_length=300, **changes))
    found, processes = {}, []
    for arm in arms:
        port = free_port()
        command = [str(world.folder / "python"), *engine.arguments(arm), *engine.address("theirs", port)]
        processes.append(
            subprocess.Popen(command, env={**os.environ, "FAKE_ALONE": "1", **(env or {})}, stdout=subprocess.DEVNULL)
        )
        found[arm.name] = f"http://127.0.0.1:{port}"
    try:
        for url in found.values():
            answer(f"{url}/v1/models")
        yield found
    finally:
        for process in processes:
            process.kill()
            process.wait()


def answer(url, seconds=20.0, content=None):
    """What a server says, once it says something."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return json.loads(reply.read())
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < deadline, f"nothing at {url}"
            time.sleep(0.05)


def test_servers_that_run_already_are_measured_and_left_alone(served):  # noqa: F811
    with running(served, *ARMS, env={"VLLM_SERVER_DEV_MODE": "1"}, concurrency=2) as urls:
        word = "engine.url={" + ",".join(f"{arm}:'{url}'" for arm, url in urls.items()) + "}"
        done = run(served, "engine.python=null", word, "concurrency=2", "repeats=3")
        assert done.returncode == 0, done.stderr
        assert all(answer(f"{url}/v1/models") for url in urls.values())
        engine = read_json(served.cell / "sittings/0/environment.json")["engine"]
        assert engine["server_dflash"] == urls["dflash"] and engine["vllm_version"] == "0.0.fake"
        assert json.loads(engine["arguments_dflash"])["scheduler_config"] == {"max_num_seqs": 2}
        assert read_json(served.cell / "cell.json")["settings"]["engine_urls"] == json.dumps(urls, sort_keys=True)


def test_a_server_that_is_not_the_cells_is_refused(served, tmp_path):  # noqa: F811
    with running(served, *ARMS, env={"VLLM_SERVER_DEV_MODE": "1"}, concurrency=2) as urls:
        plain, drafting = urls["autoregressive"], urls["dflash"]
        other = tmp_path / "other"
        other.mkdir()
        for file in Path(REPOSITORY / "methods/checkpoints/tiny/target").iterdir():
            (other / file.name).symlink_to(file)
        pair = ModelSpec("other", str(other), "builtin:tiny/drafter")
        tries = [
            ({"model": pair}, plain, drafting, f"serves .*tiny/target, not model.target={other}"),
            ({}, drafting, drafting, "drafts, so it is no server of autoregressive"),
            ({}, plain, plain, "does not draft, so it is no server of dflash"),
            ({"max_length": 4000}, plain, drafting, "has room for 333 tokens: 4033 are needed"),
            ({"concurrency": 8}, plain, drafting, "concurrency=8 is not accepted with engine.url: .* has 2"),
            ({"dtype": "bfloat16"}, plain, drafting, "dtype=bfloat16 is not accepted with engine.url"),
        ]
        for changes, first, second, said in tries:
            given = {"device": "cpu", "concurrency": 2, "python": None, **changes}
            given = {"model": PAIR, **given, "urls": (("autoregressive", first), ("dflash", second))}
            engine = VllmEngine(EngineSpec(**{"max_length": 100, **given}))
            with pytest.raises(Refusal, match=said):
                engine.open(ARMS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("engine.url=http://127.0.0.1:1",), "engine.url names no server of dflash: {autoregressive: http"),
        (("engine.url={autoregressive:ftp,dflash:x}",), "engine.url=ftp is not accepted: http://HOST:PORT is"),
        (("engine.url=3",), "engine.url=3 is not accepted: {autoregressive: http://HOST:PORT, …} is."),
        (("engine.url={dflash:x}", "engine.args={a:1}"), "engine.args={'a': 1} is not accepted with engine.url"),
    ],
)
def test_what_is_no_address_is_refused(served, words, said):  # noqa: F811
    done = served.run(*ASKED, "engine.python=null", *words)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("url", ["https://a:1", "http://", "a", "http://a:b", "http://a:1/v1?x=2", "http://u@a:1/"])
def test_an_address_is_a_host_and_a_port(url):
    with pytest.raises(Refusal, match="http://HOST:PORT is, of a server that runs"):
        Http.at(url)


def wrapper(folder: Path) -> str:
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {TESTS / "fake_vllm.py"} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_serve_prints_the_command_and_becomes_it(tmp_path):
    port = free_port()
    words = ["serve", "vllm-cpu", "method=dflash", "concurrency=4", f"port={port}", f"python={wrapper(tmp_path)}"]
    command = [sys.executable, "-m", "methods.engines", *words]
    environment = {**os.environ, "FAKE_ALONE": "1"}
    process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        said = process.stdout.readline()
        assert answer(f"http://127.0.0.1:{port}/v1/models")["data"][0]["id"] == "tiny"
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert said.startswith("VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 ") and " --max-num-seqs 4 " in said
    assert "--speculative-config '{" in said and "--enable-auto-tool-choice --tool-call-parser hermes" in said
    assert "--max-model-len 4096 " in said and "--generation-config" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model=nope"], "model=nope is not accepted: llama31_8b, "),
        (["method=ddtree"], "method=ddtree is not accepted: engine=vllm runs autoregressive and dflash."),
        (["method=x"], "method=x is not accepted: autoregressive, dflash, ddtree are."),
        (["nonsense=1"], "nonsense=1 is not accepted: NAME=VALUE is, with one of model, "),
        (["port=x"], "port=x is not accepted: an integer of at least 0 is."),
        (["args=[1]"], "args=[1] is not accepted: arguments by their names are"),
        (["max_length=5000"], "do not fit tiny's window of 4096"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path, capsys, words, said):
    assert main(["serve", "vllm-cpu", f"python={wrapper(tmp_path)}", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused(tmp_path, capsys):
    with running_socket() as port:
        assert main(["serve", "vllm-cpu", f"python={wrapper(tmp_path)}", f"port={port}"]) == 2
    assert f"port={port} is not accepted" in capsys.readouterr().err


@contextmanager
def running_socket():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_what_arms_have_to_have_in_common_is_compared(served):  # noqa: F811
    with VllmEngine(EngineSpec(PAIR, python=str(served.folder / "python"), max_length=100)) as engine:
        for arm in ARMS:
            engine.generate(arm, Request("a", (1, 2, 3), 4))
        facts = engine.describe()
    assert facts["unlike"] == "nothing" and facts["settings_plain"] == facts["settings_drafting"]
    plain, drafting = {"async_scheduling": True, "backend": "A"}, {"async_scheduling": False, "backend": "A", "more": 1}
    assert unlike(plain, drafting) == "async_scheduling True / False"
    assert alike({"model_config": {"enforce_eager": True}, "cache_config": None}) == {"enforce_eager": True}
