"""The report as a file: safe to open, loading nothing, made of what there is, the same bytes twice."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from test_report import finished_run, make_lines, summarise, write_run

from fedscal.compare.comparison import differences, leaderboards, source_tables, usable
from fedscal.core.errors import UsageError
from fedscal.core.table import Table
from fedscal.experiment.load import load_run
from fedscal.report import write_comparison, write_report
from fedscal.report.page import report_page

HOSTILE = ("<script>alert(1)</script>", "$x^2$", "_hidden\n\x07", 'a" onload="x', "図-1", "\ud800")
PAGE_OF_OURS = re.compile(r"(\.\./)*([\w.%~-]+/)*(report|comparison)\.html")


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return finished_run(tmp_path)


@pytest.mark.parametrize("kept", ["spec.toml", "metrics.jsonl", "summary.json"])
def test_any_single_file_makes_a_report(finished: Path, kept: str) -> None:
    for name in ("spec.toml", "metrics.jsonl", "summary.json", "environment.json"):
        if name != kept:
            (finished / name).unlink()
    page = write_report(finished).read_text()
    assert "environment.json is missing." in page
    assert ("Unfinished" in page) is (kept != "summary.json")


def test_broken_files_are_noted(finished: Path) -> None:
    for name in ("spec.toml", "summary.json", "environment.json"):
        (finished / name).write_text("[[[")
    page = write_report(finished).read_text()
    assert all(f"{name} cannot be read" in page for name in ("spec.toml", "summary.json", "environment.json"))


def test_not_a_run_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run directory"):
        write_report(tmp_path)


def test_missing_extra_says_what_to_install(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if no page had been written in this process yet.
    monkeypatch.delitem(sys.modules, "fedscal.report.page", raising=False)
    monkeypatch.delattr("fedscal.report.page", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match=re.escape("pip install 'fedscal[report]'")):
        write_report(finished)


class Page(HTMLParser):
    """Collects what a browser would act on, and the texts of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attrs]
        if tag == "script":
            self.scripts.append((dict(attrs).get("type") or "", ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = kind, text + data

    @property
    def policy(self) -> str:
        """The content security policy."""
        return next(value for key, value in self.attributes if key == "content" and "default-src" in value)

    @property
    def charts(self) -> dict[str, Any]:
        """What the charts are drawn from."""
        found = [text for kind, text in self.scripts if kind == "application/json"]
        return dict(json.loads(found[0])) if found else {}


def sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def assert_harmless(text: str) -> Page:
    """Assert that a page runs its own scripts alone, and loads and sends nothing."""
    page = Page(text)
    assert not {"iframe", "link", "object", "base", "form"} & set(page.tags)
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    loads = [value for key, value in page.attributes if key in {"src", "href", "xlink:href", "action"}]
    assert all(
        value.startswith(("#", "data:image/png;base64,")) or PAGE_OF_OURS.fullmatch(value) for value in loads
    )
    rules = dict(rule.split(" ", 1) for rule in page.policy.split("; "))
    assert rules.pop("script-src").split() == [
        f"'sha256-{sha256(code)}'" for kind, code in page.scripts if not kind
    ]
    assert rules == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    outside = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"@import|https?://|url\((?!#)", outside)
    ids = [value for key, value in page.attributes if key == "id"]
    assert len(ids) == len(set(ids))
    return page


def test_page_loads_nothing_and_draws_what_it_holds(finished: Path) -> None:
    page = assert_harmless(write_report(finished).read_text())
    wanted = [value for key, value in page.attributes if key == "data-chart"]
    assert sorted(page.charts) == sorted(wanted)
    assert {"accuracy", "pseudo-labels", "signal-0", "threshold", "skewness", "drift", "seconds"} <= set(
        wanted
    )


def test_a_page_without_charts_has_no_library(finished: Path) -> None:
    drawn = write_report(finished).stat().st_size
    (finished / "metrics.jsonl").unlink()
    text = write_report(finished).read_text()
    assert assert_harmless(text).charts == {}
    assert "Observable" not in text
    assert len(text) < 100_000 < 480_000 < drawn


def test_a_live_page_may_ask_its_own_server_and_run_one_script_more(finished: Path) -> None:
    code = "fetch('/round')"
    page = Page(report_page(load_run(finished), extra_scripts=[code], connect="'self'"))
    assert page.policy.endswith("connect-src 'self'")
    assert f"'sha256-{sha256(code)}'" in page.policy
    assert ("", code) in page.scripts


def test_a_run_from_a_given_model_is_titled_so(tmp_path: Path) -> None:
    lines = make_lines({"ward": (50.0, 60.0)}, clients=1)
    write_run(tmp_path / "run", lines, summarise(lines, source=""))
    assert ", source a given model" in write_report(tmp_path / "run").read_text()


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    lines = make_lines({name: (50.0, 60.0 + place) for place, name in enumerate(HOSTILE)}, clients=1)
    lines[1] |= {"warnings": [HOSTILE[0]], "failures": {HOSTILE[0]: HOSTILE[3]}}
    summary = summarise(lines, method=HOSTILE[0], benchmark=HOSTILE[1])
    write_run(tmp_path / "run", lines, summary, note=HOSTILE[0])
    text = write_report(tmp_path / "run").read_text()
    page = assert_harmless(text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    names = {one["name"] for one in page.charts["accuracy"]["series"]}
    assert set(HOSTILE[:5]) < names, "as they are, for a script that only writes text"
    assert_harmless(write_comparison([tmp_path / "run"], tmp_path / "all.html").read_text())


def test_same_run_same_bytes(finished: Path, tmp_path: Path) -> None:
    first = write_report(finished).read_bytes()
    assert write_report(finished, out=tmp_path / "there" / "again.html").read_bytes() == first
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["again.html"]
    pages = [write_comparison([finished], tmp_path / name).read_bytes() for name in "ab"]
    assert pages[0] == pages[1]


def test_comparison_means_over_seeds(tmp_path: Path) -> None:
    for method, gain in (("fedloa", 0.0), ("fedscal", 4.0)):
        for seed in (0, 1):
            lines = make_lines({"font": (60.0, 80.0 + gain + 2 * seed)})
            write_run(
                tmp_path / f"{method}-{seed}",
                lines,
                summarise(lines, method=method, seed=seed),
                lr=0.1 + gain,
            )
    write_run(tmp_path / "x-unfinished", make_lines(), None)
    paths = sorted(tmp_path.iterdir())
    kept, left_out = usable([load_run(path) for path in paths])
    (table,) = source_tables(kept)
    assert [(row.method, row.seeds, row.cell(lambda one: one.last)) for row in table.rows] == [
        ("FedSCAl", "0-1", "85.0 ± 1.4"),
        ("FedLoA", "0-1", "81.0 ± 1.4"),
    ]
    assert list(left_out.values()) == ["unfinished, 4 rounds recorded"]
    text = write_comparison([*paths, paths[0]], tmp_path / "out.html").read_text()
    page = assert_harmless(text)
    assert "<code>lr</code> (0.1, 4.1)" in text
    assert "oracle" in text
    assert "Highest on digits: FedSCAl 85.0 %, then FedLoA 81.0 %." in text
    assert sorted(page.charts) == ["dots-0", "labels-0", "methods-0"]
    assert page.charts["dots-0"]["dots"][0] == {
        "name": "FedSCAl",
        "mean": 85.0,
        "deviation": 1.4142,
        "values": [84.0, 86.0],
        "before": 60.0,
    }
    rounds, gaps = table.label_gaps["FedSCAl"]
    assert len(rounds) == 5
    assert gaps[:, -1].tolist() == pytest.approx([4.0, 4.0])


def test_a_leaderboard_over_sources_puts_incomplete_methods_last(tmp_path: Path) -> None:
    scores = {
        ("fedloa", "mnist"): (80.0, 82.0),
        ("fedloa", "optdigits"): (60.0, 60.0),
        ("fedscal", "mnist"): (79.0, 81.0),
        ("fedscal", "optdigits"): (70.0, 74.0),
        ("fedprox", "optdigits"): (90.0, 90.0),
    }
    for (method, source), ends in scores.items():
        for seed, end in enumerate(ends):
            lines = make_lines({"font": (50.0, end)})
            summary = summarise(lines, method=method, source=source, seed=seed)
            write_run(tmp_path / f"{method}-{source}-{seed}", lines, summary)
    paths = sorted(tmp_path.iterdir())
    (board,) = leaderboards(source_tables([load_run(path) for path in paths]))
    assert board.header == ["method", "mnist", "optdigits", "mean", "highest"]
    assert board.rows == [
        ["FedSCAl", "80.0 ± 1.4", "72.0 ± 2.8", "76.0", "0"],
        ["FedLoA", "81.0 ± 1.4", "60.0 ± 0.0", "70.5", "1"],
        ["FedProx", "—", "90.0 ± 0.0", "—", "1"],
    ]
    text = write_comparison(paths, tmp_path / "out.html").read_text()
    assert text.index("Leaderboard: digits") < text.index("source mnist")


def test_comparison_has_a_row_for_every_setting_and_the_table_it_is_given(tmp_path: Path) -> None:
    lines = make_lines()
    for value in (0.0, 1.0):
        spec = {"lambda_server": value, "tau_init": 0.5}
        write_run(tmp_path / str(value), lines, summarise(lines), **spec)
    overall = Table("All sources", ["method", "p"], [["<b>", "0.25"]], ["a note"])
    text = write_comparison(sorted(tmp_path.iterdir()), tmp_path / "out.html", overall).read_text()
    assert_harmless(text)
    assert text.count('<th scope="row"><span class="name">FedSCAl, lambda_server=0</span></th>') == 1
    assert text.count('<th scope="row"><span class="name">FedSCAl</span></th>') == 1
    assert "Not the same in all runs" not in text, "the rows say it"
    assert "A seed occurs twice" not in text
    assert '<th scope="row"><span class="name">&lt;b&gt;</span></th>\n<td>0.25</td>' in text
    assert "a note" in text


def test_comparison_with_a_run_that_adapts_nothing(finished: Path, tmp_path: Path) -> None:
    lines = make_lines(rounds=0)
    still = write_run(tmp_path / "still", lines, summarise(lines * 2, method="source-only"))
    text = write_comparison([finished, still], tmp_path / "out.html").read_text()
    (level,) = [one for one in Page(text).charts["methods-0"]["series"] if one.get("look") == "level"]
    assert level == {"name": "Source only", "values": [65.0], "look": "level"}


def test_large_run_stays_small(tmp_path: Path) -> None:
    scores = {f"domain {place}": (50.0, 60.0 + place) for place in range(5)}
    lines = make_lines(scores, rounds=60, clients=3, epochs=5)
    write_run(tmp_path, lines, summarise(lines))
    path = write_report(tmp_path)
    assert path.stat().st_size < 700_000
    thinned = Page(path.read_text()).charts["threshold"]
    assert thinned["columns"] == list(range(1, 61)), "300 local epochs are more than can be seen"
    assert [len(row) for row in thinned["values"]] == [60] * 15


def test_keys_that_a_method_does_not_have_are_no_difference(tmp_path: Path) -> None:
    lines = make_lines()
    specs: dict[str, dict[str, Any]] = {
        "fedloa": {"lr": 0.1},
        "fedscal": {"lr": 0.1, "tau_init": 0.8},
        "fedmoon": {"lr": 0.2, "mu": 1.0},
        "older": {"lr": 0.1, "method": "fedscal"},
    }
    for name, spec in specs.items():
        method = str(spec.get("method", name))
        write_run(tmp_path / name, lines, summarise(lines, method=method), **{"method": method, **spec})
    runs = {name: load_run(tmp_path / name) for name in specs}
    assert differences([runs["fedloa"], runs["fedscal"], runs["fedmoon"]]) == {"lr": ["0.1", "0.2"]}
    assert differences([runs["fedloa"], runs["older"]]) == {}


def test_links_lead_from_a_comparison_to_reports_and_back(tmp_path: Path) -> None:
    lines = make_lines(clients=1)
    names = ["javascript:alert(1)", "b c#", "plain"]
    runs = [write_run(tmp_path / name, lines, summarise(lines)) for name in names]
    for run in runs[:2]:
        assert "to the comparison" not in write_report(run).read_text()
    page = assert_harmless(write_comparison(runs, tmp_path / "comparison.html").read_text())
    links = [value for key, value in page.attributes if key == "href" and not value.startswith("#")]
    assert links == ["javascript%3Aalert%281%29/report.html", "b%20c%23/report.html"]
    assert 'href="../comparison.html"' in write_report(runs[0]).read_text()
    elsewhere = write_report(runs[0], out=tmp_path / "pages" / "one" / "x.html").read_text()
    assert 'href="../../comparison.html"' in elsewhere
