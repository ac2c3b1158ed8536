"""How far the runs of a grid have come, round by round: a few long runs must not seem to stand still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedscal.compare.execute import Cell
from fedscal.core import files
from fedscal.core.errors import some
from fedscal.experiment.announcer import read_progress
from fedscal.experiment.progress import Shown
from fedscal.methods import METHODS

_NAMED = 2
"""Runs that go on whose doings fit behind a bar."""


@dataclass
class Tally:
    """Counts the rounds of cells that are to be run, without those on record, and tells them to ``shown``."""

    cells: Sequence[Cell]
    shown: Shown
    _recorded: dict[Path, int] = field(default_factory=dict)
    _ended: set[Path] = field(default_factory=set)
    _told: int = 0

    def __post_init__(self) -> None:
        rounds = {cell.directory.path: cell.directory.rounds() for cell in self.cells}
        self._recorded = {path: max(len(lines) - 1, 0) for path, lines in rounds.items()}

    @property
    def total(self) -> int:
        """The rounds that are left to do; a run without any counts as one."""
        return sum(self._left(cell) for cell in self.cells)

    def end(self, cell: Cell) -> None:
        """Count all rounds of a cell that has ended, be it by a failure."""
        self._ended.add(cell.directory.path)
        self._count()

    def look(self) -> None:
        """Count the rounds of the runs that go on, by what they say of themselves; tell what they do."""
        self._count()
        going_on = [self._doing(cell) for cell in self.cells if files.held(cell.directory.path)]
        self.shown.doing(some([text for text in going_on if text], _NAMED, "; "))

    def _count(self) -> None:
        done = sum(map(self._done, self.cells))
        for _ in range(done - self._told):
            self.shown.advance()
        self._told = max(self._told, done)

    def _left(self, cell: Cell) -> int:
        trains = METHODS[cell.spec.method].rule.trains
        return max(cell.spec.rounds - self._recorded[cell.directory.path], 1) if trains else 1

    def _done(self, cell: Cell) -> int:
        path = cell.directory.path
        if path in self._ended:
            return self._left(cell)
        now = read_progress(path)
        rounds = now.done if now and now.round is not None else 0
        return min(max(rounds - self._recorded[path], 0), self._left(cell))

    def _doing(self, cell: Cell) -> str:
        now = read_progress(cell.directory.path)
        if now is None:
            return ""
        return f"{cell.name}: {now.stage if now.round is None else f'round {now.round}'}"
