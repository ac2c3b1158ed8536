"""The progress of a grid of runs: by rounds, as the runs tell them, and never more than there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_report import make_lines

from fedscal.compare.execute import Cell, cells_of
from fedscal.compare.tally import Tally
from fedscal.core.files import only_process
from fedscal.experiment.announcer import PROGRESS
from fedscal.experiment.progress import Shown
from fedscal.experiment.spec import RunSpec


class Seen(Shown):
    """What a person would see."""

    def __init__(self) -> None:
        self.steps, self.text = 0, ""

    def advance(self) -> None:
        self.steps += 1

    def doing(self, text: str) -> None:
        self.text = text


def cell(out: Path, method: str, **keys: Any) -> Cell:
    return cells_of([RunSpec.make(method=method, rounds=4, **keys)], out)[0]


def says(cell: Cell, **now: Any) -> None:
    cell.directory.path.mkdir(exist_ok=True)
    told = {"started": 1.0, "since": 1.0, **now}
    (cell.directory.path / PROGRESS).write_text(json.dumps(told))


def test_rounds_count_as_they_are_done_and_all_of_them_at_the_end_of_a_run(tmp_path: Path) -> None:
    seen = Seen()
    cells = [cell(tmp_path, "fedscal"), cell(tmp_path, "fedloa"), cell(tmp_path, "source-only")]
    tally = Tally(cells, seen)
    assert tally.total == 4 + 4 + 1
    tally.look()
    assert (seen.steps, seen.text) == (0, "")
    with only_process(cells[0].directory.path):
        says(cells[0], stage="source model: mnist", done=7, total=12)
        tally.look()
        assert (seen.steps, seen.text) == (0, "fedscal from mnist, seed 0: source model: mnist")
        says(cells[0], stage="fedscal", done=2, total=4, round=3)
        tally.look()
        tally.look()
        assert (seen.steps, seen.text) == (2, "fedscal from mnist, seed 0: round 3")
    tally.end(cells[0])
    assert seen.steps == 4
    tally.end(cells[2])
    tally.end(cells[1])  # it may have failed: nothing of it is left to wait for
    assert seen.steps == tally.total
    tally.look()
    assert seen.text == ""


def test_rounds_on_record_are_not_done_again(tmp_path: Path) -> None:
    stopped = cell(tmp_path, "fedscal")
    says(stopped, done=1, round=2)  # by a process that was killed
    lines = [{**line, "warnings": [], "failures": {}} for line in make_lines()[:2]]
    for line in lines:
        for client in line["clients"].values():
            client["images"] = 10.0
    (stopped.directory.path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    seen = Seen()
    tally = Tally([stopped], seen)
    assert tally.total == 3
    tally.look()
    assert seen.steps == 0
    says(stopped, done=2, round=3)
    tally.look()
    assert seen.steps == 1


def test_more_runs_than_fit_are_counted(tmp_path: Path) -> None:
    cells = [cell(tmp_path, "fedloa", seed=seed) for seed in range(3)]
    seen = Seen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedscal.core.files.held", lambda path: True)
        for one in cells:
            says(one, round=1)
        Tally(cells, seen).look()
    assert seen.text == "fedloa from mnist, seed 0: round 1; fedloa from mnist, seed 1: round 1 and 1 more"
