"""``fedscal compare``: many runs, one table, nothing run twice, nothing lost when it is stopped."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from harness import DIGITS, alive, children, start_program, summary, until

GRID = [*DIGITS, "rounds=1", "methods=source-only,fedloa", "seeds=0,1"]
CELLS = 4


def _compare(fedscal, out: Path, *words: str, **how):
    return fedscal("compare", *GRID, *words, "--out", out, "--jobs", "1", timeout=240, **how)


@pytest.fixture(scope="module")
def grid(fedscal, cache, tmp_path_factory):
    """A finished grid, and what the program said."""
    out = tmp_path_factory.mktemp("compare") / "grid"
    ended = _compare(fedscal, out)
    assert ended.code == 0, ended.err
    return out, ended


@pytest.mark.slow
def test_a_grid_becomes_a_table_of_means_and_deviations(grid):
    out, ended = grid
    assert len(list(out.glob("*/summary.json"))) == CELLS
    table = (out / "comparison.md").read_text()
    for text in (ended.out, table):
        assert re.search(r"Source only.*[0-9.]+ ± [0-9.]+", text)
        assert re.search(r"FedLoA.*[0-9.]+ ± [0-9.]+", text)
    assert "4 runs, 0 finished already, 1 at a time" in ended.out
    assert "seeds 0, 1" in table
    rows = [run["row"] for run in json.loads((out / "comparison.json").read_text())]
    assert rows == ["Source only", "Source only", "FedLoA", "FedLoA"]
    page = (out / "comparison.html").read_text()
    for text in (ended.out, table, page):
        assert "With 2 paired runs p cannot be below 0.5." in text
    found = [summary(path) for path in sorted(out.glob("mnist-*"))]
    assert len({(run["method"], run["seed"]) for run in found}) == CELLS


@pytest.mark.slow
def test_a_finished_grid_is_not_run_again(fedscal, grid):
    out, _ = grid
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*.json*")}
    table = (out / "comparison.json").read_bytes()
    started = time.monotonic()
    ended = _compare(fedscal, out, "--json")
    assert ended.code == 0, ended.err
    assert time.monotonic() - started < 5
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/*.json*")} == before
    assert len(json.loads(ended.out)) == CELLS
    assert (out / "comparison.json").read_bytes() == table


@pytest.mark.slow
def test_a_killed_comparison_is_completed_by_repeating_the_command(fedscal, cache, grid, tmp_path):
    """The parent alone is killed, as the kernel would; a run it had started must not be in the way."""
    out = tmp_path / "grid"
    words = ["compare", *GRID, "--quiet", "--out", str(out), "--jobs", "1"]
    with start_program(cache, *words) as process:
        until(lambda: list(out.glob("*/checkpoints/round-0000")))
        process.kill()
    ended = _compare(fedscal, out)
    assert ended.code == 0, ended.err
    shas = [{summary(path)["weights_sha256"] for path in folder.glob("mnist-*")} for folder in (out, grid[0])]
    assert shas[0] == shas[1]
    assert len(list(out.glob("*/summary.json"))) == CELLS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_comparison_ends_within_five_seconds_with_its_runs(cache, tmp_path, number):
    out = tmp_path / "grid"
    words = [*GRID, "methods=fedloa", "rounds=50", "local_epochs=200", "--quiet", "--out", str(out)]
    with start_program(cache, "compare", *words, "--jobs", "1") as process:
        until(lambda: list(out.glob("*/checkpoints/round-0000")))
        runs = children(process.pid)
        assert len(runs) == 1
        process.send_signal(number)
        try:
            code = process.wait(8)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            for pid in [*children(process.pid), *runs]:
                if alive(pid):
                    code = None
                    subprocess.run(["kill", "-9", str(pid)], check=False)
            process.kill()
    assert code == 130


@pytest.mark.parametrize("axis", ["methods=fedloa,nope", "methods=fedlao"])
def test_a_wrong_method_is_refused_before_anything_runs(fedscal, tmp_path, axis):
    ended = fedscal("compare", *GRID, axis, "--out", tmp_path / "grid")
    assert ended.code == 2
    assert axis.rpartition(",")[2].rpartition("=")[2] in ended.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["lr=0.1,-1"], "(in the run method=source-only, seed=0, lr=-1)"),
        (["sources=font"], "sources and source are the same key"),
        (["--baseline", "fedscl"], "--baseline fedscl: neither a method nor a row"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(fedscal, tmp_path, words, named):
    ended = fedscal("compare", *GRID, *words, "--out", tmp_path / "grid")
    assert ended.code == 2
    assert named in ended.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["lambda"], ["tau_init=0.7,0.8"], ["threshold", "seeds=0"]])
def test_what_spans_several_runs_is_no_single_run(fedscal, tmp_path, words):
    ended = fedscal("run", *words, "--out", tmp_path / "run")
    assert ended.code == 2
    assert "use fedscal compare" in ended.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_cell_named_twice_is_one_cell(fedscal, cache, tmp_path):
    words = [*DIGITS, "methods=source-only,source-only", "seeds=0,0"]
    ended = fedscal("compare", *words, "--out", tmp_path / "grid", "--jobs", "2")
    assert ended.code == 0, ended.err
    assert len(json.loads((tmp_path / "grid" / "comparison.json").read_text())) == 1


@pytest.mark.slow
def test_the_axes_may_come_from_the_environment(fedscal, cache, tmp_path):
    words = [*DIGITS, "--out", tmp_path / "grid"]
    ended = fedscal("compare", *words, env={"FEDSCAL_METHODS": "source-only", "FEDSCAL_SEEDS": "0"})
    assert ended.code == 0, ended.err


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_are_kept(fedscal, grid, tmp_path):
    out = Path(shutil.copytree(grid[0], tmp_path / "grid"))
    victim = next(out.glob("mnist-fedloa-shot-s1-*"))
    shutil.rmtree(victim)
    victim.write_text("a file in its place")
    ended = _compare(fedscal, out)
    assert ended.code not in (0, 1)
    assert "1 of 4" in ended.error
    assert "fedloa from mnist, seed 1" in ended.error
    assert len(json.loads((out / "comparison.json").read_text())) == CELLS - 1
    assert victim.read_text() == "a file in its place"
