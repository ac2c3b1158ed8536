"""The commands around a run on one's own images: init before it; audit, predict and export after it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedscal.cli import AllowCode, print_error
from fedscal.cli.output import (
    console,
    page_if_possible,
    print_json,
    print_plain,
    print_verdict,
    progress,
    table_of,
)
from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.errors import UsageError
from fedscal.data.folders.scan import scan
from fedscal.experiment.first_recipe import first_recipe
from fedscal.models.store import find_model

if TYPE_CHECKING:
    from fedscal.deploy.predict import Answer

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A run directory, or a model's .safetensors.")]
Network = Annotated[
    str,
    typer.Option(
        "--model", help="The name of its network here, if not the card's: hf:<folder> may have moved."
    ),
]
Site = Annotated[str, typer.Option("--site", help="Use the statistics that the run kept for this site.")]


class Format(StrEnum):
    """What a model can be written as."""

    ONNX = "onnx"
    SAFETENSORS = "safetensors"


class Device(StrEnum):
    """Where a model can compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


def init(
    folder: Annotated[Path, typer.Argument(help="A folder of domains with classes, or of sites without.")],
    out: Annotated[Path, typer.Option("--out", help="The recipe to write.")] = Path("fedscal.toml"),
) -> None:
    """Look at a folder and write a recipe for it, with comments."""
    if out.exists():
        raise UsageError(f"{out} is there already; give another --out.")
    files.write_bytes(out, first_recipe(scan(folder)).encode())
    print_plain(f"{out}\nlook into it, then: fedscal run {out}")


def predict(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="Images: a file, or a folder with whatever is below it.")],
    out: Annotated[Path | None, typer.Option("--out", help="The CSV to write; default: the screen.")] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.AUTO,
    site: Site = "",
    network: Network = "",
    allow_code: AllowCode = False,
) -> None:
    """Ask a model about images: file, label, confidence, and what is wrong with files that are none.

    A model whose sites have statistics of their own takes those of these images, if they are enough.
    """
    from fedscal.deploy.predict import ask, files_at, write_csv
    from fedscal.deploy.use import load, reservations, take_statistics

    classifier, paths = load(model, device.value, network), files_at(folder)
    for text in reservations(classifier):
        _warn(text)
    said, doubt = take_statistics(classifier, paths, site)
    if said:
        print_error(f"{classifier.path.name} {said}")
    if doubt:
        _warn(doubt)
    if out is None:
        problems = write_csv(ask(classifier, paths), sys.stdout)
    else:
        files.make_dir(out.parent)
        with files.writing(out), out.open("w", newline="") as file:
            problems = write_csv(_shown(ask(classifier, paths), len(paths)), file)
        print_plain(str(out))
    if problems:
        print_error(f"{problems} files are no whole images; the column 'problem' says why.")


def _warn(text: str) -> None:
    print_error(f"warning: {text}")


def _shown(answers: Iterable[Answer], total: int) -> Iterator[Answer]:
    """Pass the answers on, and show how many there have been."""
    with progress(quiet=False) as shown:
        shown.stage("images", total)
        for answer in answers:
            shown.advance()
            yield answer


def audit(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="Labelled images: <site>/<class>/*, or <class>/*.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.AUTO,
    network: Network = "",
    allow_code: AllowCode = False,
) -> None:
    """Check a model on a few labelled images, beside the source model if it is a run's; nothing is trained.

    It ends in a sentence. The numbers are kept in the run directory (audit.json); report and model card show
    them, and runs that were audited on the same images can be compared: fedscal report RUN RUN.
    """
    from fedscal.deploy import use

    found = use.audit(model, folder, device=device.value, network=network, say=_warn)
    page = _renewed(find_model(model).parent.parent)
    if as_json:
        print_json(dump(found))
        return
    table = found.table()
    console.print(table_of(table.header, table.rows, table.title))
    print_plain("\n".join(table.notes))
    print_verdict(found.sentence, found.verdict)
    if page:
        print_plain(f"report: {page}")


def _renewed(run: Path) -> Path | None:
    """Write a report that is there anew: the old one does not know of the audit."""
    from fedscal.report import write_report

    there = (run / "report.html").exists() and (run / "spec.toml").exists()
    return page_if_possible(lambda: write_report(run)) if there else None


def export(
    model: Model,
    format_: Annotated[Format, typer.Option("--format", help="onnx or safetensors.")] = Format.ONNX,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file to write; if not given, named like the model.")
    ] = None,
    site: Site = "",
    network: Network = "",
    force: Annotated[bool, typer.Option("--force", help="Write over other files that are there.")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Write a model for other programs, with a model card (.md) beside it.

    An ONNX file is compared with the model before it is written.
    """
    from fedscal.deploy import use

    made = use.export(model, out, to=format_.value, site=site, network=network, force=force, say=_warn)
    print_plain(f"{made.card}\n{made.note}")
