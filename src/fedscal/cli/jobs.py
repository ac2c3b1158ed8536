"""The commands that compute: run, compare, pretrain."""

from __future__ import annotations

import logging
import shlex
import sys
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from fedscal import compare as grids
from fedscal.cli import output
from fedscal.cli.output import console, print_error, print_plain
from fedscal.data.registry import benchmark
from fedscal.drivers.in_process import worker_count
from fedscal.errors import UsageError, nearest
from fedscal.record import RunDirectory
from fedscal.report import write_comparison, write_report
from fedscal.run import adapt, resume
from fedscal.source import source_model
from fedscal.spec import RunSpec, environment_keys, parse_assignments, read_recipe

Words = Annotated[list[str] | None, typer.Argument(metavar="[RECIPE] [key=value ...]", show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", help="Directory to write to.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")]


def gather(words: list[str] | None) -> dict[str, Any]:
    """Join recipe, environment and command line, the later winning."""
    words = list(words or [])
    recipe = words.pop(0) if words and "=" not in words[0] else None
    return {**(named_recipe(recipe) if recipe else {}), **environment_keys(), **parse_assignments(words)}


def named_recipe(name: str) -> dict[str, Any]:
    """Read a recipe: a TOML file, or one that comes with the package."""
    folder = resources.files("fedscal.recipes")
    shipped = {Path(entry.name).stem: entry for entry in folder.iterdir() if entry.name.endswith(".toml")}
    if name in shipped and not Path(name).exists():
        with resources.as_file(shipped[name]) as path:
            return read_recipe(path)
    if not Path(name).exists() and not name.endswith(".toml"):
        raise UsageError(f"'{name}' is neither key=value nor a recipe{nearest(name, shipped)}")
    return read_recipe(Path(name))


def run(
    words: Words = None,
    out: Out = None,
    resume_dir: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Go on with the run in DIR.")
    ] = None,
    report: Annotated[bool, typer.Option(help="Write report.html at the end.")] = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Adapt a source model to unlabelled clients; without arguments, the embedded default."""
    if resume_dir and out:
        raise UsageError("--resume goes on in its own directory: leave --out away.")
    listener = output.listener(quiet or as_json)
    try:
        if resume_dir:
            directory = resume(resume_dir, listener, **parse_assignments(words or []))
        else:
            spec = RunSpec.make(**gather(words))
            directory = adapt(spec, out or default_out(spec), listener)
    finally:
        listener.close()
    _show(directory, report, quiet, as_json)


def _show(directory: RunDirectory, report: bool, quiet: bool, as_json: bool) -> None:
    page = _report(directory.path) if report else None
    if as_json:
        output.print_json({**directory.summary(), "directory": str(directory.path)})
    elif not quiet:
        output.print_result(directory.path)
        print_plain(f"run: {directory.path}    model: {directory.path / 'model'}")
        if page:
            print_plain(f"report: {page}")


def _report(path: Path) -> Path | None:
    try:
        return write_report(path)
    except UsageError as error:  # the report is an extra: the run is done without it
        logging.getLogger(__name__).warning("no report: %s", error)
        return None


def default_out(spec: RunSpec) -> Path:
    """Return a new directory name below ``runs/``."""
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return (
        Path("runs") / f"{spec.source}-{spec.method}-{spec.adaptation}-s{spec.seed}-{now}-{spec.digest()[:6]}"
    )


def compare(
    words: Words = None,
    out: Out = None,
    jobs: Annotated[int, typer.Option(help="Runs side by side; 0: as many as the cores allow.", min=0)] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run methods=a,b,c from sources=x,y (default: all) with seeds=0,1,2; print mean and deviation.

    Finished runs are not repeated and stopped ones resumed: repeat the command to go on.
    """
    given = gather(words)
    methods, sources, seeds = _axes(given)
    base = RunSpec.make(**given)
    out = out or Path("runs") / f"compare-{base.benchmark}"
    cells = grids.grid(base, methods, sources or list(benchmark(base.benchmark).domains), seeds, out)
    failed = _execute(cells, jobs, quiet or as_json)
    path = grids.write_results(cells, out, "fedscal " + shlex.join(sys.argv[1:]))
    finished = [cell.directory.path for cell in cells if cell.directory.finished]
    if finished:
        write_comparison(finished, out / "comparison.html")
    if as_json:
        output.print_json([cell.directory.summary() for cell in cells if cell.directory.finished])
    elif not quiet:
        for source, header, rows in grids.tables(cells):
            console.print(output.table_of(header, rows, f"source: {source}, accuracy in %"))
        print_plain(f"written: {path}, {out / 'comparison.html'}")
    if failed:
        name, first = next(iter(failed.items()))
        print_error(f"error: {len(failed)} of {len(cells)} runs failed, the first {name}: {first.reason}")
        raise typer.Exit(first.code)


def _axes(given: dict[str, Any]) -> tuple[list[str], list[str], list[int]]:
    """Take the lists that span the grid out of the given keys."""
    listed = {name: _listed(given.pop(name, "")) for name in ("methods", "sources", "seeds")}
    methods = listed["methods"] or [str(given.pop("method", RunSpec.method))]
    sources = listed["sources"] or ([str(given["source"])] if "source" in given else [])
    try:
        seeds = [int(seed) for seed in listed["seeds"] or [given.pop("seed", 0)]]
    except ValueError:
        raise UsageError(f"seeds={','.join(listed['seeds'])}: needs whole numbers") from None
    return methods, sources, seeds


def _listed(value: Any) -> list[str]:
    items = value if isinstance(value, list) else str(value).split(",")
    return list(dict.fromkeys(str(item).strip() for item in items if str(item).strip()))


def _execute(cells: list[grids.Cell], jobs: int, quiet: bool) -> dict[str, grids.Failed]:
    jobs = worker_count(jobs, cells[0].spec.threads, len(cells))
    listener = output.listener(quiet)
    listener.stage(f"{len(cells)} runs, {jobs} at a time", len(cells))
    try:
        return grids.execute(cells, jobs, lambda cell: listener.advance())
    finally:
        listener.close()


def pretrain(words: Words = None, quiet: Quiet = False, as_json: Json = False) -> None:
    """Train the source model of a spec, or find it in the cache; say where it is."""
    spec = RunSpec.make(**gather(words))
    listener = output.listener(quiet or as_json)
    listener.stage(f"source model: {spec.source}", spec.pretrain_epochs)
    try:
        source = source_model(spec, listener.advance)
    finally:
        listener.close()
    if as_json:
        output.print_json({"path": str(source.path), "accuracy": source.accuracy, "cached": source.cached})
    elif not quiet:
        origin = "from the cache" if source.cached else f"trained in {source.seconds:.0f} s"
        text = f"{spec.source}: {source.accuracy:.1f} % on held-out source images, {origin}\n{source.path}"
        print_plain(text)
