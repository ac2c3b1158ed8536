"""Source pre-training: the paper's recipe, the one place besides evaluation where labels are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedscal.client.descent import Descent
from fedscal.client.style import restyled
from fedscal.core import weights
from fedscal.core.errors import DataRefused
from fedscal.core.features import class_gaussians
from fedscal.core.rng import global_stream, stream
from fedscal.core.types import Images, Views, Weights
from fedscal.data.pixels import take
from fedscal.models.device import microbatched, oom_hint
from fedscal.models.network import Network, predict
from fedscal.models.statistics import SiteStatistics

_FEWEST_IMAGES = 3


@dataclass(frozen=True)
class Trained:
    """A source model.

    Attributes:
        weights: the model.
        accuracy: its accuracy (%) on the held-out source images.
        gaussians: ``mean``, ``variance`` and ``share`` of the training images' features, class by class.
    """

    weights: Weights
    accuracy: float
    gaussians: Weights


@dataclass(frozen=True)
class Epoch:
    """An epoch of source training: its mean loss, and the accuracy (%) on held-out images after it."""

    loss: float
    accuracy: float

    def __str__(self) -> str:
        return f"loss {self.loss:.2f}, {self.accuracy:.1f} % of held-out images right"


@dataclass(frozen=True)
class SourceTraining:
    """SGD with Nesterov momentum, label smoothing and polynomial decay lr (1 + 10 t)^-0.75, t in [0, 1]."""

    epochs: int = 50
    lr: float = 0.03
    batch_size: int = 64
    momentum: float = 0.9
    weight_decay: float = 1e-3
    smoothing: float = 0.1
    clip: float = 1.0
    held_out: float = 0.1
    views: Literal["weak", "both"] = "weak"
    dropout: float = 0.0


def pretrain(
    network: Network,
    images: Images,
    labels: Tensor,
    views: Views,
    recipe: SourceTraining,
    seed: int,
    on_epoch: Callable[[Epoch], None] | None = None,
    groups: Tensor | None = None,
    micro_batch: int = 0,
    styles: Tensor | None = None,
) -> Trained:
    """Train on 90 % of the source images and test on the other 10 %, never parting a group.

    ``on_epoch`` is told how each epoch went, for which the held-out images are asked after each.
    ``micro_batch`` is the number of images whose activations are held at once; 0: those of the whole batch.
    ``styles`` (K, C, 3, 3) are those that images are shown in, one drawn for each anew in each epoch; None:
    their own.
    """
    if len(images) < _FEWEST_IMAGES:
        raise DataRefused(
            f"{len(images)} source images are too few: two to train on and one to test with are the least."
        )
    test, train = held_out_rows(len(images), recipe.held_out, seed, groups)
    seen = take(images, train)

    def measure() -> None:
        if network.standardise:
            SiteStatistics().apply(network, seen, views.evaluate)

    def accuracy() -> float:
        predicted = predict(network, take(images, test), views.evaluate).logits.argmax(dim=1)
        return 100 * float((predicted == labels[test]).double().mean())

    measure()
    with oom_hint():
        with global_stream(seed, "source-layers"):
            for loss in _fit(network, seen, labels[train], views, recipe, seed, micro_batch, styles):
                # A site will measure the features that thawed blocks make then; so must training, all along.
                if network.features_move:
                    measure()
                if on_epoch:
                    on_epoch(Epoch(loss, accuracy()))
        known = predict(network, seen, views.evaluate)
        reached = accuracy()
    return Trained(
        weights=weights.snapshot(network.state_dict()),
        accuracy=reached,
        gaussians=class_gaussians(known.features, labels[train], known.logits.shape[1]),
    )


@contextmanager
def _dropout(network: Network, share: float) -> Iterator[None]:
    """Leave out a share of the backbone's features meanwhile."""
    network.dropout = share
    try:
        yield
    finally:
        network.dropout = 0.0


def held_out_rows(count: int, share: float, seed: int, groups: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the rows to test on and the rows to train on.

    Without groups the share is exact. With groups whole ones are held out, in random order, each only
    if it does not take the held-out rows beyond one and a half times the share; one is always held out.
    """
    generator = stream(seed, "source-split")
    held = max(1, int(share * count))
    if groups is None:
        order = torch.randperm(count, generator=generator)
        return order[:held], order[held:]
    names, sizes = torch.unique(groups, return_counts=True)
    if len(names) < 2:
        raise DataRefused("all source images are of one group, so none can be held out.")
    drawn = torch.randperm(len(names), generator=generator).tolist()
    chosen: list[int] = []
    for place in drawn:
        taken = int(sizes[chosen].sum())
        if taken < held and taken + int(sizes[place]) <= 1.5 * held:
            chosen.append(place)
    inside = torch.isin(groups, names[chosen or [int(sizes.argmin())]])
    return inside.nonzero().flatten(), (~inside).nonzero().flatten()


def _fit(
    network: Network,
    images: Images,
    labels: Tensor,
    views: Views,
    recipe: SourceTraining,
    seed: int,
    micro_batch: int,
    styles: Tensor | None,
) -> Iterator[float]:
    """Train, and yield the mean loss of each epoch after it."""
    forward = microbatched(network, micro_batch)
    groups = network.parameter_groups(recipe.lr)
    descent = Descent.of(groups, recipe.clip, recipe.weight_decay, recipe.momentum)
    order, weak = stream(seed, "source-order"), stream(seed, "source-weak")
    drawn = stream(seed, "source-styles")
    # A last batch of one image would have no BatchNorm statistics: whole batches only, if there is one.
    whole = max(1, len(images) // recipe.batch_size)
    steps = recipe.epochs * whole
    decays = ((1 + 10 * step / steps) ** -0.75 for step in range(steps))
    for _ in range(recipe.epochs):
        network.train()
        shuffled, total = torch.randperm(len(images), generator=order), 0.0
        with _dropout(network, recipe.dropout):
            for rows in torch.split(shuffled, recipe.batch_size)[:whole]:
                batch = _in_styles(images[rows], styles, drawn).to(network.device)
                logits = forward(_view(batch, views, recipe, weak)).logits
                loss = F.cross_entropy(logits, labels[rows], label_smoothing=recipe.smoothing)
                descent.step(loss, next(decays))
                total += loss.item()
        yield total / whole


def _in_styles(images: Tensor, styles: Tensor | None, generator: torch.Generator) -> Tensor:
    """Return each image in a style that is drawn for it, or as it is without styles."""
    if styles is None:
        return images
    return restyled(images, styles[torch.randint(len(styles), (len(images),), generator=generator)])


def _view(images: Tensor, views: Views, recipe: SourceTraining, generator: torch.Generator) -> Tensor:
    """Return the view that a batch is trained on; of both views, each is that of half of the images."""
    if recipe.views == "weak":
        return views.weak(images, generator)
    half = len(images) // 2
    return torch.cat([views.weak(images[:half], generator), views.strong(images[half:], generator)])
