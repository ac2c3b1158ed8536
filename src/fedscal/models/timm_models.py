"""Backbones by timm, ``timm:<name>``, ``timm:<name>@<file.safetensors>`` or ``timm:<name>@pretrained``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedscal.core import weights
from fedscal.core.errors import ModelRefused, UsageError, first_line
from fedscal.core.extras import from_extra
from fedscal.models.registry import TIMM
from fedscal.models.store import check_state_dict

_PRETRAINED = "pretrained"


class TimmBackbone(nn.Module):
    """A timm model without its classifier.

    Its weights are random unless a file is named, or timm is asked for its own: only ``@pretrained``
    may fetch anything.
    """

    def __init__(self, model: str) -> None:
        super().__init__()
        name, _, origin = model.partition("@")
        self.layers = _create(name, origin == _PRETRAINED)
        if origin and origin != _PRETRAINED:
            _fill(self.layers, Path(origin), f"model={TIMM}{model}")

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, d) features; a grey image counts as equal channels."""
        features: Tensor = self.layers(images.expand(-1, 3, -1, -1))
        return features


def starts_trained(model: str) -> bool:
    """Whether a name gives trained weights."""
    return "@" in model


def normalisation(model: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and deviation that timm's weights of this name were trained with."""
    name = model.partition("@")[0]
    config = _timm(name).models.get_pretrained_cfg(name)
    if config is None:
        raise UsageError(f"model={TIMM}{name}: timm knows no such model.")
    return tuple(config.mean), tuple(config.std)


def _timm(name: str) -> Any:
    try:
        with from_extra("timm", f"model={TIMM}{name}"):
            import timm
    except UsageError:
        raise
    except Exception as error:  # a torchvision that does not fit torch raises anything
        raise UsageError(
            f"model={TIMM}{name}: timm cannot be imported ({first_line(error)}); it needs the torchvision "
            "made for this torch. model=hf:<folder> needs none."
        ) from error
    return timm


def _create(name: str, pretrained: bool) -> Any:
    timm = _timm(name)
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=0)
    except Exception as error:  # unknown names, and any failure of a download
        raise ModelRefused(f"model={TIMM}{name} cannot be made by timm: {first_line(error)}") from error


def _fill(layers: Any, path: Path, name: str) -> None:
    """Load a file with timm's tensor names, without its classifier."""
    try:
        tensors = weights.from_bytes(path.read_bytes(), str(path))
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read ({error.strerror})") from error
    classifier = layers.pretrained_cfg.get("classifier") or ()
    heads = tuple(f"{head}." for head in ([classifier] if isinstance(classifier, str) else classifier))
    used = {key: tensor for key, tensor in tensors.items() if not key.startswith(heads)}
    wanted = layers.state_dict()
    misshaped = [key for key in used.keys() & wanted.keys() if used[key].shape != wanted[key].shape]
    check_state_dict(name, wanted.keys() - used.keys(), used.keys() - wanted.keys(), misshaped)
    layers.load_state_dict(used)
