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
from fedscal.core.errors import UsageError, some
from fedscal.data.folders.scan import scan
from fedscal.experiment.audits import AUDIT
from fedscal.experiment.first_recipe import first_recipe

if TYPE_CHECKING:
    from fedscal.deploy.classifier import Classifier
    from fedscal.deploy.predict import Answer
    from fedscal.experiment.audits import Audit
    from fedscal.experiment.load import Run

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A run directory, or a model's .safetensors.")]
Network = Annotated[
    str,
    typer.Option(
        "--model", help="The name of its network here, if not the card's: hf:<folder> may have moved."
    ),
]
Site = Annotated[str, typer.Option("--site", help="Use the statistics that the run kept for this site.")]
_CHECKED = 256


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
    from fedscal.deploy.card import run_of
    from fedscal.deploy.classifier import Classifier
    from fedscal.deploy.predict import ask, files_at, write_csv
    from fedscal.deploy.site import doubt_images, use_images, use_site

    classifier, paths = Classifier.open(model, device.value, network), files_at(folder)
    _warn(classifier, run_of(classifier))
    said = use_site(classifier, site) if site else ""
    doubt = doubt_images(classifier, paths)  # before the images' own statistics are in use
    if said := said or use_images(classifier, paths):
        print_error(f"{classifier.path.name} {said}")
    if doubt:
        print_error(f"warning: {doubt}")
    if out is None:
        problems = write_csv(ask(classifier, paths), sys.stdout)
    else:
        with files.writing(out), out.open("w", newline="") as file:
            problems = write_csv(_shown(ask(classifier, paths), len(paths)), file)
        print_plain(str(out))
    if problems:
        print_error(f"{problems} files are no whole images; the column 'problem' says why.")


def _warn(classifier: Classifier, run: Run | None) -> None:
    from fedscal.deploy.card import doubts

    for text in doubts(classifier, run) if run else ():
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
    from fedscal.deploy.audit import audit as audited
    from fedscal.deploy.audit import trained_files
    from fedscal.deploy.card import run_of
    from fedscal.deploy.classifier import Classifier

    classifier = Classifier.open(model, device.value, network)
    run = run_of(classifier)
    _warn(classifier, run)
    before = classifier.path.with_name("source.safetensors")
    known = before.exists() and before != classifier.path
    source = Classifier.open(before, device.value, network) if known else None
    found = audited(classifier, source, folder, trained_files(run))
    page = _keep(found, run) if run else None
    if as_json:
        print_json(dump(found))
        return
    table = found.table()
    console.print(table_of(table.header, table.rows, table.title))
    print_plain("\n".join(table.notes))
    print_verdict(found.sentence, found.verdict)
    if page:
        print_plain(f"report: {page}")


def _keep(found: Audit, run: Run) -> Path | None:
    """Write an audit into its run, and a report that is there anew: the old one does not know of it."""
    from fedscal.report import write_report

    files.write_json(run.path / AUDIT, dump(found))
    there = (run.path / "report.html").exists()
    return page_if_possible(lambda: write_report(run.path)) if there else None


def export(
    model: Model,
    format_: Annotated[Format, typer.Option("--format", help="onnx or safetensors.")] = Format.ONNX,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write.")] = None,
    site: Site = "",
    network: Network = "",
    allow_code: AllowCode = False,
) -> None:
    """Write a model for other programs, with a model card (.md) beside it.

    An ONNX file is compared with the model before it is written.
    """
    from fedscal.deploy.card import card_text, run_of
    from fedscal.deploy.classifier import Classifier
    from fedscal.deploy.onnx import require_onnx
    from fedscal.deploy.site import sites_of, use_site

    if format_ is Format.ONNX:
        require_onnx()
    classifier = Classifier.open(model, model=network)
    run = run_of(classifier)
    _warn(classifier, run)
    if site:
        use_site(classifier, site)
    elif known := sites_of(classifier):
        print_error(f"warning: with the source's statistics; --site gives it those of {some(list(known), 3)}")
    stem = f"{classifier.path.stem}-{site}" if site else classifier.path.stem
    path = out or Path(f"{stem}.{format_.value}")
    if out is None:
        _refuse_anothers(path, classifier)
    card = card_text(classifier, run).encode()
    said = _as_onnx(classifier, path) if format_ is Format.ONNX else _as_safetensors(classifier, path)
    files.write_bytes(path.with_suffix(".md"), card)  # last: no card without its model
    print_plain(f"{path.with_suffix('.md')}\n{said}")


def _refuse_anothers(path: Path, classifier: Classifier) -> None:
    """Refuse a name that was not asked for if it is taken, unless by an earlier export of the same model."""
    taken = [file for file in (path, path.with_suffix(".md"), path.with_suffix(".json")) if file.exists()]
    card = path.with_suffix(".md")
    same = card.is_file() and classifier.card.weights_sha256 in card.read_text(errors="replace")
    if taken and not same:
        raise UsageError(f"{taken[0]} is there already, and not of this model; give another name with --out.")


def _as_onnx(classifier: Classifier, path: Path) -> str:
    import torch

    from fedscal.core.rng import stream
    from fedscal.deploy.onnx import export_onnx

    size = (_CHECKED, *classifier.shape)
    sample = torch.randint(256, size, generator=stream(0, "parity"), dtype=torch.uint8)
    gap = export_onnx(classifier, path, sample)
    return f"{path}: same class on {_CHECKED} images, logits within {gap:.1g} of the model's"


def _as_safetensors(classifier: Classifier, path: Path) -> str:
    files.write_bytes(path, classifier.path.read_bytes())
    files.write_json(path.with_suffix(".json"), dump(classifier.card))
    return f"{path}\n{path.with_suffix('.json')}"
