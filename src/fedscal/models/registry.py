"""Networks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedscal.core import files
from fedscal.core.errors import ModelRefused, UsageError, first_line, nearest, shown
from fedscal.models import custom as own
from fedscal.models import huggingface, timm_models
from fedscal.models.convnet import ConvNet
from fedscal.models.efficientnet import EfficientNetLite0
from fedscal.models.network import Network

Shape = tuple[int, int, int]
_PRETRAINED_RATE = 0.1
"""The backbone's share of the learning rate in the paper, where it comes with weights."""


def _convnet(shape: Shape, classes: int) -> Network:
    if min(shape[1:]) < ConvNet.least_side:
        raise UsageError(
            f"model=convnet needs images of {ConvNet.least_side} pixels or more, not {shape[1:]}"
        )
    # Trained from scratch by us: the whole network adapts at the full rate.
    return Network(ConvNet(shape[0]), ConvNet.width, classes, backbone_rate=1.0)


def _efficientnet_lite0(shape: Shape, classes: int) -> Network:
    return Network(EfficientNetLite0(), EfficientNetLite0.width, classes, backbone_rate=_PRETRAINED_RATE)


MODELS: Mapping[str, Callable[[Shape, int], Network]] = {
    "convnet": _convnet,
    "efficientnet-lite0": _efficientnet_lite0,
}
_ELSEWHERE = (
    "hf:<folder or repository> loads one by transformers, timm:<name> one by timm, "
    "package.module:factory is your own"
)


def build_network(name: str, shape: Shape, classes: int, seed: int = 0) -> Network:
    """Return a freshly initialised network, the same for the same seed."""
    check_model(name)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if name in MODELS:
            return MODELS[name](shape, classes)
        backbone, rate = _backbone(name, shape)
        return Network(backbone, feature_width(backbone, name, shape), classes, backbone_rate=rate)


def _backbone(name: str, shape: Shape) -> tuple[nn.Module, float]:
    """Return a backbone from elsewhere and its share of the learning rate."""
    if name.startswith(huggingface.PREFIX):
        return huggingface.HuggingFaceBackbone(name.removeprefix(huggingface.PREFIX)), _PRETRAINED_RATE
    if name.startswith(timm_models.PREFIX):
        place = name.removeprefix(timm_models.PREFIX)
        rate = _PRETRAINED_RATE if timm_models.starts_trained(place) else 1.0
        return timm_models.TimmBackbone(place), rate
    made = own.build_own(name, shape)
    return made, float(getattr(made, "backbone_rate", _PRETRAINED_RATE))


@torch.no_grad()
def feature_width(backbone: nn.Module, name: str, shape: Shape) -> int:
    """Return how many features a backbone gives an image of this shape, by showing it two."""
    try:
        found = backbone.eval()(torch.zeros(2, *shape))
    except Exception as error:
        size = " x ".join(map(str, shape))
        raise ModelRefused(f"model={name} cannot take images of {size}: {first_line(error)}") from error
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 2:
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ModelRefused(f"model={name} makes {what} of two images, not (2, features).")
    return found.shape[1]


def check_model(name: str) -> None:
    """Say which model was probably meant by a name that is none; nothing is loaded or imported."""
    elsewhere = name.startswith((huggingface.PREFIX, timm_models.PREFIX)) or own.is_factory(name)
    if name not in MODELS and not elsewhere:
        raise UsageError(f"model={shown(name)}: no such model{nearest(name, MODELS)}; {_ELSEWHERE}")


def fingerprint(name: str) -> str:
    """Return a hash of the local files that a model's name stands for; empty if there are none."""
    if name.startswith(huggingface.PREFIX):
        folder = Path(name.removeprefix(huggingface.PREFIX))
        return _sha256([path for kind in ("*.json", "*.safetensors") for path in folder.glob(kind)])
    if name.startswith(timm_models.PREFIX):
        return _sha256([Path(name.rpartition("@")[2])])
    return _sha256([own.source_file(name)]) if own.is_factory(name) else ""


def _sha256(paths: Sequence[Path]) -> str:
    contents = [files.sha256(path.read_bytes()) for path in sorted(paths) if path.is_file()]
    return files.sha256("".join(contents).encode()) if contents else ""


def normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the mean and deviation of the images that a model was trained with; None: the data set's."""
    if name.startswith(huggingface.PREFIX):
        return huggingface.normalisation(name.removeprefix(huggingface.PREFIX))
    if name.startswith(timm_models.PREFIX):
        return timm_models.normalisation(name.removeprefix(timm_models.PREFIX))
    return None
