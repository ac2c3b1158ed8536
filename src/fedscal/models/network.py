"""The classifier f = h o g: backbone and bottleneck make the features, a linear head the logits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol, Self, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedscal.core.layout import Layout
from fedscal.core.types import Images, Prediction, Weights
from fedscal.models.cut import cut


@runtime_checkable
class Foldable(Protocol):
    """A backbone that computes faster once it will never be trained again."""

    def fold(self) -> None:
        """Fold what is constant from now on into the weights."""


class Standardise(nn.Module):
    """Features in units of the images that they are of: (x - mean) / deviation, cut off at +-5.

    Where a trunk is frozen, this is the layer that takes a site's own statistics. Without the cut, a feature
    that hardly varies in some images and does in others would outweigh all the rest.
    """

    limit = 5.0
    epsilon = 1e-5
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, features: Tensor) -> Tensor:
        """Return standardised features (n, width)."""
        scaled = (features - self.running_mean) / (self.running_var + self.epsilon).sqrt()
        return scaled.clamp(-self.limit, self.limit)


_Place = tuple[dict[str, Any], str]
"""A module's own parameters or buffers, and the name of one of them there: layers may replace the tensor."""


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
        dropout: the share of the backbone's features that are left out at random: in source training only.
    """

    def __init__(
        self, backbone: nn.Module, width: int, classes: int, bottleneck: int = 256, backbone_rate: float = 1.0
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.standardise: Standardise | None = None
        self.bottleneck = nn.Linear(width, bottleneck)
        self.head = nn.Linear(bottleneck, classes)
        self.backbone_rate = backbone_rate
        self.in_bfloat16 = False
        self.dropout = 0.0
        self.norms = [module for module in self.modules() if isinstance(module, _BatchNorm)]
        self._places: dict[str, _Place] | None = None

    def forward(self, images: Tensor) -> Prediction:
        """Return features and logits of a batch of images."""
        with torch.autocast(images.device.type, torch.bfloat16) if self.in_bfloat16 else nullcontext():
            pooled = self.backbone(images)
        pooled = pooled.to(self.bottleneck.weight.dtype)
        pooled = self.standardise(pooled) if self.standardise else pooled
        features = self.bottleneck(F.dropout(pooled, self.dropout) if self.dropout else pooled)
        return Prediction(features.cpu(), self.head(features).cpu())

    def standardise_features(self) -> None:
        """Put a ``Standardise`` layer before the bottleneck."""
        self.standardise, self._places = Standardise(self.bottleneck.in_features), None

    def take_trunk(self, thaw: int, name: str, shape: tuple[int, int, int]) -> nn.Module:
        """Take the backbone out but for its last blocks, to be used frozen: the network expects its output.

        Args:
            thaw: how many blocks remain in the network.
            name: the model's name, for sentences.
            shape: channels, height and width of an image.
        """
        generator = torch.Generator().manual_seed(0)
        example = torch.randn(2, *shape, generator=generator).to(self.device)
        trunk, self.backbone = cut(self.backbone, thaw, name, example)
        self._places = None
        return trunk.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Set the mode; BatchNorm of thawed blocks keeps the statistics that the trunk below was made for.

        The bank that they are trained on is normalised by those, and what a site's images change is taken
        up by ``Standardise`` above. So no answer depends on the rest of its batch.
        """
        super().train(mode)
        for module in self.backbone.modules() if self.standardise else ():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self

    @property
    def features_move(self) -> bool:
        """Whether training changes what the backbone makes of an image; never, without weights in it."""
        return next(self.backbone.parameters(), None) is not None

    @property
    def normalisers(self) -> dict[str, nn.Module]:
        """The layers whose statistics a site may replace by its own, by name.

        A network that standardises its features has learned on them; its backbone's BatchNorm is left alone.
        """
        kind = Standardise if self.standardise else _BatchNorm
        return {name: module for name, module in self.named_modules() if isinstance(module, kind)}

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        return self.head.weight.device

    @torch.no_grad()
    def load(self, model: Weights) -> None:
        """Take over the values of a model of this network; torch refuses another one's, with a list."""
        own = self._kept()
        if own is None or Layout.of(model).places != Layout.of(own).places:
            self.load_state_dict(dict(model))
            return
        # load_state_dict does the same, but with much else for every module: as long as a pass of few images.
        for name, tensor in own.items():
            tensor.copy_(model[name])

    def tensors(self) -> dict[str, Tensor]:
        """Return what ``state_dict`` holds, parameters as they are, without a walk over the modules."""
        return self._kept() or self.state_dict(keep_vars=True)

    def _kept(self) -> dict[str, Tensor] | None:
        """Return parameters and buffers of the state by name; None if it is more than these."""
        if self._places is None:
            self._places = _places(self)
        return {name: owner[key] for name, (owner, key) in self._places.items()} or None

    def freeze_head(self, frozen: bool = True) -> None:
        """Keep the hypothesis h fixed, so that adaptation moves the features only; or let it move again."""
        for parameter in (self.head.weight, self.head.bias):
            parameter.requires_grad = not frozen

    @property
    def first_layer(self) -> str:
        """The name of the first layer's weights."""
        return next(name for name, parameter in self.named_parameters() if name.endswith("weight"))

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return the trainable parameters with their learning rates, for an optimiser."""
        named = self._kept() or dict(self.named_parameters())
        parameters = {tensor: name for name, tensor in named.items() if isinstance(tensor, nn.Parameter)}
        old = [p for p, name in parameters.items() if name.startswith("backbone.")]
        new = [p for p, name in parameters.items() if not name.startswith("backbone.") and p.requires_grad]
        return [{"params": old, "lr": lr * self.backbone_rate}, {"params": new, "lr": lr}]

    def freeze_statistics(self) -> None:
        """Put BatchNorm in evaluation mode: a batch of one image has no statistics of its own."""
        for norm in self.norms:
            norm.eval()


def _places(network: Network) -> dict[str, _Place]:
    """Return where each tensor of the state is kept, by name; none if the state is more than its tensors."""
    places: dict[str, _Place] = {}
    for prefix, module in network.named_modules(remove_duplicate=False):
        for owner in (module._parameters, module._buffers):
            places |= {f"{prefix}.{key}" if prefix else key: (owner, key) for key in owner}
    state = network.state_dict(keep_vars=True)
    plain = all(name in places and places[name][0][places[name][1]] is state[name] for name in state)
    return {name: places[name] for name in state} if plain else {}


@torch.no_grad()
def predict(
    network: Network, images: Images, view: Callable[[Tensor], Tensor], batch_size: int = 256
) -> Prediction:
    """Return the network's predictions of every image in a view, in evaluation mode."""
    if network.training:
        network.eval()
    parts = [network(view(batch.to(network.device))) for batch in images.split(batch_size)]
    return Prediction(torch.cat([p.features for p in parts]), torch.cat([p.logits for p in parts]))
