"""Are small clients faster as one stacked model? A training step of each, alone and by ``torch.func.vmap``.

    python -m benchmarks.stacked

Every client has five images, its own weights and BatchNorm statistics. A step is a forward pass, information
maximisation, a backward pass, and momentum SGD with each client's own clipping. Alone: the network and the
optimiser as clients use them. Stacked: the same equations on stacked tensors. Both alternate in one process
with one thread; the ratio of CPU seconds is the median. Convolutions run in torch's usual memory format when
they are stacked: channels-last cannot be asked for there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedscal import losses
from fedscal.client.descent import Descent
from fedscal.core.rng import compute_threads
from fedscal.models.backbones import ConvNet
from fedscal.models.network import Network

_COUNTS, _REPEATS, _IMAGES, _CLASSES = (4, 16, 64), 5, 5, 10
_LR, _CLIP, _DECAY, _MOMENTUM = 0.01, 1.0, 5e-4, 0.9


def convnet() -> Network:
    """Return the small convolutional network."""
    return Network(ConvNet(1), ConvNet.width, _CLASSES)


def bottleneck() -> Network:
    """Return what is trained over a frozen trunk with 1280 features."""
    return Network(nn.Identity(), 1280, _CLASSES)


def loss_of(logits: Tensor) -> Tensor:
    """Return information maximisation."""
    return losses.prediction_entropy(logits) + losses.negative_diversity(logits)


class Alone:
    """Clients that train one after the other."""

    def __init__(self, networks: list[Network]) -> None:
        self.networks = networks
        self._descents = [
            Descent.of(network.parameter_groups(_LR), _CLIP, _DECAY, _MOMENTUM) for network in networks
        ]

    def step(self, images: Tensor) -> None:
        """Train each on its images (K, n, ...)."""
        for network, descent, own in zip(self.networks, self._descents, images, strict=True):
            descent.step(loss_of(network(own).logits))


class Stacked:
    """Clients that train together: every tensor has one more dimension, the client."""

    def __init__(self, networks: list[Network]) -> None:
        self._network = networks[0]
        if isinstance(self._network.backbone, ConvNet):
            self._network.backbone = self._network.backbone.layers
            self._network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        states = [{n.replace("layers.", ""): t for n, t in each.state_dict().items()} for each in networks]
        trains = {name: tensor.requires_grad for name, tensor in self._network.named_parameters()}
        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        self.parameters = {name: stacked[name].requires_grad_(moves) for name, moves in trains.items()}
        self._buffers = {name: tensor for name, tensor in stacked.items() if name not in trains}
        self._trained = [tensor for tensor in self.parameters.values() if tensor.requires_grad]
        self._momenta: list[Tensor] | None = None

    def step(self, images: Tensor) -> None:
        """Train all on their images (K, n, ...)."""

        def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], own: Tensor) -> Tensor:
            return loss_of(functional_call(self._network, (parameters, buffers), own).logits)

        total = vmap(loss)(self.parameters, self._buffers, images).sum()
        with torch.no_grad():
            self._move(list(torch.autograd.grad(total, self._trained)))

    def _move(self, g: list[Tensor]) -> None:
        norm = torch.stack([each.flatten(1).square().sum(dim=1) for each in g]).sum(dim=0).sqrt()
        clip = (_CLIP / (norm + 1e-6)).clamp(max=1)
        g = [each * clip.view(-1, *[1] * (each.ndim - 1)) for each in g]
        torch._foreach_add_(g, self._trained, alpha=_DECAY)
        if self._momenta:
            torch._foreach_mul_(self._momenta, _MOMENTUM)
            torch._foreach_add_(self._momenta, g)
        self._momenta = self._momenta or g
        torch._foreach_add_(self._trained, torch._foreach_add(g, self._momenta, alpha=_MOMENTUM), alpha=-_LR)


@dataclass(frozen=True)
class Cost:
    """CPU seconds of the same steps, and the largest difference of a weight after them."""

    alone: list[float]
    stacked: list[float]
    gap: float


def measure(make: Callable[[], Network], shape: tuple[int, ...], count: int) -> Cost:
    """Train the same clients both ways."""
    networks, twins = ([_seeded(make, number) for number in range(count)] for _ in range(2))
    alone, stacked = Alone(networks), Stacked(twins)
    ways: tuple[Alone | Stacked, ...] = (alone, stacked)
    draw = torch.Generator().manual_seed(0)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_REPEATS + 1):
        images = torch.randn(count, _IMAGES, *shape, generator=draw)
        for way, spent in zip(ways, seconds, strict=True):
            started = time.process_time()
            way.step(images)
            spent.append(time.process_time() - started)
    gaps = [
        (together[number] - _named(network, name)).abs().max()
        for name, together in stacked.parameters.items()
        for number, network in enumerate(networks)
    ]
    return Cost(seconds[0][1:], seconds[1][1:], max(gap.item() for gap in gaps))


def _named(network: Network, name: str) -> Tensor:
    return {n.replace("layers.", ""): p.detach() for n, p in network.named_parameters()}[name]


def _seeded(make: Callable[[], Network], seed: int) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = make()
    network.freeze_head()
    return network.train()


def main() -> None:
    """Print a table."""
    table = Table("trained", "clients", "alone, ms", "stacked, ms", "alone / stacked", "largest difference")
    kinds = {"small convnet": (convnet, (1, 28, 28)), "bottleneck, frozen trunk": (bottleneck, (1280,))}
    with compute_threads(1):
        for kind, (make, shape) in kinds.items():
            for count in _COUNTS:
                cost = measure(make, shape, count)
                ratio = median(a / b for a, b in zip(cost.alone, cost.stacked, strict=True))
                each = (f"{1000 * median(way) / count:.2f}" for way in (cost.alone, cost.stacked))
                table.add_row(kind, str(count), *each, f"{ratio:.2f}", f"{cost.gap:.0e}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
