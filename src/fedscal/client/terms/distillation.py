"""Distillation from the source model: LADD's anchor against forgetting (see ``self_training.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedscal.client.step import Step
from fedscal.client.term import Need, State, Term
from fedscal.core.lazy import F
from fedscal.core.options import option

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Distillation(Term):
    r"""lambda_distill * -1/n sum_i <p_source(x_i), log f(A_w(x_i))>, p_source predicted once per round."""

    name: ClassVar[str] = "distillation"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SOURCE_ONCE})
    lambda_distill: float = option(
        1.0, "weight of the distillation from the source model", low=0, weight=True
    )

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the cross-entropy from the source model's predictions to the client's."""
        return self.lambda_distill * F.cross_entropy(step.weak.logits, step.by("source").probabilities), state
