"""A client objective is a sum of terms: l_k = L_LoA + L_SCAl + ..., each of the same kind."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from fedscal.client.start import Received, Start
from fedscal.client.step import Step
from fedscal.core.lazy import torch
from fedscal.core.options import options_of
from fedscal.core.types import Metrics, Sweep, Weights

if TYPE_CHECKING:
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"
"""What a term carries from batch to batch."""


class Need(enum.Enum):
    """What a term needs of the training loop beyond the client's own weak view."""

    STRONG = "the client's model on the strong view, every batch"
    SERVER = "the received server model on the weak view, every batch"
    SERVER_ONCE = "the received server model on a weak view of all images, once per round"
    PREVIOUS = "this client's model of its last participation on the weak view, every batch"
    MIXED = "the client's model on mixtures of weak views, every batch"
    TEACHER_ONCE = "the package's teacher on all images, once per round"
    SOURCE_ONCE = "the package's source model on all images, once per round"


class Term(ABC):
    """One summand of the client's objective. Terms are frozen dataclasses of plain numbers.

    A term must have a ``name`` and a ``loss``; everything else has a default.
    """

    name: ClassVar[str]
    scalars: ClassVar[tuple[str, ...]] = ()
    """The 0-d tensors of its state that are recorded once per local epoch; no others leave a client."""
    teaches: ClassVar[bool] = False
    """Whether a client can be trained with it alone, without a local adaptation beside it."""

    @property
    def needs(self) -> frozenset[Need]:
        """The extra forward passes that ``loss`` uses; none by default."""
        return frozenset()

    @property
    def null(self) -> bool:
        """Whether the term is zero everywhere and can be left out: all its weights are 0."""
        weights = [name for name, declared in options_of(type(self)).items() if declared.weight]
        return bool(weights) and not any(getattr(self, name) for name in weights)

    def prepare(self, sweep: Sweep, state: State | None) -> State:
        """Start a local epoch from a sweep over the client's data; ``state`` is the last epoch's."""
        return {}

    @abstractmethod
    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the term's value on a batch, and the state for the next one."""

    def pseudo_labels(self, sweep: Sweep) -> Tensor | None:
        """Return the labels (n,) that a local epoch would start from; None if it has none."""
        return None

    def report(self, state: State) -> Weights:
        """Return what the server's rule requires beside the weights, from the state after the last batch."""
        return {}


class Adaptation(Term):
    """A term that can stand in the LoA slot, where it stays whatever its weights are."""

    title: ClassVar[str]
    """Its name in tables."""
    null: ClassVar[bool] = False

    def pseudo_labels(self, sweep: Sweep) -> Tensor | None:
        """Return the pseudo-labels of its state."""
        return self.prepare(sweep, None).get("pseudo_labels")


@dataclass(frozen=True)
class Objective:
    """The sum of the terms that are not null; the first one is the local adaptation.

    Attributes:
        terms: the summands.
        start: how the received models become the one that is trained.
        trains_head: whether the classifier is trained too; if not, it stays as it was received.
    """

    terms: tuple[Term, ...]
    start: Start = field(default_factory=Received)
    trains_head: bool = False

    @cached_property
    def active(self) -> tuple[Term, ...]:
        """The terms that can be other than zero."""
        return tuple(term for term in self.terms if not term.null)

    @cached_property
    def needs(self) -> frozenset[Need]:
        """The extra forward passes of all active terms together."""
        return frozenset[Need]().union(*(term.needs for term in self.active))

    @property
    def asks_server(self) -> bool:
        """Whether the received model teaches beside the client's own."""
        return not self.needs.isdisjoint({Need.SERVER, Need.SERVER_ONCE})

    def prepare(self, sweep: Sweep, states: Sequence[State] | None) -> list[State]:
        """Start a local epoch for every active term."""
        before: Sequence[State | None] = states or [None] * len(self.active)
        return [term.prepare(sweep, state) for term, state in zip(self.active, before, strict=True)]

    def loss(self, step: Step, states: Sequence[State]) -> tuple[Tensor, list[State]]:
        """Return the summed loss of a batch and the terms' next states."""
        results = [term.loss(step, state) for term, state in zip(self.active, states, strict=True)]
        # A penalty on the weights is made where they are; all other values are on the CPU anyway.
        return torch.stack([value.cpu() for value, _ in results]).sum(), [state for _, state in results]

    def pseudo_labels(self, sweep: Sweep) -> Tensor | None:
        """Return the labels (n,) that a local epoch would start from, those of the first term with any."""
        found = (term.pseudo_labels(sweep) for term in self.terms)
        return next((labels for labels in found if labels is not None), None)

    def reports(self, states: Sequence[State]) -> dict[str, Weights]:
        """Return what the terms report to the server, by the name of the term."""
        pairs = zip(self.active, states, strict=True)
        return {term.name: report for term, state in pairs if (report := term.report(state))}

    def readings(self, states: Sequence[State]) -> Metrics:
        """Return the scalars that the terms record, as ``term.scalar``."""
        return {
            f"{term.name}.{name}": float(state[name])
            for term, state in zip(self.active, states, strict=True)
            for name in term.scalars
        }

    @property
    def recorded(self) -> tuple[str, ...]:
        """The names of ``readings``."""
        return tuple(f"{term.name}.{name}" for term in self.active for name in term.scalars)
