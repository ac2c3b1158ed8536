"""What a Python program does with a finished run or a model: load, predict, audit, export.

The commands of the same names are these functions with words around them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedscal.core import files, weights
from fedscal.core.convert import dump
from fedscal.core.errors import UsageError, shown, some
from fedscal.core.rng import stream
from fedscal.deploy.audit import audit as ask_labelled
from fedscal.deploy.audit import trained_files
from fedscal.deploy.card import card_text, doubts, identity, run_of
from fedscal.deploy.classifier import Classifier
from fedscal.deploy.onnx import export_onnx, require_onnx
from fedscal.deploy.predict import Predictions, ask, ask_tensor, files_at, refuse_misfit
from fedscal.deploy.site import doubt_images, sites_of, use_images, use_site
from fedscal.experiment.audits import AUDIT, Audit
from fedscal.experiment.run_directory import RunDirectory
from fedscal.models.store import model_files

Model = Classifier | RunDirectory | Path | str
"""A loaded model, a run, or the path of a run directory or of a model's file."""
FORMATS = ("onnx", "safetensors")
_CHECKED = 256


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=3)


@dataclass(frozen=True)
class Exported:
    """An export: the model, the card for people beside it, and what was written or compared, in words."""

    path: Path
    card: Path
    note: str


def load(model: Model, device: str = "auto", network: str = "") -> Classifier:
    """Open the model of a run or file, for use: pixels in, probabilities out.

    Args:
        model: a run, a run directory, or a model's ``.safetensors``; of a run the last round's model.
        device: where to compute: auto, cpu, cuda or mps.
        network: the name of its network here, if not its card's: ``hf:<folder>`` may have moved.
    """
    return model if isinstance(model, Classifier) else Classifier.open(_path(model), device, network)


def _path(model: Model) -> Path:
    return model.path if isinstance(model, Classifier | RunDirectory) else Path(model)


def predict(
    model: Model, images: Path | str | Tensor, *, site: str = "", device: str = "auto"
) -> Predictions:
    """Ask a model about images; what speaks against its answers is warned of.

    Args:
        model: see ``load``.
        images: a file, a folder with whatever is below it, or uint8 pixels (n, C, H, W) of the model's shape.
        site: use the statistics that the run kept for this site; if not given, those of these images.
        device: where to compute.
    """
    classifier = load(model, device)
    asked = images if isinstance(images, Tensor) else files_at(Path(images))
    if isinstance(asked, Tensor):
        refuse_misfit(classifier, asked)
    for text in reservations(classifier):
        _warn(text)
    note, doubt = take_statistics(classifier, asked, site)
    if doubt:
        _warn(doubt)
    answers = ask_tensor(classifier, asked) if isinstance(asked, Tensor) else ask(classifier, asked)
    return Predictions(list(answers), note)


def reservations(classifier: Classifier) -> list[str]:
    """Return what the run of a model has to say against it."""
    run = run_of(classifier)
    return doubts(classifier, run) if run else []


def take_statistics(classifier: Classifier, asked: list[Path] | Tensor, site: str) -> tuple[str, str]:
    """Give a model the statistics of a site or of these images; say whose, and whether they are unlike."""
    note = use_site(classifier, site) if site else ""
    doubt = doubt_images(classifier, asked)  # before the images' own statistics are in use
    return note or use_images(classifier, asked), doubt


def audit(
    model: Model,
    folder: Path | str,
    *,
    device: str = "auto",
    network: str = "",
    say: Callable[[str], None] = _warn,
) -> Audit:
    """Check a model on a few labelled images, beside the source model if it is a run's; nothing is trained.

    The audit is kept in the run directory, where the model card finds it; ``fedscal.write_report`` shows it.

    Args:
        model: see ``load``.
        folder: ``<site>/<class>/<image>``, or ``<class>/<image>``.
        device: where to compute.
        network: see ``load``.
        say: who is told what the run has to say against its model.
    """
    classifier = load(model, device, network)
    for text in reservations(classifier):
        say(text)
    before = classifier.path.with_name("source.safetensors")
    known = before.exists() and before != classifier.path
    source = Classifier.open(before, device, network) if known else None
    run = run_of(classifier)
    found = ask_labelled(classifier, source, Path(folder), trained_files(run))
    if run:
        files.write_json(run.path / AUDIT, dump(found))
    return found


def export(
    model: Model,
    out: Path | str | None = None,
    *,
    to: str = "onnx",
    site: str = "",
    network: str = "",
    force: bool = False,
    say: Callable[[str], None] = _warn,
) -> Exported:
    """Write a model for other programs, with a model card (.md) beside it.

    An ONNX file is compared with the model before it is written.

    Args:
        model: see ``load``.
        out: the file; if not given, named like the model, in the working directory.
        to: onnx or safetensors.
        site: with the statistics that the run kept for this site.
        network: see ``load``.
        force: write over files that are there, whatever they are; if not, only over an earlier export of the
            same model.
        say: who is told what speaks against the model.
    """
    if to not in FORMATS:
        raise UsageError(f"to={shown(to)}: a model is written as {' or '.join(FORMATS)}.")
    if to == "onnx":
        require_onnx()
    classifier = Classifier.open(_path(model), model=network)
    for text in [*reservations(classifier), *_siteless(classifier, site)]:
        say(text)
    if site:
        use_site(classifier, site)
    stem = f"{classifier.path.stem}-{site}" if site else classifier.path.stem
    path, run = Path(out) if out else Path(f"{stem}.{to}"), run_of(classifier)
    if not force:
        _refuse_others(path, to, identity(classifier, run, site))
    card = card_text(classifier, run, site).encode()
    note = _as_onnx(classifier, path) if to == "onnx" else _as_safetensors(classifier, path, site)
    files.write_bytes(path.with_suffix(".md"), card)  # last: no card without its model
    return Exported(path, path.with_suffix(".md"), note)


def _siteless(classifier: Classifier, site: str) -> Iterator[str]:
    known = [] if site else list(sites_of(classifier))
    if known:
        yield f"with the source's statistics; --site gives it those of {some(known, 3)}"


def _refuse_others(path: Path, to: str, own: str) -> None:
    """Refuse to write over what is no earlier export of the same model, which its card tells."""
    card, table = path.with_suffix(".md"), [path.with_suffix(".json")] if to == "safetensors" else []
    taken = [file for file in (path, card, *table) if file.exists()]
    same = card.is_file() and own in card.read_text(errors="replace")
    if taken and not same:
        raise UsageError(
            f"{taken[0]} is there already, and not of this model; give another --out, or --force to write "
            "over it (force=True in Python)."
        )


def _as_onnx(classifier: Classifier, path: Path) -> str:
    size = (_CHECKED, *classifier.shape)
    sample = torch.randint(256, size, generator=stream(0, "parity"), dtype=torch.uint8)
    gap = export_onnx(classifier, path, sample)
    return f"{path}: same class on {_CHECKED} images, logits within {gap:.1g} of the model's"


def _as_safetensors(classifier: Classifier, path: Path, site: str) -> str:
    """Write a model as it came, or a site's as one that keeps the site's statistics whatever it is shown."""
    card = path.with_suffix(".json")
    if site:
        kept = replace(classifier.card, statistics_prior=None, class_shares=None, site_share=None)
        state = weights.snapshot(classifier.module.network.state_dict())
        data, table = model_files(path.stem, state, kept).values()
    else:
        data, table = classifier.path.read_bytes(), files.as_json(dump(classifier.card))
    files.write_bytes(path, data)
    files.write_bytes(card, table)
    return f"{path}\n{card}"
