"""A small convolutional backbone for 32-pixel images: about 6 MFLOP per forward pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class ConvNet(nn.Module):
    """Four 3x3 convolutions with BatchNorm; 2 x 2 positions of 72 channels make 288 features."""

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
