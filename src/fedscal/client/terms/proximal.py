"""FedProx: stay near the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedscal.client.step import Step
from fedscal.client.term import State, Term
from fedscal.core.lazy import torch
from fedscal.core.options import option

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Proximal(Term):
    r"""mu/2 ||w - w^r||^2 over the trainable parameters, the norm squared."""

    name: ClassVar[str] = "proximal"
    mu: float = option(0.01, "weight of the proximal term", low=0, weight=True)

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the penalty at the present weights."""
        squares = [(now - received).square().sum() for now, received in step.pairs]
        return self.mu / 2 * torch.stack(squares).sum(), state
