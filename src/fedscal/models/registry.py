"""Networks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from fedscal.errors import UsageError, nearest
from fedscal.models.convnet import ConvNet
from fedscal.models.efficientnet import EfficientNetLite0
from fedscal.models.huggingface import PREFIX, HuggingFaceBackbone
from fedscal.models.network import Network

Shape = tuple[int, int, int]


def _convnet(shape: Shape, classes: int) -> Network:
    if min(shape[1:]) < ConvNet.least_side:
        raise UsageError(
            f"model=convnet needs images of {ConvNet.least_side} pixels or more, not {shape[1:]}"
        )
    # Trained from scratch by us: the whole network adapts at the full rate.
    return Network(ConvNet(shape[0]), ConvNet.width, classes, backbone_rate=1.0)


def _efficientnet_lite0(shape: Shape, classes: int) -> Network:
    return Network(EfficientNetLite0(), EfficientNetLite0.width, classes, backbone_rate=0.1)


MODELS: Mapping[str, Callable[[Shape, int], Network]] = {
    "convnet": _convnet,
    "efficientnet-lite0": _efficientnet_lite0,
}


def build_network(name: str, shape: Shape, classes: int, seed: int = 0) -> Network:
    """Return a freshly initialised network, the same for the same seed."""
    check_model(name)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if name.startswith(PREFIX):
            backbone = HuggingFaceBackbone(name.removeprefix(PREFIX))
            return Network(backbone, backbone.width, classes, backbone_rate=0.1)
        return MODELS[name](shape, classes)


def check_model(name: str) -> None:
    """Say which model was probably meant by a name that is none."""
    if name not in MODELS and not name.startswith(PREFIX):
        other = "hf:<folder or repository> loads one by transformers"
        raise UsageError(f"model={name}: no such model{nearest(name, MODELS)}; {other}")
