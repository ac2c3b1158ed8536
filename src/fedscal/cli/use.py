"""The commands around a run on one's own images: init before it; predict and export after it."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

from fedscal import files
from fedscal.cli.allow import AllowCode
from fedscal.cli.output import print_error, print_plain
from fedscal.data.folders import scan
from fedscal.data.suggest import recipe
from fedscal.deploy.classifier import Classifier
from fedscal.deploy.onnx import export_onnx
from fedscal.deploy.predict import predict as answers
from fedscal.deploy.predict import write_csv
from fedscal.errors import UsageError
from fedscal.rng import stream

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A run directory, or a model's .safetensors.")]
Network = Annotated[
    str,
    typer.Option(
        "--model", help="The name of its network here, if not the card's: hf:<folder> may have moved."
    ),
]
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
    files.write_bytes(out, recipe(scan(folder)).encode())
    print_plain(f"{out}\nfedscal run {out}")


def predict(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="Images: a file, or a folder with whatever is below it.")],
    out: Annotated[Path | None, typer.Option("--out", help="The CSV to write; default: the screen.")] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.AUTO,
    network: Network = "",
    allow_code: AllowCode = False,
) -> None:
    """Ask a model about images: file, label, confidence, and what is wrong with files that are none."""
    classifier = Classifier.open(model, device.value, network)
    if out is None:
        problems = write_csv(answers(classifier, folder), sys.stdout)
    else:
        with files.writing(out), out.open("w", newline="") as file:
            problems = write_csv(answers(classifier, folder), file)
        print_plain(str(out))
    if problems:
        print_error(f"{problems} files are no whole images; the column 'problem' says why.")


def export(
    model: Model,
    format_: Annotated[Format, typer.Option("--format", help="onnx or safetensors.")] = Format.ONNX,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write.")] = None,
    network: Network = "",
    allow_code: AllowCode = False,
) -> None:
    """Write a model for other programs; an ONNX file is compared with the model before it is written."""
    classifier = Classifier.open(model, model=network)
    path = out or Path(f"{classifier.path.stem}.{format_.value}")
    if format_ is Format.SAFETENSORS:
        files.write_bytes(path, classifier.path.read_bytes())
        files.write_json(path.with_suffix(".json"), dict(classifier.card))
        print_plain(f"{path}\n{path.with_suffix('.json')}")
        return
    size = (_CHECKED, *classifier.shape)
    sample = torch.randint(256, size, generator=stream(0, "parity"), dtype=torch.uint8)
    gap = export_onnx(classifier, path, sample)
    print_plain(f"{path}: same class on {_CHECKED} images, logits within {gap:.1g} of the model's")
