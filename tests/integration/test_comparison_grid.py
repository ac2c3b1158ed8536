"""``fedscal compare``: many runs, one table, nothing run twice, nothing lost when it is stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from harness import TINY, Ended, Words, Zygote, alive, children, judged, once, rows, summary, until

GRID = [*TINY, "source=a", "rounds=1", "pretrain_epochs=2", "methods=source-only,fedloa", "seeds=0,1"]
CELLS = 4


def _compare(fedscal: Zygote, out: Path, *words: str, before: str = "") -> Ended:
    return fedscal("compare", *GRID, *words, "--out", out, "--jobs", "1", timeout=240, before=before)


@pytest.fixture(scope="session")
def grid(fedscal: Zygote, shared: Path) -> tuple[Path, str]:
    """A finished grid, and what the program said; not to be changed.

    Its cells are run without the seconds that a process of its own takes to start; the tests below that
    complete a grid start such processes, and must come to the same bits.
    """
    out, said = shared / "grid", shared / "grid.out"
    here = "import fedscal.compare.execute as c, fedscal.experiment.run as r\n"
    here += "c._run = lambda cell, running: r.adapt(cell.spec, cell.directory.path) and None"

    def make() -> None:
        ended = _compare(fedscal, out, before=here)
        assert ended.code == 0, ended.err
        said.write_text(ended.out)

    return once(out, make), said.read_text()


@pytest.fixture
def copy_of_grid(grid: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the finished grid."""
    return Path(shutil.copytree(grid[0], tmp_path / "grid"))


@pytest.mark.slow
def test_a_grid_becomes_a_table_of_means_and_deviations(grid: tuple[Path, str]) -> None:
    out, said = grid
    assert len(list(out.glob("*/summary.json"))) == CELLS
    table = (out / "comparison.md").read_text()
    for text in (said, table):
        assert re.search(r"Source only.*[0-9.]+ ± [0-9.]+", text)
        assert re.search(r"FedLoA.*[0-9.]+ ± [0-9.]+", text)
    assert "4 runs, 0 finished already, 1 at a time" in said
    assert "seeds 0, 1" in table
    labels = [run["row"] for run in json.loads((out / "comparison.json").read_text())]
    assert labels == ["Source only", "Source only", "FedLoA", "FedLoA"]
    page = (out / "comparison.html").read_text()
    for text in (said, table, page):
        assert "With 2 paired runs p cannot be below 0.5." in text
    found = [summary(path) for path in sorted(out.glob("a-*"))]
    assert len({(run["method"], run["seed"]) for run in found}) == CELLS


@pytest.mark.slow
def test_a_finished_grid_is_not_run_again(fedscal: Zygote, copy_of_grid: Path) -> None:
    out = copy_of_grid
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*.json*")}
    table = (out / "comparison.json").read_bytes()
    no_more_cells = "import fedscal.compare.execute as c; c._command = None"
    ended = _compare(fedscal, out, "--json", before=no_more_cells)
    assert ended.code == 0, ended.err
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*.json*")} == before
    assert len(json.loads(ended.out)) == CELLS
    assert (out / "comparison.json").read_bytes() == table


@pytest.mark.long
def test_a_killed_comparison_is_completed_by_repeating_the_command(
    fedscal: Zygote, grid: tuple[Path, str], copy_of_grid: Path
) -> None:
    """The parent alone is killed, as the kernel would; a run it had started must not be in the way.

    Two cells are there already, one is begun when the kill comes, and one is not.
    """
    out = copy_of_grid
    missing = list(out.glob("a-fedloa-*"))
    for folder in missing:
        shutil.rmtree(folder)
    child = fedscal.start("compare", *GRID, "--quiet", "--out", out, "--jobs", "1")
    until(lambda: any(judged(folder, 0) for folder in missing))
    child.send(signal.SIGKILL)
    assert child.wait().code == -signal.SIGKILL
    assert not all(folder.exists() for folder in missing)
    ended = _compare(fedscal, out)
    assert ended.code == 0, ended.err
    shas = [{summary(path)["weights_sha256"] for path in folder.glob("a-*")} for folder in (out, grid[0])]
    assert shas[0] == shas[1]
    assert len(list(out.glob("*/summary.json"))) == CELLS


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_comparison_ends_with_its_runs_in_the_middle_of_a_round(
    fedscal: Zygote, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "grid"
    words: Words = [*GRID, "methods=fedloa", "rounds=50", "local_epochs=10000", "--quiet", "--out", out]
    child = fedscal.start("compare", *words, "--jobs", "1")
    until(lambda: any(judged(run, 0) for run in out.glob("*")))
    cells = children(child.pid)
    assert len(cells) == 1
    child.send(number)
    try:
        assert child.wait().code == 128 + number
        assert not any(alive(pid) for pid in cells)
    finally:
        for pid in filter(alive, cells):
            os.kill(pid, signal.SIGKILL)
    (cell,) = out.glob("*/metrics.jsonl")
    assert len(rows(cell.parent)) == 1, "it did not wait for the round"


@pytest.mark.parametrize("axis", ["methods=fedloa,nope", "methods=fedlao"])
def test_a_wrong_method_is_refused_before_anything_runs(fedscal: Zygote, tmp_path: Path, axis: str) -> None:
    ended = fedscal("compare", *GRID, axis, "--out", tmp_path / "grid")
    assert ended.code == 2
    assert axis.rpartition(",")[2].rpartition("=")[2] in ended.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["lr=0.1,-1"], "(in the run method=source-only, seed=0, lr=-1)"),
        (["sources=b"], "sources and source are the same key"),
        (["--baseline", "fedscl"], "--baseline fedscl: neither a method nor a row"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    fedscal: Zygote, tmp_path: Path, words: list[str], named: str
) -> None:
    ended = fedscal("compare", *GRID, *words, "--out", tmp_path / "grid")
    assert ended.code == 2
    assert named in ended.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["lambda"], ["tau_init=0.7,0.8"], ["threshold", "seeds=0"]])
def test_what_spans_several_runs_is_no_single_run(fedscal: Zygote, tmp_path: Path, words: list[str]) -> None:
    ended = fedscal("run", *words, "--out", tmp_path / "run")
    assert ended.code == 2
    assert "use fedscal compare" in ended.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_axes_may_come_from_the_environment_and_a_cell_named_twice_is_one_cell(
    fedscal: Zygote, tmp_path: Path
) -> None:
    axes = {"FEDSCAL_METHODS": "source-only,source-only", "FEDSCAL_SEEDS": "0,0"}
    words: Words = [*TINY, "source=a", "rounds=1", "--out", tmp_path / "grid", "--jobs", "2"]
    ended = fedscal("compare", *words, env=axes)
    assert ended.code == 0, ended.err
    assert len(json.loads((tmp_path / "grid" / "comparison.json").read_text())) == 1
    assert not list(tmp_path.rglob("answers.json")), "the cells do not pay for what no page of them shows"


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_are_kept(fedscal: Zygote, copy_of_grid: Path) -> None:
    out = copy_of_grid
    victim = next(out.glob("a-fedloa-shot-s1-*"))
    shutil.rmtree(victim)
    victim.write_text("a file in its place")
    ended = _compare(fedscal, out)
    assert ended.code not in (0, 1)
    assert "1 of 4" in ended.error
    assert "fedloa from a, seed 1" in ended.error
    assert len(json.loads((out / "comparison.json").read_text())) == CELLS - 1
    assert victim.read_text() == "a file in its place"
