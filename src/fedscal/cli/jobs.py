"""The commands that compute: run, compare, pretrain."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedscal.cli import AllowCode, going_on_by, print_error
from fedscal.cli.output import (
    Place,
    page_if_possible,
    print_json,
    print_plain,
    print_result,
    progress,
    show_tables,
)
from fedscal.compare import grid
from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.errors import UsageError, nearest, shortened, shown
from fedscal.core.options import Keys
from fedscal.data.folders.scan import scan
from fedscal.data.folders.tree import Tree, as_one_domain
from fedscal.data.registry import is_folder
from fedscal.experiment.advice import advice
from fedscal.experiment.spec import (
    DATA_KEYS,
    RunSpec,
    all_options,
    environment_keys,
    parse_assignments,
    read_recipe,
    refuse_changes,
)
from fedscal.models.custom import check_permission

if TYPE_CHECKING:
    from fedscal.compare.execute import Cell, Failed
    from fedscal.experiment.run_directory import RunDirectory


def _keys_like(incomplete: str) -> list[str]:
    """Return the keys that a shell may offer."""
    return [f"{name}=" for name in (*all_options(), *grid.SINGULAR) if name.startswith(incomplete)]


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [key=value ...]",
        help="A recipe, by its file or name, and settings.",
        show_default=False,
        autocompletion=_keys_like,
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="Directory to write to.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")]
Track = Annotated[
    str,
    typer.Option("--track", metavar="NAME,...", help="Follow it in tensorboard, mlflow or wandb."),
]


def layers(words: list[str] | None) -> tuple[Keys, dict[str, str], dict[str, str]]:
    """Return the keys of recipe, environment and command line, of which the later win."""
    words = list(words or [])
    recipe = words.pop(0) if words and "=" not in words[0] else None
    return named_recipe(recipe) if recipe else {}, environment_keys(), parse_assignments(words)


def gather(words: list[str] | None) -> dict[str, object]:
    """Join the keys of one run."""
    recipe, environment, assigned = layers(words)
    given = {**recipe, **environment, **assigned}
    grid.refuse_several(given)
    return given


def named_recipe(name: str) -> dict[str, object]:
    """Read a recipe: a TOML file, or one that comes with the package."""
    folder = resources.files("fedscal.experiment.recipes")
    shipped = {Path(entry.name).stem: entry for entry in folder.iterdir() if entry.name.endswith(".toml")}
    if name in shipped and not Path(name).exists():
        with resources.as_file(shipped[name]) as path:
            return read_recipe(path)
    if not Path(name).exists() and not name.endswith(".toml"):
        raise UsageError(f"'{shown(name)}' is neither key=value nor a recipe{nearest(name, shipped)}")
    return read_recipe(Path(name))


def run(
    words: Words = None,
    out: Out = None,
    resume_dir: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Go on with the run in DIR.")
    ] = None,
    report: Annotated[
        bool, typer.Option(help="Ask both models about the images at the end, and write report.html.")
    ] = True,
    track: Track = "",
    quiet: Quiet = False,
    as_json: Json = False,
    allow_code: AllowCode = False,
) -> None:
    """Adapt a source model to unlabelled clients; without arguments, the embedded default."""
    if resume_dir and out:
        raise UsageError("--resume goes on in its own directory: leave --out away.")
    if resume_dir:
        changes: dict[str, Any] = dict(parse_assignments(words or []))
        refuse_changes(changes)  # before one of them is taken for another parameter of resume
    else:
        spec = RunSpec.make(**gather(words))
        _say_model(spec, quiet or as_json)
    from fedscal.trackers import following

    place = resume_dir or out or default_out(spec)
    with following(track, resume_dir) as trackers:
        with resumable(place), progress(quiet or as_json) as shown:
            from fedscal.experiment.answering import Asking
            from fedscal.experiment.run import adapt, resume  # takes seconds, which are seen to pass

            told = () if quiet or as_json else (Place(place),)
            begun = partial(resume, **changes) if resume_dir else partial(adapt, spec)
            asking = (Asking(place, shown),) if report else ()
            directory = begun(place, *told, shown, *asking, *trackers)
        show(directory, report, quiet, as_json)


def resumable(place: Path, command: str = "fedscal run") -> AbstractContextManager[None]:
    """Name the command that goes on with a run if a signal ends it; none, before there is one or after it."""
    from fedscal.experiment.run_directory import RunDirectory

    def advice() -> str:
        found = RunDirectory(place)
        under_way = found.started and not found.finished
        return f"Go on with it: {command} --resume {shlex.quote(str(place))}" if under_way else ""

    return going_on_by(advice)


def repeatable(what: str = "Finished runs are kept; go on by repeating") -> AbstractContextManager[None]:
    """Name this very command if a signal ends it: repeated, it goes on."""
    return going_on_by(lambda: f"{what}: {shortened(command_line())}")


def command_line() -> str:
    """Return the command as it was typed."""
    return "fedscal " + shlex.join(sys.argv[1:])


def _say_model(spec: RunSpec, quiet: bool) -> None:
    """Say in one line which network somebody's own images are shown to."""
    if quiet or spec.source_model or not is_folder(spec.benchmark):
        return
    if spec.model == "convnet":
        print_error(
            "model: convnet, which learns from your images alone; pip install 'fedscal[efficientnet]' brings "
            "a pretrained one that adapts better."
        )
    else:
        frozen = ", its trunk frozen: features are computed once" if spec.trunk == "frozen" else ""
        print_error(f"model: {spec.model} at {spec.image_size or 224} pixels{frozen}")


def show(directory: RunDirectory, report: bool, quiet: bool, as_json: bool) -> None:
    """Write the report of a finished run and print what came of it."""
    from fedscal.report import write_report

    page = _page(lambda: write_report(directory.path), quiet or as_json) if report else None
    if as_json:
        print_json({**dump(directory.summary()), "directory": str(directory.path)})
    elif not quiet:
        print_result(directory.path)
        print_plain(f"run: {directory.path}    model: {directory.path / 'model'}")
        if page:
            print_plain(f"report: {page}")


def _page(write: Callable[[], Path], quiet: bool) -> Path | None:
    """Write a page, which takes seconds, where somebody sees that it is being done."""
    with progress(quiet) as shown:
        shown.stage("writing the page", 0)
        return page_if_possible(write)


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
    baseline: Annotated[
        str, typer.Option(metavar="NAME", help="Method or row to measure against; fedloa if it is there.")
    ] = "",
    track: Track = "",
    quiet: Quiet = False,
    as_json: Json = False,
    allow_code: AllowCode = False,
) -> None:
    """Run a grid: methods=a,b seeds=0,1 tau_init=0.7,0.8, any key; from all sources if none is given.

    Prints mean and deviation over the seeds, and what is better than the baseline by more than luck.
    Finished runs are not repeated and stopped ones resumed: repeat the command to go on.
    """
    specs = grid.union(*layers(words))
    for name in {spec.model for spec in specs}:
        check_permission(name)
    from fedscal.compare import tables as compare_tables
    from fedscal.compare.execute import cells_of
    from fedscal.report import write_comparison
    from fedscal.trackers import usable

    out = out or Path("runs") / f"compare-{specs[0].benchmark}"
    cells = cells_of(specs, out, usable(track))
    measured = compare_tables.find_baseline(cells, baseline)
    with repeatable():
        failed = execute_cells(cells, jobs, quiet or as_json, place=out)
    overall = compare_tables.overall_table(cells, measured)
    tables = compare_tables.all_tables(cells, overall)
    path = compare_tables.write_results(cells, out, command_line(), tables)
    finished = [cell.directory.path for cell in cells if cell.directory.finished]
    written = partial(write_comparison, finished, out / "comparison.html", overall)
    page = _page(written, quiet or as_json) if finished else None
    if as_json:
        print_json(compare_tables.summaries(cells))
    elif not quiet:
        show_tables(tables)
        print_plain(f"written: {', '.join(map(str, filter(None, (path, page))))}")
    end_with(failed, len(cells))


def execute_cells(
    cells: Sequence[Cell],
    jobs: int,
    quiet: bool,
    after: Callable[[], object] = lambda: None,
    place: Path | None = None,
) -> list[tuple[Cell, Failed]]:
    """Run what is not finished, with a bar, and return what failed; ``after`` is called after every run.

    ``place`` is named first, once no source can be refused any more.
    """
    left = [cell for cell in cells if not cell.directory.finished]
    with progress(quiet) as shown:
        from fedscal.compare.execute import execute
        from fedscal.compare.tally import Tally
        from fedscal.experiment.experiment import Experiment, find_data
        from fedscal.runtime.local import worker_count

        tally = Tally(left, shown)

        def done(cell: Cell) -> None:
            tally.end(cell)
            after()

        for spec in _different(left, (*DATA_KEYS, "source")):
            find_data(spec)  # a source that the data do not have is refused before anything is run
        say = (lambda text: None) if quiet else print_plain
        if place:
            say(f"runs: {place}")
        for spec in _different(left, DATA_KEYS):  # here, where progress is seen, and not in every cell
            Experiment.build(spec).prepare(shown)
        jobs = worker_count(jobs, max(cell.spec.threads for cell in cells), len(cells))
        finished = len(cells) - len(left)
        say(f"{len(cells)} runs, {finished} finished already, {jobs} at a time")
        shown.stage("rounds", tally.total)
        return execute(left, jobs, done, tally.look)


def _different(cells: Sequence[Cell], keys: Sequence[str]) -> list[RunSpec]:
    """Return one spec for every combination of these keys' values."""
    specs = [cell.spec for cell in cells]
    return list({tuple(getattr(spec, key) for key in keys): spec for spec in specs}.values())


def end_with(failed: Sequence[tuple[Cell, Failed]], runs: int) -> None:
    """End with the first failure's exit code, if there is one."""
    if failed:
        cell, first = failed[0]
        where = f"{cell.name} ({cell.directory.path.name})"
        print_error(f"error: {len(failed)} of {runs} runs failed, the first {where}: {first.reason}")
        raise typer.Exit(first.code)


def pretrain(
    words: Words = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Labelled images: DIR/<class>/*, or DIR/<domain>/<class>/* and source=."),
    ] = None,
    out: Out = None,
    quiet: Quiet = False,
    as_json: Json = False,
    allow_code: AllowCode = False,
) -> None:
    """Train the source model of a spec, or find it in the cache; say where it is, or copy it to --out."""
    given = gather(words)
    spec = RunSpec.make(**given) if data is None else _looked_at(data, given, quiet or as_json)
    if spec.source_model:
        raise UsageError("source_model is given: there is nothing to train.")
    _say_model(spec, quiet or as_json)
    anew = "Nothing of the training is kept; begin again"
    with repeatable(anew), progress(quiet or as_json) as shown:
        from fedscal.experiment.experiment import Experiment
        from fedscal.experiment.source import poorly_trained, source_folder, source_model, training_epochs

        experiment = Experiment.build(spec)
        experiment.prepare(shown)
        if not (quiet or as_json):
            print_plain(f"model folder: {out or source_folder(experiment)}")
        shown.stage(f"source model: {spec.source}", training_epochs(experiment))
        source = source_model(experiment, shown)
        if poor := poorly_trained(source.accuracy, len(experiment.data.classes)):
            shown.warn(poor)
    path = source.path
    if out is not None:
        path = out
        for file in sorted(source.path.iterdir()):
            files.write_bytes(out / file.name, file.read_bytes())
    if as_json:
        print_json({"path": str(path), "accuracy": source.accuracy, "cached": source.cached})
    elif not quiet:
        origin = "from the cache" if source.cached else f"trained in {source.seconds:.0f} s"
        print_plain(f"{spec.source}: {source.accuracy:.1f} % on held-out source images, {origin}\n{path}")


def _looked_at(folder: Path, given: Keys, quiet: bool) -> RunSpec:
    """Return the spec of a folder of source images, with the keys that its images advise; say which."""
    found = scan(folder.resolve())
    implied = _source_images(folder, found, given)
    spec = RunSpec.make(**{**implied, **given})
    tree = as_one_domain(found, spec.source)
    advised = [one for one in advice(tree, spec) if one.key not in given and not spec.source_model]
    for one in advised if not quiet else ():
        if one.value != getattr(spec, one.key):
            print_error(f"{one.key}={one.value}: {one.why}")
    return RunSpec.make(**{**implied, **{one.key: one.value for one in advised}, **given})


def _source_images(folder: Path, found: Tree, given: Keys) -> dict[str, str]:
    """Return the keys that a folder of source images implies: classes at once, or domains that have them."""
    if found.classes and len(found.domains) > 1 and "source" not in given:
        raise UsageError(f"{folder} holds several domains: give source={' or '.join(found.domains)}.")
    source = next(iter(found.domains)) if found.classes else found.root.name
    return {"benchmark": str(folder.resolve()), "source": source}
