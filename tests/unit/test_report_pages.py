"""The report as a file: safe to open, loading nothing, made of what there is, the same bytes twice."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_report import finished_run, make_lines, summarise, write_run

from fedscal.compare.comparison import leaderboards, source_tables, usable
from fedscal.core.errors import UsageError
from fedscal.core.table import Table
from fedscal.experiment.load import load_run
from fedscal.report import write_comparison, write_report

HOSTILE = ("<script>alert(1)</script>", "$x^2$", "_hidden\n\x07", 'a" onload="x', "図-1", "\ud800")


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


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_missing_extra_says_what_to_install(
    finished: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in ("page", "figures"):  # as if nothing had been drawn in this process yet
        monkeypatch.delitem(sys.modules, f"fedscal.report.{name}", raising=False)
        monkeypatch.delattr(f"fedscal.report.{name}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match=re.escape("pip install 'fedscal[report]'")):
        write_report(finished)


class Page(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attrs]


def assert_harmless(text: str) -> None:
    page = Page(text)
    assert not {"script", "iframe", "link", "img", "object", "base", "form"} & set(page.tags)
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    loads = [value for key, value in page.attributes if key in {"src", "href", "xlink:href", "action"}]
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in loads)
    assert all(found == "url(#" for found in re.findall(r"url\(.", text))
    assert "@import" not in text
    assert "http://" not in text
    assert "https://" not in text
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text
    ids = [value for key, value in page.attributes if key == "id"]
    assert len(ids) == len(set(ids))


def test_page_loads_nothing(finished: Path) -> None:
    text = write_report(finished).read_text()
    assert_harmless(text)
    assert text.count("<svg") == 8
    assert Page(text).tags.count("svg") == text.count('role="img"')


@pytest.mark.usefixtures("undrawn")
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
    assert_harmless(text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert ">$x^2$</text>" in drawn  # no mathematics
    assert "&lt;script&gt;alert(1)" in drawn
    assert "_hidden" in drawn  # matplotlib would leave it out of the legend
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
    assert_harmless(text)
    assert "<code>lr</code> (0.1, 4.1)" in text
    assert "oracle" in text
    assert text.count("<svg") == 2, "accuracy, and the pseudo-labels beside FedLoA's"
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
    assert text.count('<th scope="row">FedSCAl, lambda_server=0</th>') == 1
    assert text.count('<th scope="row">FedSCAl</th>') == 1
    assert "Not the same in all runs" not in text, "the rows say it"
    assert "A seed occurs twice" not in text
    assert '<th scope="row">&lt;b&gt;</th>\n<td>0.25</td>' in text
    assert "a note" in text


def test_comparison_with_a_run_that_adapts_nothing(finished: Path, tmp_path: Path) -> None:
    lines = make_lines(rounds=0)
    still = write_run(tmp_path / "still", lines, summarise(lines * 2, method="source-only"))
    text = write_comparison([finished, still], tmp_path / "out.html").read_text()
    assert ">Source only</text>" in text
    assert "65.0" in text


def test_large_run_stays_small(tmp_path: Path) -> None:
    scores = {f"domain {place}": (50.0, 60.0 + place) for place in range(5)}
    lines = make_lines(scores, rounds=60, clients=3, epochs=5)
    write_run(tmp_path, lines, summarise(lines))
    assert write_report(tmp_path).stat().st_size < 500_000
