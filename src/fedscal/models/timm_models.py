"""Backbones by timm, ``timm:<name>``, ``timm:<name>@<file.safetensors>`` or ``timm:<name>@pretrained``."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedscal.core import weights
from fedscal.core.errors import ModelRefused, UsageError, first_line
from fedscal.core.extras import from_extra
from fedscal.models import hub
from fedscal.models.registry import TIMM
from fedscal.models.store import check_state_dict

_PRETRAINED = "pretrained"
_BLOCKS = (("blocks",), ("stages",), ("layer1", "layer2", "layer3", "layer4"))
"""Where the families keep their blocks."""
_BEFORE_POOLING = ("norm_pre", "norm", "conv_head", "bn2")
"""What may stand between blocks and pooling."""


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

    def take_apart(self) -> list[nn.Module]:
        """Return what comes before the blocks, and the blocks, the last of them with what comes after."""
        model = self.layers
        places = next((names for names in _BLOCKS if all(hasattr(model, name) for name in names)), None)
        if places is None:
            return []
        found = [getattr(model, name) for name in places]
        blocks = list(found[0]) if len(found) == 1 else found
        # timm registers parts in the order of their use.
        names = [name for name, _ in model.named_children()]
        before, after = names[: names.index(places[0])], names[names.index(places[-1]) + 1 :]
        for name in places:
            setattr(model, name, nn.Sequential())
        end = _End(copy.deepcopy(model), before, after)
        for name in after:
            setattr(model, name, nn.Identity())
        return [_Begin(model), *blocks[:-1], nn.Sequential(blocks[-1], end)]


class _Begin(nn.Module):
    """A model without its blocks and what follows them."""

    def __init__(self, hollow: Any) -> None:
        super().__init__()
        self.layers = hollow

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers.forward_features(images.expand(-1, 3, -1, -1))
        return maps


class _End(nn.Module):
    """A model without its blocks and what comes before them: its last norm and its pooling."""

    def __init__(self, hollow: Any, before: list[str], after: list[str]) -> None:
        super().__init__()
        self.layers = hollow
        self.norms = [name for name in _BEFORE_POOLING if name in after]
        for name in before:
            setattr(hollow, name, nn.Identity())
        for name, _ in list(hollow.named_parameters(recurse=False)):  # places and tokens of the embedding
            setattr(hollow, name, None)

    def forward(self, state: Tensor) -> Tensor:
        for name in self.norms:
            state = getattr(self.layers, name)(state)
        features: Tensor = self.layers.forward_head(state)
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
    away = pretrained and not hub.reachable()
    try:
        with hub.cache_alone() if away else nullcontext():
            return timm.create_model(name, pretrained=pretrained, num_classes=0)
    except Exception as error:  # unknown names, and any failure of a download
        reason = f"{hub.WAY_OUT}: model={TIMM}{name}@<file.safetensors>" if away else first_line(error)
        raise ModelRefused(f"model={TIMM}{name} cannot be made by timm: {reason}") from error


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
