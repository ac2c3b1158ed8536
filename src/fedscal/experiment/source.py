"""The source model: trained once, cached by the hash of all that decides it, shared by all methods."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from fedscal.core import files
from fedscal.core.errors import ModelRefused
from fedscal.core.options import Value
from fedscal.core.rng import compute_threads
from fedscal.core.types import Source, Weights
from fedscal.core.weights import digest
from fedscal.data import cache
from fedscal.data.labels import known_labels
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.pretrain import Epoch, SourceTraining, pretrain
from fedscal.models.device import computes_in_bfloat16, find_device
from fedscal.models.registry import fingerprint
from fedscal.models.store import ModelCard, find_model, load_model, model_files

_STYLES = "styles"
"""What the identity of a source model has of the clients' styles, if it was trained in them."""


@dataclass(frozen=True)
class SourceModel:
    """A trained source model, where it is kept, and its accuracy (%) on held-out source images, if known.

    ``gaussians`` are the mean and variance of the source features of every class; ``styled`` says whether it
    was trained in clients' styles.
    """

    weights: Weights
    gaussians: Weights
    path: Path
    accuracy: float | None
    seconds: float
    cached: bool
    styled: bool = False

    @property
    def known(self) -> Source:
        """The model as clients know it."""
        return Source(self.weights, self.gaussians.get("share"))


def poorly_trained(accuracy: float | None, classes: int) -> str:
    """Return a warning if a source model is wrong too often on its own kind of images, else nothing.

    Poor is less than half of the way from chance (1 / classes) to 100 %: 75 % of two classes, 55 % of ten.
    Adaptation starts from its answers, and cannot mend what they are mostly not.
    """
    chance = 100 / classes
    least = (chance + 100) / 2
    if accuracy is None or accuracy >= least:
        return ""
    return (
        f"the source model is right on {accuracy:.1f} % of held-out images of its own kind, where "
        f"{chance:.0f} % are chance and less than {least:.0f} % is poor: check the labels, raise "
        "pretrain_epochs or image_size, or use a pretrained network (model=efficientnet-lite0 trunk=frozen)"
    )


def source_model(experiment: Experiment, progress: Callback | None = None) -> SourceModel:
    """Return the source model of a run: the given one, or one from the cache if it is there and whole.

    ``progress`` is told how training goes.
    """
    if experiment.spec.source_model:
        return given_model(Path(experiment.spec.source_model))
    folder = source_folder(experiment)
    with files.one_builder(folder.parent / f".{folder.name}"):
        try:
            weights, card = load_model(folder, "model")
            gaussians, _ = load_model(folder, "gaussians")
            files.mark_used(folder)
            return SourceModel(
                weights, gaussians, folder, card.source_accuracy, card.seconds or 0.0, True, _styled(card)
            )
        except ModelRefused:
            return _train(experiment, folder, progress)


def source_folder(experiment: Experiment) -> Path:
    """Return where the cache keeps the source model of a run, trained or not."""
    identity = _identity(experiment)
    return files.cache_dir("source", files.sha256(json.dumps(identity, sort_keys=True).encode())[:20])


def training_epochs(experiment: Experiment) -> int:
    """Return the epochs of source training: few images make few steps, and want more of them."""
    spec = experiment.spec
    if spec.source_model or not spec.pretrain_steps:
        return spec.pretrain_epochs
    trained = cache.image_count(experiment.data, spec.source) * (1 - SourceTraining.held_out)
    batches = max(1, int(trained) // SourceTraining.batch_size)
    return max(spec.pretrain_epochs, math.ceil(spec.pretrain_steps / batches))


def given_model(path: Path) -> SourceModel:
    """Load a source model that somebody trained."""
    path = find_model(path)
    weights, card = load_model(path.parent, path.stem)
    files.mark_used(path.parent)  # it may be one of the cache
    try:
        gaussians = load_model(path.parent, "gaussians")[0]
    except ModelRefused:  # only DualAdapt needs them, and says so
        gaussians = {}
    return SourceModel(weights, gaussians, path, card.source_accuracy, 0.0, True, _styled(card))


def _styled(card: ModelCard) -> bool:
    return _STYLES in (card.made_from or {})


def used_as_it_is(experiment: Experiment, source: SourceModel) -> str:
    """Return a warning if a given source model was not trained in clients' styles and the run wants one."""
    spec = experiment.spec
    if spec.pretrain_styles == "source" or source.styled:
        return ""
    return (
        "the given source model is used as it is: it was not trained in the clients' styles "
        f"(pretrain_styles=clients, as {spec.method} is meant to be run)"
    )


def _identity(experiment: Experiment) -> dict[str, object]:
    """Return everything that can move a bit of the source model."""
    spec = experiment.spec
    return {
        "data": cache.content_digest(experiment.data),
        "source": spec.source,
        "model": spec.model,
        "recipe": _unlike_paper(_recipe(experiment)),
        "seed": spec.seed,
        "threads": spec.threads,
        "torch": torch.__version__,
        **_unusual(experiment),
    }


def _recipe(experiment: Experiment) -> SourceTraining:
    spec = experiment.spec
    return SourceTraining(
        epochs=training_epochs(experiment),
        lr=spec.pretrain_lr,
        views=spec.pretrain_views,
        dropout=spec.pretrain_dropout,
    )


def _unlike_paper(recipe: SourceTraining) -> dict[str, Value]:
    """Return a recipe, without what is as in the paper and was no part of recipes once."""
    paper = {"views": "weak", "dropout": 0.0}
    return {name: value for name, value in asdict(recipe).items() if paper.get(name) != value}


def _unusual(experiment: Experiment) -> dict[str, object]:
    """Return what is set apart from the plain case: files of a model, a device, a precision, views."""
    spec = experiment.spec
    device = find_device(spec.device)
    differs = {
        "model_files": fingerprint(spec.model),
        "device": device.type != "cpu" and device.type,
        "bfloat16": computes_in_bfloat16(spec.precision, device),
        "micro_batch": spec.micro_batch,
        "trunk": spec.trunk == "frozen" and experiment.bank and experiment.bank.identity,
        "image_size": spec.image_size if not experiment.data.folder else 0,
        "framing": spec.framing != "paper" and spec.framing,
        "mirror": spec.mirror != "auto" and spec.mirror,
        "crops": spec.crops,
        _STYLES: experiment.styles is not None and digest({_STYLES: experiment.styles}),
    }
    return {key: value for key, value in differs.items() if value}


def _train(experiment: Experiment, folder: Path, progress: Callback | None) -> SourceModel:
    spec, data = experiment.spec, experiment.data
    started = time.perf_counter()

    def tell(epoch: Epoch) -> None:
        assert progress
        progress.epoch(epoch)
        progress.advance()

    with compute_threads(spec.threads):
        made = pretrain(
            experiment.network,
            experiment.images(spec.source),
            known_labels(data, spec.source),
            experiment.views,
            _recipe(experiment),
            spec.seed,
            tell if progress else None,
            cache.groups(data, spec.source),
            spec.micro_batch,
            experiment.styles,
        )
    seconds = time.perf_counter() - started
    identity = _identity(experiment)
    card = replace(experiment.card, source_accuracy=made.accuracy, seconds=seconds, made_from=identity)
    gaussians = model_files("gaussians", made.gaussians, experiment.card)
    files.write_dir(folder, {**model_files("model", made.weights, card), **gaussians})
    return SourceModel(made.weights, made.gaussians, folder, made.accuracy, seconds, False, _styled(card))
