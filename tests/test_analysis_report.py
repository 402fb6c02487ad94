"""The report: a page that stands alone, says what the records say, and shows the dumped rounds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import records_fixture as fixture

from analysis.__main__ import main
from analysis.load import load_runs
from analysis.report import report, write_report
from analysis.report import rounds as dumped
from analysis.report.folder import Folder
from analysis.report.pictures import markup
from analysis.report.summary import answers, summary
from analysis.round_dumps import NAME
from methods.base import Refusal

NASTY = "</script><b>&amp;'\""
VOID = {"meta", "br", "hr", "img", "input", "link"}
DRAWN_APART = {"path", "circle", "rect", "use", "line", "image", "polygon"}


class Page(HTMLParser):
    """What a browser would find: every tag closed in order, ids, addresses, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing, near {self.getpos()}"

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    @property
    def rounds(self):
        places = [attrs for tag, attrs in self.tags if tag == "script"]
        return json.loads(self.scripts[[attrs.get("id") for attrs in places].index("rounds-data")])


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    made = fixture.make_results(tmp_path_factory.mktemp("report"))
    dump(made / "cells" / fixture.CELL, nodes=200)
    arm = made / "cells" / fixture.CELL / "arms" / "ddtree-1024.json"
    arm.write_text(json.dumps(json.loads(arm.read_text()) | {"log_tail": f"Traceback: {NASTY}"}))
    return made


@pytest.fixture(scope="module")
def text(results):
    return report(results)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures take the longest."""
    monkeypatch.setattr("analysis.report.page.pictures", lambda folder: ([], []))


def dump(cell: Path, nodes: int, requests: int = 3) -> None:
    """Rounds of two arms with a wide tree: a chain of 4 whose last row comes late, the rest children of the root."""
    words = fixture.tokenizer().encode(NASTY).ids
    lines = []
    for request in range(requests):
        for arm in ("autoregressive", "ddtree-16", "ddtree-64"):
            for number in range(20):
                tree = 0 if arm == "autoregressive" else nodes
                parents = [0, 0, 1, 2, *[0] * (tree - 4), 3][: tree + 1]
                depths = [0]
                for parent in parents[1:]:
                    depths.append(depths[parent] + 1)
                path = [0, 1, 2, 3, tree] if tree else [0]
                line = {"cell_id": fixture.CELL, "sitting": 0, "phase": "profile", "arm": arm}
                line |= {"prompt_id": f"code-{request}{NASTY}", "turn": 0, "repeat": 0, "round": number, "root_at": 9}
                line |= {"tokens": [words[row % len(words)] for row in range(tree + 1)], "parents": parents}
                line |= {"depths": depths, "log_probs": [0.0, *[-0.5] * (tree - 1), -1e308][: tree + 1], "path": path}
                line |= {"bonus": words[0], "accepted": len(path) - 1, "oracle_gap": None, "shadow_accepted": 1}
                lines.append(json.dumps(line) + "\n")
    (cell / "sittings" / "0" / NAME).write_text("".join(lines))


def test_page_stands_alone(text, page):
    assert len(text.encode()) < 3_000_000
    assert set(re.findall(r"https?://[^\s\"'<]*", text)) == {
        "http://www.w3.org/2000/svg"
    }  # the name of SVG in a script
    for _, attrs in page.tags:
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert (attrs.get(name) or "#").startswith(("#", "data:image/png;base64,"))
    assert "url(http" not in text and "@import" not in text
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    addresses = {attrs.get("href") or attrs.get("xlink:href") or "" for _, attrs in page.tags}
    assert {address[1:] for address in addresses if address.startswith("#")} <= set(ids)


def test_text_of_others_is_escaped(text, page):
    assert f"Traceback: {NASTY}" in page.text
    assert any(NASTY in one["about"] for one in page.rounds["requests"])
    assert "</script><b>" not in text


def test_page_says_what_the_records_say(page, results):
    runs = load_runs(results)
    row = runs[(runs["cell_id"] == fixture.CELL) & (runs["arm"] == "ddtree-64")].iloc[0]
    assert f"{row['speedup']:.2f} [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]" in page.text
    assert "still unfinished: the figures are so far" in page.text
    assert "DDTree 1024: out of memory." in page.text
    assert "DDTree 256: 1 token that the target would not have chosen." in page.text
    assert "There is no null test here." in page.text


def test_sections_are_there_and_linked(page):
    sections = {attrs["id"] for tag, attrs in page.tags if tag == "section"}
    named = ("answer", "expectations", "pictures", "rounds", "tables", "cautions", "environment")
    assert sections == set(named)
    assert {f"#{name}" for name in named} <= {attrs.get("href") for tag, attrs in page.tags if tag == "a"}
    assert sum(tag == "figure" for tag, _ in page.tags) >= 2


def test_rounds_are_capped_and_keep_the_accepted_path(page):
    data = page.rounds
    shown = [one for request in data["requests"] for one in request["rounds"]]
    assert len(shown) == dumped.ROUNDS
    assert all(len(request["rounds"]) <= dumped.OF_REQUEST < request["whole"] == 20 for request in data["requests"])
    assert not any("AR" in request["name"] for request in data["requests"])
    for one in shown:
        assert len(one["tokens"]) == dumped.NODES + 2  # the root, the first nodes, and the end of the path
        assert one["rows"][-1] == one["nodes"] == 200
        assert [one["rows"][row] for row in one["path"]] == [0, 1, 2, 3, 200]
        assert one["hidden"] == {"0": 200 - dumped.NODES - 1}
        assert all(parent < row for row, parent in enumerate(one["parents"]) if row)
        assert min(one["logs"]) == -9999
        words = data["tokens"][0]
        assert {str(token) for token in one["tokens"]} <= words.keys()
    assert f"{dumped.ROUNDS} rounds of {len(data['requests'])} requests" in page.text


def test_damaged_dump_is_named_and_costs_nothing_else(tmp_path, undrawn):
    results = fixture.make_results(tmp_path)
    file = results / "cells" / fixture.CELL / "sittings" / "0" / NAME
    file.write_text('{"arm": 3}\n')
    assert "line 1 is not a dumped round" in Page(report(results)).text


def test_a_folder_without_a_request_yet(tmp_path):
    cell = fixture.write_cell(tmp_path / "r", fixture.CELL, [], {fixture.AR: "pending", "ddtree-16": "pending"}, {})
    assert cell.is_dir()
    page = Page(report(tmp_path / "r"))
    assert "Nothing here says whether a tree is worth it" in page.text
    assert page.text.count("no data") >= 6


def test_written_where_asked(results, tmp_path, capsys, undrawn, monkeypatch):
    assert main(["report", str(results), "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "page.html")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
    monkeypatch.setattr("analysis.report.page.report", lambda results: "the page")  # from here on, the place alone
    written = write_report(results)
    assert written == results / "report.html" and written.read_text() == "the page"
    with pytest.raises(Refusal, match="--out"):
        write_report(results, tmp_path / "no" / "folder.html")


def test_figures_become_markup_of_their_own():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    axes.plot([1, 2], label="<b>")
    axes.bar([1], [1], hatch="//", facecolor="#56b4e9")
    axes.legend()
    svg = markup(figure, "p7-", "a < b")
    heavy, more = pyplot.subplots()
    for line in np.random.default_rng(0).normal(size=(60, 300)):
        more.plot(line)
    image = markup(heavy, "p8-", "many")
    pyplot.close("all")
    assert svg.startswith('<svg role="img" aria-label="a &lt; b"') and "http" not in svg
    ids = re.findall(r'\bid="([^"]*)"', svg)
    assert 'fill="#56b4e9"' in svg
    assert ids and all(name.startswith("p7-") for name in ids)
    assert set(re.findall(r'(?:url\(|href=")#([^)"]*)', svg)) <= set(ids)
    assert image.startswith('<img src="data:image/png;base64,')


def test_summary_of_the_fixture(results):
    folder = Folder(results)
    said = " ".join(summary(folder, answers(folder.standings)))
    assert "DDTree 64" in said and "invalid" in said and "near tie" in said


def test_comparisons_agree_with_the_tables(results):
    runs = load_runs(results)
    (cell,) = [one for one in Folder(results).standings if one.place[1] == fixture.CELL]
    for row in runs[(runs["cell_id"] == fixture.CELL) & runs["arm"].isin(["dflash", "ddtree-16"])].itertuples():
        found = cell.compared.speed(row.arm, "autoregressive")
        assert found[:3] == pytest.approx((row.speedup, row.speedup_low, row.speedup_high))
        assert cell.compared.length(row.arm) == pytest.approx(row.acceptance_length)
    lengths = cell.compared.lengths("ddtree-16", "dflash")
    assert lengths.point == pytest.approx(cell.compared.length("ddtree-16") / cell.compared.length("dflash"))
    assert cell.compared.lengths("ddtree-16", "nothing").n == 0
    assert "ddtree-256" not in set(cell.sound["arm"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_arrow_keys_step_through_rounds(text, tmp_path):
    """In a real browser: no error, one tree drawn, keys and chooser step, a node tells its probability."""
    script = """
    <script>
    const said = [], errors = [];
    addEventListener("error", (event) => errors.push(event.message));
    addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective));
    addEventListener("load", () => setTimeout(() => {
      const key = (name, on) => on.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
      const now = () => said.push(document.getElementById("which").textContent);
      const nodes = () => document.querySelectorAll("g.node").length;
      now(); key("ArrowLeft", document.body); now(); key("ArrowRight", document.body); now();
      key("ArrowDown", document.getElementById("viewer")); now();
      said.push(document.getElementById("request").value, nodes(), document.querySelectorAll("g.node.on").length);
      const node = document.querySelectorAll("g.node")[1];
      node.dispatchEvent(new PointerEvent("pointermove", { bubbles: true }));
      said.push(document.getElementById("tip").textContent);
      const title = document.querySelectorAll("table.sortable th.n")[0];
      title.click(); said.push(title.getAttribute("aria-sort"));
      document.body.innerHTML = "";
      document.body.append(JSON.stringify({ said, errors }));
    }, 200));
    </script>
    """
    file = tmp_path / "page.html"
    file.write_text(text.replace("<head>", "<head>" + script, 1))
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=5000",
        f"--user-data-dir={tmp_path}/c",
    ]
    done = subprocess.run(
        ["chromium", *options, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=120
    )
    found = json.loads(
        "".join(Page(done.stdout).words).strip()[len("Draft trees: ") :].split("\n")[-1].removeprefix("results")
    )
    assert found["errors"] == []
    first, same, second, other, request, nodes, accepted, tip, order = found["said"]
    assert first == same == "round 0 (1 of 12)" and second == "round 1 (2 of 12)" and other == first
    assert request == "1" and nodes == dumped.NODES + 3 and accepted == 5
    assert "drafter's probability 60.7 %" in tip and order == "descending"
