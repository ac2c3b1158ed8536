"""The words that the whole package shares: what crosses the wire, and what a model says of images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fedscal.core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


ClientId = str
Weights: TypeAlias = "Mapping[str, Tensor]"
"""A state dict: parameters and buffers by name."""
Groups: TypeAlias = "Mapping[str, Weights]"
"""Named groups of tensors: the models of a package or a server state, a client's memory or reports."""
Memory: TypeAlias = "Groups"
"""What a client keeps between rounds; it never leaves the client."""
Metrics = Mapping[str, float]


class Images(Protocol):
    """uint8 images (n, C, H, W): a tensor, or something that fetches batches of them from a disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor, /) -> Tensor: ...

    def split(self, size: int, /) -> Iterable[Tensor]:
        """Return all images in batches of this size, in order."""
        ...


class Views(Protocol):
    """Three ways to show a batch of uint8 images (B, C, H, W) to a model, as normalised float32."""

    def evaluate(self, images: Tensor) -> Tensor:
        """Return the images as they are."""
        ...

    def weak(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return a slightly changed view of each image."""
        ...

    def strong(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return a heavily changed view of each image."""
        ...


class Progress(Protocol):
    """Who is told how far a long step is."""

    def stage(self, name: str, total: int) -> None:
        """Begin a stage of so many steps."""
        ...

    def advance(self) -> None:
        """Count one step."""
        ...


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


class Sweep(Prediction):
    """One evaluation pass over a client's whole data, at the start of a local epoch.

    The pass is made when a term first looks at it: an objective that never does is not charged for it.

    Attributes:
        others: what other models of the package say of the same images, by name; made once a round.
    """

    others: Mapping[str, Prediction]

    def __init__(
        self, make: Callable[[], Prediction], others: Mapping[str, Prediction] | None = None
    ) -> None:
        self.__dict__.update(_make=make, others=others or {})

    @cached_property
    def _made(self) -> Prediction:
        made: Prediction = self.__dict__["_make"]()
        return made

    @property
    def made(self) -> bool:
        """Whether anybody has looked."""
        return "_made" in self.__dict__

    @property
    def features(self) -> Tensor:
        """The features of every image."""
        return self._made.features

    @property
    def logits(self) -> Tensor:
        """The logits of every image."""
        return self._made.logits

    def by(self, name: str) -> Prediction:
        """Return what the package's model of that name says, or this pass if there is no such model."""
        return self.others.get(name, self)


Profile: TypeAlias = "Callable[[Images], Weights]"
"""What a method has a client tell of its images, once."""


@dataclass(frozen=True)
class Package:
    """What the server sends a client for one round."""

    round: int
    lr: float
    models: Groups


@dataclass(frozen=True)
class Reply:
    """What a client sends back.

    Attributes:
        weights: its model.
        examples: how many images it trained on.
        epochs: scalars, one mapping a local epoch.
        drift: the distance ||w_k - w^r|| of its model from the one that it started from.
        reports: small tensors that the method's server rule asks for, and nothing else of its data.
    """

    client: ClientId
    round: int
    weights: Weights
    examples: int
    epochs: Sequence[Metrics] = field(default_factory=tuple)
    seconds: float = 0.0
    drift: float = 0.0
    reports: Groups = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """A client that did not answer, or whose answer was refused, and why.

    Attributes:
        code: the exit code of the error's kind.
        error: the exception itself, where it was raised in this process; it never travels.
    """

    client: ClientId
    reason: str
    code: int = 1
    error: Exception | None = field(default=None, compare=False, repr=False)
