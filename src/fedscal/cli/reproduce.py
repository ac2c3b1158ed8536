"""The command that sets the paper's tables beside our own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from fedscal.cli import AllowCode, print_error
from fedscal.cli.jobs import Json, Out, Quiet, end_with, execute_cells, repeatable
from fedscal.cli.output import console, print_json, print_plain, progress, show_tables, table_of
from fedscal.core.errors import UsageError
from fedscal.core.extras import from_extra
from fedscal.core.options import Keys
from fedscal.experiment.spec import environment_keys, parse_assignments
from fedscal.models.custom import check_permission
from fedscal.paper import rehearsal, tables
from fedscal.paper.datasets import Copy, locate

if TYPE_CHECKING:
    from fedscal.compare.execute import Cell, Failed
    from fedscal.paper.result import Drawn, Result

_NAMES = f"{', '.join(tables.WHOLE)}; or one of the figures: {', '.join(tables.FIGURES)}."
_QUIET = 0.5
"""Cores that may be busy beside runs that are timed."""


_Share = Annotated[
    float | None,
    typer.Option(
        help=f"Of a rehearsal: share of the images to draw, {rehearsal.SHARE:g} if not given.",
        min=0.0001,
        max=1,
        show_default=False,
    ),
]


@dataclass(frozen=True)
class _Way:
    """How tables are made: where, how many runs at a time, whether anything is run, what is shown."""

    out: Path
    jobs: int
    run: bool
    quiet: bool
    as_json: bool

    @property
    def silent(self) -> bool:
        """Whether no progress is shown."""
        return self.quiet or self.as_json


@dataclass(frozen=True)
class _Made:
    """A table that was made: its last state, its files, and the runs that failed."""

    result: Result
    paths: Sequence[Path]
    failed: Sequence[tuple[Cell, Failed]]

    @property
    def page(self) -> Path:
        """Its page."""
        return next(path for path in self.paths if path.suffix == ".html")


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="TABLE", help=_NAMES, show_default=False)] = None,
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
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="Try it on drawn images; without TABLE, all tables and figures."),
    ] = False,
    share: _Share = None,
    quiet: Quiet = False,
    as_json: Json = False,
    allow_code: AllowCode = False,
) -> None:
    """Make a table or figure of the paper: its numbers, ours, and the difference.

    Runs are finished one by one, over days if need be: repeat the command to go on. methods=, sources= and
    seeds= run a part of it; other keys stand over the paper's. Says NOT A REPRODUCTION where it is none.
    """
    assigned = words or []
    if name and "=" in name:  # a rehearsal of all tables needs no name
        assigned, name = [name, *assigned], None
    names = [name] if name else list(tables.WHOLE) if rehearse else []
    _check(names, data, jobs, rehearse)
    if share and not rehearse:
        raise UsageError("--share is a rehearsal's: give --rehearse too.")
    given = {**environment_keys(), **parse_assignments(assigned)}
    place = out or Path("runs") / ("rehearsal" if rehearse else "reproduce")
    way = _Way(place, jobs, run, quiet, as_json)
    with rehearsal.own_cache(place) if rehearse else nullcontext():
        if rehearse:
            results = _rehearsals(names, given, share or rehearsal.SHARE, way)
        else:
            rehearsal.refuse(place)
            results = [_result(names[0], given, data or [], place)]
        if only_estimate:
            _estimate([entry for result in results for entry in result.entries], _jobs(names, jobs), as_json)
        else:
            _make(results, way)


def _check(names: Sequence[str], data: Sequence[Path] | None, jobs: int, rehearse: bool) -> None:
    """Refuse what cannot be made, before anything is read or drawn."""
    if not names:
        raise UsageError(f"TABLE is missing: {_NAMES} Or give --rehearse.")
    for name in names:
        tables.table(name)
    if any(map(tables.figures_of, names)):
        _figures()  # what draws them may be missing: better known before anything is run
    if rehearse and data:
        raise UsageError("--rehearse draws its own images: leave --data away.")
    if not (rehearse or data):
        raise UsageError(f"--data DIR is missing: {names[0]} is made from the images of a data set.")
    if names == ["cost"] and jobs > 1:
        raise UsageError("the runs of cost are timed, so they are made one at a time: leave --jobs away.")


def _jobs(names: Sequence[str], jobs: int) -> int:
    """Return how many runs are made at a time: those that are timed want the machine for themselves."""
    return 1 if list(names) == ["cost"] else jobs


def _result(name: str, given: Keys, data: Sequence[Path], out: Path) -> Result:
    """Return the present state of a table on somebody's data."""
    from fedscal.paper.result import flaws

    copies = locate(tables.datasets_of(tables.table(name)), data)
    result = _planned(name, given, copies, out)
    return replace(result, flaws=flaws(result.entries, copies, given))


def _planned(name: str, given: Keys, copies: Mapping[str, Copy], out: Path) -> Result:
    from fedscal.paper.result import Result

    entries = tables.entries(tables.table(name), copies, given, out)
    for model in {entry.cell.spec.model for entry in entries}:
        check_permission(model)
    return Result(name, entries, copies, ())


def _rehearsals(names: Sequence[str], given: Keys, share: float, way: _Way) -> list[Result]:
    """Draw what the tables are made from, and return their present states."""
    every = [block for name in names for block in tables.table(name)]
    keys = dict(given)
    tables.check_names(every, *(tables.chosen(keys, *pair) for pair in tables.CHOICES))
    rehearsal.claim(way.out)
    roots = _draw([block.dataset for block in every], share, way)
    results = []
    for name in names:
        blocks = tables.table(name)
        own = rehearsal.fitting(blocks, given) if len(names) > 1 else given
        if own is None:
            continue
        copies = locate(tables.datasets_of(blocks), [roots[data.name] for data in tables.datasets_of(blocks)])
        planned = _planned(name, rehearsal.keys(blocks, own, way.out), copies, way.out)
        results.append(replace(planned, flaws=[rehearsal.reason(share)], rehearsed=True))
    return results


def _draw(datasets: Sequence[str], share: float, way: _Way) -> dict[str, Path]:
    """Draw the trees of data sets as far as they are not there, and return where they are."""
    from fedscal.paper.datasets import DATASETS
    from fedscal.paper.stand_ins import announced, stand_in
    from fedscal.runtime.local import worker_count

    trees = {name: stand_in(name, way.out / "data", share) for name in dict.fromkeys(datasets)}
    missing = {name: found for name, tree in trees.items() if (found := tree.missing())}
    for name, pictures in missing.items():
        said = announced(DATASETS[name].title, pictures, trees[name].root)
        if not way.silent:
            print_plain(said)
    with repeatable("What is drawn is kept; go on by repeating"), progress(way.silent) as shown:
        for name, pictures in missing.items():
            shown.stage(f"drawing {DATASETS[name].title}", len(pictures))
            trees[name].draw(pictures, worker_count(0, 1, len(pictures)), shown.advance)
    return {name: tree.root for name, tree in trees.items()}


def _make(results: Sequence[Result], way: _Way) -> None:
    """Make the tables one after the other, show them, and end with the first failure."""
    made = [_made(result, way) for result in results]
    if way.as_json:
        documents = [one.result.document() for one in made]
        print_json(documents[0] if len(documents) == 1 else documents)
    elif not way.quiet:
        _show(made)
    cells = {cell.directory.path for one in made for cell in tables.distinct_cells(one.result.entries)}
    end_with([failure for one in made for failure in one.failed], len(cells))


def _made(result: Result, way: _Way) -> _Made:
    """Run what is missing of a table and write its files; they are written after every run, too."""
    result.write(way.out)  # what cannot be written is better known before the first run than after it
    cells, failed = tables.distinct_cells(result.entries), []
    if way.run and cells:
        if result.rehearsed and not way.silent:
            print_plain(f"rehearsal of {result.name}")
        if result.clocked:
            _warn_if_busy()
        with repeatable():
            failed = execute_cells(
                cells,
                _jobs([result.name], way.jobs),
                way.silent,
                lambda: replace(result).write(way.out),
                way.out,
            )
    now = replace(result)  # a result reads its runs once
    drawn = _drawn(now, way.silent) if tables.figures_of(now.name) else ()
    return _Made(now, now.write(way.out, drawn), failed)


def _warn_if_busy() -> None:
    """Say that times will be off, where other programs compute too."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > _QUIET:
        print_error(
            f"warning: this machine is busy (load {load:.1f}); seconds and ratios are worth something on a "
            "quiet one only."
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
        shown.stage("drawing", len(tables.figures_of(result.name)))
        drawn: list[Drawn] = figures.draw(result, shown.advance)
        return drawn


def _show(made: Sequence[_Made]) -> None:
    """Print a table; of several, which have come to their page."""
    result, paths = made[0].result, made[0].paths
    if result.heading:
        print_plain(result.heading)
    if len(made) > 1:
        rows = [[one.result.name, *map(str, one.result.run_counts()), str(one.page)] for one in made]
        console.print(table_of(["table", "runs", "finished", "page"], rows, "Rehearsed"))
        return
    show_tables(result.tables(), result.unit)
    for note in result.notes():
        print_plain(note)
    print_plain(f"written: {', '.join(map(str, paths))}")
