"""FedProx: stay near the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedscal.client.step import Step
from fedscal.client.term import State, Term
from fedscal.core.lazy import torch
from fedscal.core.options import option

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Proximal(Term):
    r"""mu/2 ||w - w^r||^2 over the trainable parameters; or mu/2 sum ||w_t - w_t^r|| over their tensors t.

    The first is FedProx's. The second is the FedSCAl authors' code's: it pulls a tensor with the same
    force however far it has gone.
    """

    name: ClassVar[str] = "proximal"
    mu: float = option(0.01, "weight of the proximal term", low=0, weight=True)
    proximal_norm: Literal["squared", "plain"] = option(
        "squared", "FedProx's squared distance, or the sum of the tensors' distances", later=True
    )

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the penalty at the present weights."""
        measure = _square if self.proximal_norm == "squared" else torch.linalg.vector_norm
        return self.mu / 2 * torch.stack([measure(now - then) for now, then in step.pairs]).sum(), state


def _square(difference: Tensor) -> Tensor:
    return difference.square().sum()
