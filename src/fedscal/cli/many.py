"""What the commands with many runs share: run them, show their tables, say what failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

from fedscal.cli import output, print_error
from fedscal.cli.output import console, print_plain
from fedscal.core.table import Table
from fedscal.experiment.spec import DATA_KEYS, RunSpec

if TYPE_CHECKING:
    from fedscal.compare.execute import Cell, Failed


def execute_cells(
    cells: Sequence[Cell], jobs: int, quiet: bool, after: Callable[[], object] = lambda: None
) -> list[tuple[Cell, Failed]]:
    """Run what is not finished, with a bar; return what failed.

    Args:
        cells: the runs.
        jobs: how many at a time; 0: as many as the cores allow.
        quiet: show nothing.
        after: called after every run.
    """
    from fedscal.compare.execute import execute
    from fedscal.experiment.experiment import load_data
    from fedscal.experiment.local import prepare_data
    from fedscal.runtime.local import worker_count

    left = [cell for cell in cells if not cell.directory.finished]
    jobs = worker_count(jobs, max(cell.spec.threads for cell in cells), len(cells))
    listener = output.listener(quiet)
    finished = len(cells) - len(left)

    def done(cell: Cell) -> None:
        listener.advance()
        after()

    try:
        for spec in _different(left, (*DATA_KEYS, "source")):
            load_data(spec)  # a source that the data do not have is refused before anything is run
        for spec in _different(left, DATA_KEYS):  # here, where progress is seen, and not in every cell
            prepare_data(load_data(spec), listener)
        listener.stage(f"{len(cells)} runs, {finished} finished already, {jobs} at a time", len(left))
        return execute(left, jobs, done)
    finally:
        listener.close()


def _different(cells: Sequence[Cell], keys: Sequence[str]) -> list[RunSpec]:
    """Return one spec for every combination of these keys' values."""
    specs = [cell.spec for cell in cells]
    return list({tuple(getattr(spec, key) for key in keys): spec for spec in specs}.values())


def show_tables(tables: Sequence[Table], unit: str = "accuracy in %") -> None:
    """Print tables with their notes."""
    for table in tables:
        console.print(output.table_of(table.header, table.rows, f"{table.title}, {unit}"))
        for note in table.notes:
            print_plain(note)


def end_with(failed: Sequence[tuple[Cell, Failed]], runs: int) -> None:
    """End with the first failure's exit code, if there is one."""
    if failed:
        cell, first = failed[0]
        where = f"{cell.name} ({cell.directory.path.name})"
        print_error(f"error: {len(failed)} of {runs} runs failed, the first {where}: {first.reason}")
        raise typer.Exit(first.code)
