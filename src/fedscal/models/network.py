"""The classifier f = h o g: backbone and bottleneck make the features, a linear head the logits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedscal.core.types import Images, Prediction


class Network(nn.Module):
    """Backbone -> linear bottleneck -> linear head, with no BatchNorm in the two new layers.

    Only the network is on another device: images are moved to ``device``, and predictions come back to the
    CPU, where losses and labels are. Autograd follows.

    Args:
        backbone: maps images to (n, ``width``) features.
        width: the backbone's feature count.
        classes: the number of classes J.
        bottleneck: the width d of the features g(x); the paper uses 256.
        backbone_rate: the backbone's share of the learning rate: 0.1 for a pretrained backbone, 1
            for one that was trained from scratch.

    Attributes:
        in_bfloat16: compute the backbone in bfloat16 where autocast says that it is safe; the weights, the
            two new layers and the losses stay in float32.
    """

    def __init__(
        self, backbone: nn.Module, width: int, classes: int, bottleneck: int = 256, backbone_rate: float = 1.0
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.bottleneck = nn.Linear(width, bottleneck)
        self.head = nn.Linear(bottleneck, classes)
        self.backbone_rate = backbone_rate
        self.in_bfloat16 = False
        self.norms = [module for module in self.modules() if isinstance(module, _BatchNorm)]

    def forward(self, images: Tensor) -> Prediction:
        """Return features and logits of a batch of images."""
        with torch.autocast(images.device.type, torch.bfloat16) if self.in_bfloat16 else nullcontext():
            pooled = self.backbone(images)
        features = self.bottleneck(pooled.to(self.bottleneck.weight.dtype))
        return Prediction(features.cpu(), self.head(features).cpu())

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        return self.head.weight.device

    def freeze_head(self) -> None:
        """Keep the hypothesis h fixed: adaptation moves the features only."""
        self.head.requires_grad_(False)

    @property
    def first_layer(self) -> str:
        """The name of the first layer's weights."""
        return next(name for name, parameter in self.named_parameters() if name.endswith("weight"))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return the trainable parameters with their learning rates, for an optimiser."""
        new = [p for part in (self.bottleneck, self.head) for p in part.parameters() if p.requires_grad]
        return [
            {"params": list(self.backbone.parameters()), "lr": lr * self.backbone_rate},
            {"params": new, "lr": lr},
        ]

    def freeze_statistics(self) -> None:
        """Put BatchNorm in evaluation mode: a batch of one image has no statistics of its own."""
        for norm in self.norms:
            norm.eval()


@torch.no_grad()
def predict(
    network: Network, images: Images, view: Callable[[Tensor], Tensor], batch_size: int = 256
) -> Prediction:
    """Return the network's predictions of every image in a view, in evaluation mode."""
    network.eval()
    parts = [network(view(batch.to(network.device))) for batch in images.split(batch_size)]
    return Prediction(torch.cat([p.features for p in parts]), torch.cat([p.logits for p in parts]))
