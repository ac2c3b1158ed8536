"""Parts from outside, installed nowhere: a term, a server rule, a method, a data set and a backbone.

All that it imports from the project is ``fedscal.extend``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedscal.extend import (
    AugmentedViews,
    Average,
    Benchmark,
    Method,
    Reply,
    ServerState,
    State,
    Step,
    Term,
    option,
    register_backbone,
    register_benchmark,
    register_method,
)


@dataclass(frozen=True)
class NuclearNorm(Term):
    """- nu ||p(A_w(x))||_* / B: predictions that are sure and of many classes (Cui et al., CVPR 2020)."""

    name: ClassVar[str] = "nuclear_norm"
    nu_guest: float = option(0.1, "weight of the nuclear norm", low=0, weight=True)

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        probabilities = step.weak.probabilities
        return -self.nu_guest * torch.linalg.matrix_norm(probabilities, "nuc") / len(probabilities), state


@dataclass(frozen=True)
class Cautious(Average):
    """The mean of the replies, of which only a share is taken."""

    caution: float = option(0.5, "share of the last model that is kept", low=0, high=1)

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        merged = super().merge(state, replies)
        before, after = state.models["server"], merged.models["server"]
        model = {
            name: torch.lerp(value, before[name], self.caution) if value.is_floating_point() else value
            for name, value in after.items()
        }
        return ServerState({**merged.models, "server": model}, merged.notes, merged.per_client)


def squares(domain: str) -> tuple[Tensor, Tensor]:
    """A square in one of four corners, its place the class, its grey level the domain."""
    generator = torch.Generator().manual_seed(len(domain))
    labels = torch.arange(48) % 4
    images = torch.randint(0, 60, (48, 1, 32, 32), generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 4 + 14 * (label // 2), 4 + 14 * (label % 2)
        image[:, top : top + 10, left : left + 10] += {"day": 190, "dusk": 120, "night": 70}[domain]
    return images.to(torch.uint8), labels


class Corners(nn.Module):
    """Images to the mean brightness of their 8 x 8 patches, and a layer on them."""

    backbone_rate = 1.0

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(64 * channels, 32), nn.ReLU()
        )

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features


register_method(
    "guest", Method("Guest", Cautious, (NuclearNorm,), "sure predictions of many classes", "nobody yet")
)
register_benchmark(
    Benchmark(
        name="corners",
        title="Corners",
        classes=tuple(f"corner {number}" for number in range(4)),
        domains=("day", "dusk", "night"),
        shape=(1, 32, 32),
        views=AugmentedViews(crop_area=(0.6, 1.0), crop_aspect=(0.8, 1.25), flip=False),
        build=squares,
        version=1,
        defaults={
            "source": "day",
            "pretrain_epochs": 5,
            "clients_per_domain": 2,
            "rounds": 3,
            "local_epochs": 1,
        },
    )
)
register_backbone("corner-mlp", lambda shape: Corners(shape[0]))
