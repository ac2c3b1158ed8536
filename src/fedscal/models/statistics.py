"""Statistics of a site: what its own images say of the means, variances and class shares of a model.

A network normalises activations by the statistics of the images that it was trained on: BatchNorm by its
running mean and variance, ``Standardise`` by those of the features. Where images look different, these are
wrong for every image alike. One pass over unlabelled images measures the right ones. Where the site's classes
are unlike, their shares go into the bias of the head, and means and variances are those of a sample in which
the classes are balanced. All of it belongs to the site: it is never sent and never averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedscal.core.types import Images, Prediction, Weights
from fedscal.models.network import predict
from fedscal.models.shares import ClassShares, estimate_shares

if TYPE_CHECKING:
    from fedscal.models.network import Network

_FEWEST = 2
"""One image has no variance."""
_FEATURES_APART, _ACTIVATIONS_APART = 0.3, 0.011
"""How far statistics are apart at most where images are alike: of features, one value an image, and
of BatchNorm's activations, which vary within an image. Measured: docs/folders.md, "Unlike images"."""
_EPSILON = 1e-5
"""What normalisation layers add to a variance."""


@dataclass(frozen=True)
class SiteStatistics:
    """How a site takes its own statistics.

    Attributes:
        prior: the weight of the model's own statistics against the site's, in images: those of n images
            count n / (n + prior).
        shares: the site's class shares, if it has estimated them.
        rows: the rows of its images that are measured; None: all.
    """

    prior: float = 0.0
    shares: ClassShares | None = None
    rows: Tensor | None = None

    def apply(self, network: Network, images: Images, view: Callable[[Tensor], Tensor]) -> None:
        """Move the network's statistics towards those of a site's images."""
        share = len(images) / (len(images) + self.prior)
        for name, measured in measure(network, images, view, self.rows).items():
            statistic = network.get_buffer(name)
            statistic.lerp_(measured.to(statistic), share)
        if self.shares:
            with torch.no_grad():
                network.head.bias.add_(self.shares.shift.to(network.head.bias))

    def knowing_classes(
        self,
        network: Network,
        model: Weights,
        images: Images,
        view: Callable[[Tensor], Tensor],
        assumed: Tensor | None = None,
    ) -> SiteStatistics:
        """Return these statistics with the site's class shares, as a model's answers to its images tell them.

        Where the classes are unlike, the mean of all images is that of the frequent classes. So means and
        variances are then taken of a balanced sample, and the shares are estimated once more with them.

        Args:
            network: a network to compute with; its weights are overwritten.
            model: the model to ask.
            images: the site's images.
            view: how it shows them to the model.
            assumed: the class shares (J,) of the model's training images; None: all alike.
        """
        if len(images) < _FEWEST:
            return self
        prediction = predict_at_site(network, model, images, view, self)
        found = estimate_shares(prediction.logits, assumed)
        if not found.trust:
            return self
        balanced = replace(self, rows=found.balanced_rows(prediction.logits))
        prediction = predict_at_site(network, model, images, view, balanced)
        return replace(balanced, shares=estimate_shares(prediction.logits, assumed))


def load_at_site(
    network: Network,
    model: Weights,
    images: Images,
    view: Callable[[Tensor], Tensor],
    statistics: SiteStatistics | None,
) -> None:
    """Load a model as a site uses it: with statistics of its own images, or as it is if None."""
    network.load(model)
    if statistics:
        statistics.apply(network, images, view)


def predict_at_site(
    network: Network,
    model: Weights,
    images: Images,
    view: Callable[[Tensor], Tensor],
    statistics: SiteStatistics | None,
) -> Prediction:
    """Return a model's predictions of a site's images, as the site uses the model."""
    load_at_site(network, model, images, view, statistics)
    return predict(network, images, view)


@dataclass
class _Moments:
    """Count, mean and summed squares of deviations of a layer's inputs, channel by channel."""

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    squares: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))

    def add(self, inputs: Tensor) -> None:
        """Add a batch (n, C, ...)."""
        axes = [axis for axis in range(inputs.ndim) if axis != 1]
        variance, mean = torch.var_mean(inputs, dim=axes, correction=0)
        count = inputs.numel() // inputs.shape[1]
        total = self.count + count
        apart = mean.double().cpu() - self.mean
        self.squares = (
            self.squares + variance.double().cpu() * count + apart.square() * (self.count * count / total)
        )
        self.mean = self.mean + apart * (count / total)
        self.count = total


@torch.no_grad()
def measure(
    network: Network,
    images: Images,
    view: Callable[[Tensor], Tensor],
    rows: Tensor | None = None,
    batch_size: int = 256,
) -> dict[str, Tensor]:
    """Return the running means and variances of the images, or of rows of them, by name, in one pass.

    Of a single image there are none.

    Every BatchNorm passes on what it normalised by the batch, so that deeper layers see what they will see
    with the statistics of the site.
    """
    if len(images) < _FEWEST:
        return {}
    layers = network.normalisers
    network.eval()
    with _watched(layers) as moments:
        for batch in _batches(images, rows, batch_size):
            if len(batch) >= _FEWEST:  # a lone last image has no statistics to be normalised by
                network(view(batch.to(network.device)))
    measured: dict[str, Tensor] = {}
    for name, seen in moments.items():
        measured[f"{name}.running_mean"] = seen.mean
        measured[f"{name}.running_var"] = seen.squares / seen.count
    return measured


def _batches(images: Images, rows: Tensor | None, size: int) -> Iterable[Tensor]:
    if rows is None:
        return images.split(size)
    return (images[rows[start : start + size]] for start in range(0, len(rows), size))


def unlikeness(network: Network, images: Images, view: Callable[[Tensor], Tensor]) -> float:
    """Return how unlike images are to those of a network's statistics; more than 1 is unlike, 0 unknown.

    Mean and variance of a channel are those of a Gaussian. The squared Hellinger distance of two is in
    [0, 1], so that a channel that hardly varied before cannot outweigh all others; the mean over all channels
    is given in units of the limit for such a network.
    """
    measured = measure(network, images, view)
    known = network.state_dict()
    apart = [_hellinger(known, measured, name) for name in measured if name.endswith("running_mean")]
    limit = _FEATURES_APART if network.standardise else _ACTIVATIONS_APART
    return float(torch.cat(apart).mean()) / limit if apart else 0.0


def _hellinger(known: Weights, measured: Weights, name: str) -> Tensor:
    """Return the squared Hellinger distance of each channel of a layer."""
    variance = name.replace("running_mean", "running_var")
    a, b = (statistics[variance].double().cpu() + _EPSILON for statistics in (known, measured))
    step = (known[name].double().cpu() - measured[name]).square()
    return 1 - (2 * (a * b).sqrt() / (a + b)).sqrt() * torch.exp(-step / (4 * (a + b)))


@contextmanager
def _watched(layers: dict[str, nn.Module]) -> Iterator[dict[str, _Moments]]:
    """Watch the inputs of layers; BatchNorm normalises by the batch meanwhile and remembers nothing."""
    moments = {name: _Moments() for name in layers}
    norms = [layer for layer in layers.values() if isinstance(layer, _BatchNorm)]
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs, name=name: moments[name].add(inputs[0]))
        for name, layer in layers.items()
    ]
    for norm in norms:
        norm.train()
        norm.track_running_stats = False
    try:
        yield moments
    finally:
        for norm in norms:
            norm.eval()
            norm.track_running_stats = True
        for hook in hooks:
            hook.remove()
