"""The command that sets the paper's tables beside our own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from fedscal.cli import AllowCode, print_error
from fedscal.cli.jobs import Json, Out, Quiet, end_with, execute_cells, repeatable
from fedscal.cli.output import print_json, print_plain, progress, show_tables
from fedscal.core.errors import UsageError
from fedscal.core.extras import from_extra
from fedscal.experiment.spec import environment_keys, parse_assignments
from fedscal.models.custom import check_permission
from fedscal.paper import tables
from fedscal.paper.datasets import locate

if TYPE_CHECKING:
    from fedscal.paper.result import Drawn, Result

_QUIET = 0.5
"""Cores that may be busy beside runs that are timed."""
_TABLES = " | ".join(tables.TABLES)


def reproduce(
    name: Annotated[str, typer.Argument(metavar="TABLE", help=_TABLES, show_default=False)],
    words: Annotated[list[str] | None, typer.Argument(metavar="[key=value ...]", show_default=False)] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", metavar="DIR", help="Folder of a data set; once for each that is needed."),
    ] = None,
    out: Out = None,
    jobs: Annotated[int, typer.Option(help="Runs side by side; 0: as many as the cores allow.", min=0)] = 0,
    only_estimate: Annotated[
        bool, typer.Option("--estimate", help="Say how long it will take here, and stop.")
    ] = False,
    run: Annotated[bool, typer.Option(help="Run what is missing; or write what is finished.")] = True,
    quiet: Quiet = False,
    as_json: Json = False,
    allow_code: AllowCode = False,
) -> None:
    """Make a table of the paper: its numbers, ours, and the difference.

    Runs are finished one by one, over days if need be: repeat the command to go on. methods=, sources= and
    seeds= run a part of it; other keys stand over the paper's. Says NOT A REPRODUCTION where it is none.
    """
    blocks = tables.table(name)
    if name == "figures":
        _figures()  # what draws them may be missing: better known before anything is run
    if not data:
        raise UsageError(f"--data DIR is missing: {name} is made from the images of a data set.")
    if name == "cost" and jobs > 1:
        raise UsageError("the runs of cost are timed, so they are made one at a time: leave --jobs away.")
    jobs = 1 if name == "cost" else jobs
    out = out or Path("runs") / "reproduce"
    given = {**environment_keys(), **parse_assignments(words or [])}
    copies = locate(tables.datasets_of(blocks), data)
    entries = tables.entries(blocks, copies, given, out)
    for model in {entry.cell.spec.model for entry in entries}:
        check_permission(model)
    if only_estimate:
        _estimate(entries, jobs, as_json)
        return
    from fedscal.paper.result import Result, flaws

    reasons = flaws(entries, copies, given)

    def now() -> Result:
        return Result(name, entries, copies, reasons)

    now().write(out)  # what cannot be written is better known before the first run than after it
    cells, failed = tables.distinct_cells(entries), []
    if run and cells:
        if now().clocked:
            _warn_if_busy()
        with repeatable():
            failed = execute_cells(cells, jobs, quiet or as_json, lambda: now().write(out), out)
    _show(now(), out, quiet, as_json)
    end_with(failed, len(cells))


def _warn_if_busy() -> None:
    """Say that times will be off, where other programs compute too."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > _QUIET:
        print_error(
            f"warning: other programs keep {load:.1f} cores busy; seconds and ratios are worth something on "
            "a quiet machine only."
        )


def _figures() -> ModuleType:
    with from_extra("figures", "drawing the figures"):
        from fedscal.paper import figures
    return figures


def _estimate(entries: Sequence[tables.Entry], jobs: int, as_json: bool) -> None:
    from fedscal.paper.estimate import estimate
    from fedscal.runtime.local import worker_count

    with progress(as_json) as shown:
        shown.stage("timing one batch", len({entry.block.dataset for entry in entries}))
        found = estimate(entries, shown.advance)
    if as_json:
        print_json(found.document())
        return
    show_tables([found.table()], "time")
    threads = max((entry.cell.spec.threads for entry in entries), default=1)
    for sentence in found.sentences(worker_count(jobs, threads, len(entries))):
        print_plain(sentence)


def _drawn(result: Result, quiet: bool) -> list[Drawn]:
    figures = _figures()
    with progress(quiet) as shown:
        shown.stage("drawing", figures.FIGURES)
        drawn: list[Drawn] = figures.draw(result, shown.advance)
        return drawn


def _show(result: Result, out: Path, quiet: bool, as_json: bool) -> None:
    paths = result.write(out, _drawn(result, quiet or as_json) if result.name == "figures" else ())
    if as_json:
        print_json(result.document())
    elif not quiet:
        if result.heading:
            print_plain(result.heading)
        show_tables(result.tables(), result.unit)
        for note in result.notes():
            print_plain(note)
        print_plain(f"written: {', '.join(map(str, paths))}")
