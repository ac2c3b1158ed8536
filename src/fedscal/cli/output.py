"""What a person sees: progress while it runs, tables when it is done."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedscal.core.errors import UsageError
from fedscal.core.table import Table as TextTable
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.metrics import in_short
from fedscal.experiment.progress import Lines, Shown
from fedscal.methods import described

if TYPE_CHECKING:
    from fedscal.experiment.load import Run
    from fedscal.experiment.pretrain import Epoch
    from fedscal.experiment.records import RoundRecord
    from fedscal.server.rule import ServerState

console = Console()
_WHOLE_STAGE = 1e9
"""Seconds that the time left is reckoned from: all, as one round or run may take hours."""
_BAR = 24
"""Characters of a bar: in 80 columns there is room for a note."""
_TONES = {"better": "green", "worse": "bold red", "same": "yellow", "unsure": "yellow", "unknown": "yellow"}


def print_plain(text: str) -> None:
    """Print text as it is: paths unwrapped, names without markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value for a program."""
    console.file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def page_if_possible(write: Callable[[], Path]) -> Path | None:
    """Write a page; without the extra that it needs, say so: what was computed is there without it."""
    try:
        return write()
    except UsageError as error:
        logging.getLogger(__name__).warning("no page: %s", error)
        return None


class Bar(Shown):
    """Progress bars in a terminal: the stage, its steps, the time left, the last round's accuracy."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        rest = Column(ratio=1, no_wrap=True)  # whatever there is to note must not press out the rest
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(_BAR),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[note]}", markup=False, table_column=rest),
            console=console,
            speed_estimate_period=_WHOLE_STAGE,
            expand=True,
        )
        self._names: list[str] = []
        self._last = ""
        self._task = self._progress.add_task("starting", total=None, note="")
        self._progress.start()

    def stage(self, name: str, total: int) -> None:
        """Begin a new bar; the one before is done, or goes if it had no end."""
        self._leave()
        self._task = self._progress.add_task(name, total=total or None, note="")

    def advance(self) -> None:
        """Move the bar."""
        self._progress.advance(self._task)

    def epoch(self, done: Epoch) -> None:
        """Show how source training goes."""
        self.doing(str(done))

    def doing(self, text: str) -> None:
        """Show it behind the bar."""
        self._progress.update(self._task, note=text)

    def client(self, client: str) -> None:
        """Show who has answered since the last round."""
        self._names.append(client)
        self._progress.update(self._task, note=f"{self._last}  {' '.join(self._names)}")

    def round(self, record: RoundRecord, state: ServerState | None) -> None:
        """Move the bar and show the round's result."""
        self._names, self._last = [], in_short(record)
        self._progress.update(self._task, completed=record.round, note=self._last)

    def warn(self, text: str) -> None:
        """Print a warning above the bars."""
        self._progress.console.print(Text(f"warning: {text}", style="yellow"))

    def close(self) -> None:
        """Leave the bars on the screen as they are, but none that had no end."""
        if self._total() is None:
            self._leave()
        self._progress.stop()

    def _total(self) -> float | None:
        return next(task.total for task in self._progress.tasks if task.id == self._task)

    def _leave(self) -> None:
        """Take the bar as done, or away if it had no end."""
        total = self._total()
        if total is None:
            self._progress.remove_task(self._task)
        else:
            self._progress.update(self._task, completed=total)


class Place(Callback):
    """Names the directory of a run as soon as it is known that the run can be: at its first stage."""

    def __init__(self, path: Path) -> None:
        self._path: Path | None = path

    def stage(self, name: str, total: int) -> None:
        """Print it once, above the bars."""
        if self._path:
            print_plain(f"run: {self._path}")
        self._path = None


@contextmanager
def progress(quiet: bool) -> Iterator[Shown]:
    """Show progress as it suits the terminal: bars, lines, or nothing."""
    if quiet or not console.is_terminal:
        yield Shown() if quiet else Lines(print_plain)
        return
    bar = Bar()
    try:
        yield bar
    finally:
        bar.close()


def print_result(path: Path) -> None:
    """Print source-only -> adapted for every domain, and the verdict in a sentence."""
    from fedscal.experiment.load import load_run
    from fedscal.experiment.outcome import outcome
    from fedscal.report.verdict import judge

    run = load_run(path)
    verdict = judge(run)
    if outcome(run).accuracy.labelled:
        console.print(_result_table(run))
    print_verdict(verdict.headline, verdict.tone)
    for sentence in verdict.details:
        console.print(Text(sentence))
    if verdict.commands:
        print_plain("\n".join(["next:", *(f"  {command}" for command in verdict.commands)]))


def print_verdict(sentence: str, tone: str) -> None:
    """Print a verdict in its colour; the words say it too."""
    console.print(Text(sentence, style=_TONES[tone]))


def _result_table(run: Run) -> Table:
    from fedscal.experiment.outcome import domain_rows, outcome
    from fedscal.experiment.records import AVERAGE

    source, result = run.fact("source") or "a given model", outcome(run)
    title = f"{described(run.fact('method'))} from {source}, seed {run.fact('seed')}: accuracy in %"
    selected, best = f"selected (round {result.selected_round})", f"oracle best ({result.best_round})"
    table = Table("domain", "source-only", "last round", "change", selected, best, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in domain_rows(run):
        change = Text(f"{row.after - row.before:+.1f}", style="red" if row.after < row.before else "green")
        others = [f"{value:.1f}" for value in (row.selected, row.best)]
        cells: list[str | Text] = [f"{row.before:.1f}", f"{row.after:.1f}", change, *others]
        table.add_row(Text(row.name), *cells, end_section=row.name != AVERAGE)
    return table


def show_tables(tables: Sequence[TextTable], unit: str = "accuracy in %") -> None:
    """Print tables with their notes."""
    for table in tables:
        console.print(table_of(table.header, table.rows, f"{table.title}, {unit}"))
        for note in table.notes:
            print_plain(note)


def table_of(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Return a table of plain text."""
    table = Table(*header, title=title or None)
    for row in rows:
        # A long word goes on in the next line: a command that is cut off cannot be copied.
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    return table
