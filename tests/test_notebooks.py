"""The notebooks run from top to bottom on the example, without a network, and carry no output in git."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis import load_requests, load_runs

REPOSITORY = Path(__file__).parents[1]
FOLDER = REPOSITORY / "analysis" / "notebooks"
EXAMPLE = REPOSITORY / "results" / "example"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NO_NETWORK = """
import socket
def refuse(*words, **more):
    raise OSError("the network is not for notebooks")
socket.getaddrinfo = socket.create_connection = refuse
"""


def cells(file: Path) -> list[dict]:
    return json.loads(file.read_text(encoding="utf-8"))["cells"]


def test_both_are_here():
    assert [file.stem for file in NOTEBOOKS] == ["budget_study", "first_look"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_carries_no_output(file):
    content = json.loads(file.read_text(encoding="utf-8"))
    assert set(content["metadata"]) == {"kernelspec", "language_info"}
    assert content["metadata"]["language_info"] == {"name": "python"}
    for cell in content["cells"]:
        assert set(cell["metadata"]) <= {"tags"}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
    assert content["cells"][0]["source"][0].startswith("# ")
    assert any(cell["metadata"].get("tags") == ["parameters"] for cell in content["cells"])


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_on_the_example(file, monkeypatch, tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import AsyncKernelManager

    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(NO_NETWORK))
    manager = AsyncKernelManager(transport="ipc", kernel_name="python3", ip=str(tmp_path / "kernel"))
    nbclient.NotebookClient(notebook, km=manager, timeout=120, resources={"metadata": {"path": str(FOLDER)}}).execute()
    said = "".join(
        str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", ""))
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    pictures = sum(
        "image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])
    )
    assert not [
        output for cell in notebook.cells for output in cell.get("outputs", []) if output.get("name") == "stderr"
    ]
    expected = {"first_look": (3, "Null test on chat"), "budget_study": (5, "Best tree measured: ddtree-")}
    assert (pictures, expected[file.stem][1] in said) == (expected[file.stem][0], True), said


def test_the_example_is_what_its_page_says():
    runs = load_runs(EXAMPLE)
    assert runs["cell_id"].nunique() == 13 and set(runs["status"]) <= {"complete", "drifted"}
    assert {1, 2} == set(runs["tp"]) and {0.0, 1.0} == set(runs["temperature"])
    assert runs["oracle_rounds"].max() > 0 and runs["shadow_acceptance_length"].notna().any()
    assert "autoregressive-twin" in set(runs["arm"]) and list(EXAMPLE.glob("cells/*/sittings/*/rounds.jsonl"))
    assert {"reference", "vllm"} == set(runs["engine"]) and {1, 4} == set(runs["concurrency"])
    assert not load_requests(EXAMPLE)["true_violations"].any()


def test_the_example_names_no_machine_and_is_small():
    files = [file for file in EXAMPLE.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 3_000_000
    for file in files:
        if file.suffix in (".json", ".jsonl", ".txt", ".md"):
            text = file.read_text(encoding="utf-8")
            assert "hostname_sha256" not in text and not any(f'"{root}/' in text for root in ("/home", "/root", "/tmp"))
