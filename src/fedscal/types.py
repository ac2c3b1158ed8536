"""The words that the whole package shares: what crosses the wire, and what a model says of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

ClientId = str
Weights = Mapping[str, Tensor]
"""A state dict: parameters and buffers by name."""
Groups = Mapping[str, Weights]
"""Named groups of tensors: the models of a package, of a server state, or a client's memory."""
Memory = Groups
"""What a client keeps between rounds; it never leaves the client."""
Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Prediction:
    """What a model says of n images: features g(x) of shape (n, d) and logits f(x) of shape (n, J)."""

    features: Tensor
    logits: Tensor

    @cached_property
    def probabilities(self) -> Tensor:
        """The softmax of the logits."""
        return torch.softmax(self.logits, dim=1)

    @cached_property
    def entropies(self) -> Tensor:
        """The entropy H of each prediction, in nats."""
        return -(self.probabilities * torch.log_softmax(self.logits, dim=1)).sum(dim=1)

    def __getitem__(self, rows: Tensor) -> Prediction:
        return Prediction(self.features[rows], self.logits[rows])


Sweep = Prediction
"""One evaluation pass over a client's whole data, made at the start of a local epoch."""


@dataclass(frozen=True)
class Package:
    """What the server sends a client for one round."""

    round: int
    lr: float
    models: Groups


@dataclass(frozen=True)
class Reply:
    """What a client sends back: its model and scalars, one mapping a local epoch; nothing of its data."""

    client: ClientId
    round: int
    weights: Weights
    examples: int
    epochs: Sequence[Metrics] = field(default_factory=tuple)
    seconds: float = 0.0


@dataclass(frozen=True)
class Failure:
    """A client that did not answer, or whose answer was refused, and why."""

    client: ClientId
    reason: str
