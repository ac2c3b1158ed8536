"""Shared types: models and their predictions, and the messages between server and clients."""

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
Judged = Callable[[Mapping[ClientId, Metrics], float], None]
"""Takes what clients say of models, and the seconds in which the server waited for nothing else."""


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
    """Receives the progress of a long step."""

    def stage(self, name: str, total: int) -> None:
        """Begin a stage of so many steps."""
        ...

    def advance(self) -> None:
        """Count one step."""
        ...


@dataclass(frozen=True)
class Source:
    """The source model, and how often every class occurred among the images that it was trained on.

    ``class_shares`` (J,) is None where nobody knows.
    """

    weights: Weights
    class_shares: Tensor | None = None


@dataclass(frozen=True)
class Prediction:
    """A model's output for n images: features g(x) of shape (n, d) and logits f(x) of shape (n, J)."""

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


class Sweep:
    """One evaluation pass over a client's whole data, at the start of a local epoch; lazy.

    The pass runs when ``prediction``, or one of its parts, is first used: an objective that uses none of
    them does not pay for it. Whether it ran is ``done``; neither ``done`` nor ``repr`` runs it.
    """

    def __init__(
        self,
        run: Callable[[], Prediction],
        others: Mapping[str, Prediction] | None = None,
        shares: Tensor | None = None,
    ) -> None:
        """Plan a pass.

        Args:
            run: makes the pass.
            others: predictions of other models of the package on the same images, by the model's name.
            shares: the class shares (J,) that the client reckons with; None: all alike.
        """
        self.shares = shares
        self._run = run
        self._others = others or {}

    def __repr__(self) -> str:
        return f"Sweep(done={self.done}, others={sorted(self._others)})"

    @property
    def done(self) -> bool:
        """Whether the pass was made."""
        return "prediction" in self.__dict__

    @cached_property
    def prediction(self) -> Prediction:
        """The prediction of every image."""
        return self._run()

    @property
    def features(self) -> Tensor:
        """The features of every image."""
        return self.prediction.features

    @property
    def logits(self) -> Tensor:
        """The logits of every image."""
        return self.prediction.logits

    @property
    def probabilities(self) -> Tensor:
        """The softmax of the logits."""
        return self.prediction.probabilities

    @property
    def entropies(self) -> Tensor:
        """The entropy of every prediction, in nats."""
        return self.prediction.entropies

    def by(self, name: str) -> Prediction:
        """Return the predictions of the package's model of that name, or this pass's without such a model."""
        other = self._others.get(name)
        return self.prediction if other is None else other


Profile: TypeAlias = "Callable[[Images], Weights]"
"""Computes what a client reports of its images once, before the first round."""


@dataclass(frozen=True, slots=True)  # of a round there may be thousands
class Package:
    """What the server sends a client for one round."""

    round: int
    lr: float
    models: Groups


@dataclass(frozen=True, slots=True)  # of a round there may be thousands
class Reply:
    """What a client sends back.

    Attributes:
        weights: its model.
        examples: how many images it trained on.
        epochs: scalars, one mapping per local epoch.
        drift: the distance ||w_k - w^r|| of its model from the one that it started from.
        reports: small tensors that the method's server rule requires, and nothing else of its data.
    """

    client: ClientId
    round: int
    weights: Weights
    examples: int
    epochs: Sequence[Metrics] = field(default_factory=tuple)
    seconds: float = 0.0
    drift: float = 0.0
    reports: Groups = field(default_factory=dict)


@dataclass(frozen=True, slots=True)  # of a round there may be thousands
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
