"""A model for use: raw pixels in, class probabilities out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedscal.core.errors import ModelRefused, UsageError, first_line, some
from fedscal.core.table import Table
from fedscal.core.types import Views, Weights
from fedscal.core.user_code import load_plugins
from fedscal.core.weights import digest
from fedscal.data.registry import benchmark
from fedscal.data.views import views_of
from fedscal.models.device import to_device
from fedscal.models.network import Network
from fedscal.models.registry import build_network, check_model
from fedscal.models.store import ModelCard, find_model, load_model

_NAMED = 10


class PixelsToLogits(nn.Module):
    """Normalisation, frozen trunk and network in one: images of values 0 to 255 in, logits out."""

    def __init__(self, network: Network, views: Views, trunk: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.views = views
        self.trunk = trunk

    def network_sees(self, pixels: Tensor) -> Tensor:
        """Return what the network takes: normalised images, or what a frozen trunk makes of them."""
        seen: Tensor = self.trunk(self.views.evaluate(pixels))
        return seen

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits (n, J) of images (n, C, H, W)."""
        logits: Tensor = self.network(self.network_sees(pixels)).logits
        return logits


@dataclass(frozen=True, repr=False)
class Classifier:
    """A model, the order of its classes, and the images that it takes.

    Attributes:
        module: from pixels of 0 to 255 to logits.
        classes: the class names in the order of the logits.
        shape: channels, height and width of an image.
        card: the model's card.
        path: where it was loaded from.
        weights: those that it was loaded with, whatever a site's are in use now.
    """

    module: PixelsToLogits
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    card: ModelCard
    path: Path
    weights: Weights

    @classmethod
    def open(cls, path: Path, device: str = "cpu", model: str = "") -> Classifier:
        """Open a model file, or the model of a run directory: its last round's unless named.

        Args:
            path: the file or directory.
            device: where to compute.
            model: the name of its network here, if not its card's: a backbone's folder may have moved.
        """
        file = find_model(path)
        weights, card = load_model(file.parent, file.stem)
        shape, classes, name = card.shape, card.classes, model or card.model
        load_plugins(card.plugins)
        try:
            check_model(name)
        except UsageError as error:
            raise _unfit(file, error) from error
        frozen = card.trunk_sha256 is not None
        # Names a missing package or permission.
        network = build_network(name, shape, len(classes), standardise=frozen)
        try:
            trunk = _load(network, weights, card, name)
            views = views_of(card.views, shape[0]) or benchmark(card.benchmark or "").views
        except (RuntimeError, UsageError, ModelRefused) as error:
            raise _unfit(file, error) from error
        network = to_device(network, device, "fp32")
        module = PixelsToLogits(network, views, trunk.to(network.device))
        return cls(module.eval().requires_grad_(False), classes, shape, card, file, weights)

    def __repr__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return self._table().html()

    def _table(self) -> Table:
        card, size = self.card, " x ".join(map(str, self.shape))
        adapted = f"{card.method}, round {card.round}" if card.method else "not adapted"
        facts = {
            "file": str(self.path),
            "network": card.model,
            "adapted by": adapted,
            "images": f"{size}, values from 0 to 255",
            "classes": f"{len(self.classes)}: {some(self.classes, _NAMED)}",
        }
        return Table("Classifier", ("", ""), list(facts.items()))

    def probabilities(self, pixels: Tensor) -> Tensor:
        """Return the class probabilities (n, J) of uint8 images."""
        return torch.softmax(self.module(pixels.to(self.module.network.device)), dim=1)


def _load(network: Network, state: Weights, card: ModelCard, name: str) -> nn.Module:
    """Load a model and return its frozen trunk, whose weights must be those that it was made with."""
    trunk: nn.Module = nn.Identity()
    if card.trunk_sha256 is not None:
        trunk = network.take_trunk(card.thaw, name, card.shape)
        if digest(trunk.state_dict()) != card.trunk_sha256:
            raise ModelRefused("the backbone that is installed here has other weights than the model's")
    network.load_state_dict(state)
    return trunk


def _unfit(path: Path, error: Exception) -> ModelRefused:
    return ModelRefused(f"{path} does not fit its card ({first_line(error)}).")
