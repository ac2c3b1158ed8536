"""A model as it is used: from raw pixels to class probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedscal.data.benchmark import Views
from fedscal.data.registry import benchmark
from fedscal.data.views import views_of
from fedscal.errors import ModelRefused, UsageError
from fedscal.models.network import Network
from fedscal.models.registry import build_network
from fedscal.models.store import find_model, load_model


class PixelsToLogits(nn.Module):
    """Normalisation and network in one: images of values 0 to 255 in, logits out."""

    def __init__(self, network: Network, views: Views) -> None:
        super().__init__()
        self.network = network
        self.views = views

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits (n, J) of images (n, C, H, W)."""
        logits: Tensor = self.network(self.views.evaluate(pixels)).logits
        return logits


@dataclass(frozen=True)
class Classifier:
    """A model, the order of its classes, and the images that it takes.

    Attributes:
        module: from pixels of 0 to 255 to logits.
        classes: the class names in the order of the logits.
        shape: channels, height and width of an image.
        card: all that was written beside the model.
        path: where it was loaded from.
    """

    module: PixelsToLogits
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    card: Mapping[str, Any]
    path: Path

    @classmethod
    def open(cls, place: Path) -> Classifier:
        """Open a model file, or the model of a run directory: its last round's unless named."""
        path = find_model(place)
        weights, card = load_model(path.parent, path.stem)
        try:
            shape, classes = tuple(card["shape"]), tuple(card["classes"])
            network = build_network(card["model"], shape, len(classes))
            network.load_state_dict(weights)
            module = PixelsToLogits(network, views_of(card) or benchmark(card["benchmark"]).views)
        except (KeyError, TypeError, RuntimeError, UsageError) as error:
            raise ModelRefused(f"{path} does not fit its card ({str(error).splitlines()[0]}).") from error
        return cls(module.eval().requires_grad_(False), classes, shape, card, path)

    def probabilities(self, pixels: Tensor) -> Tensor:
        """Return the class probabilities (n, J) of uint8 images."""
        return torch.softmax(self.module(pixels), dim=1)
