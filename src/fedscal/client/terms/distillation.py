"""Distillation from the source model: LADD's anchor against forgetting (see ``self_training.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedscal.client.step import Step
from fedscal.client.term import Need, State, Term
from fedscal.client.terms.self_training import trusted
from fedscal.core.lazy import torch
from fedscal.core.options import option
from fedscal.core.types import Sweep

if TYPE_CHECKING:
    from torch import Tensor

_SHARPNESS = 0.5
"""What the source model's logits are multiplied by: its targets are those of temperature 2."""


def soft_distillation(logits: Tensor, old: Tensor, kept: Tensor) -> Tensor:
    r"""-1/n sum_i kept_i 1/J sum_j softmax(old_i / 2)_j log softmax(logits_i)_j: a mean over classes."""
    each = (torch.softmax(_SHARPNESS * old, dim=1) * torch.log_softmax(logits, dim=1)).mean(dim=1)
    return -(each * kept).mean()


@dataclass(frozen=True)
class Distillation(Term):
    r"""lambda_distill times the soft distillation from the source model, on images that it is trusted about.

    The source model predicts all images once per round, and is trusted as self-training trusts its teacher.
    """

    name: ClassVar[str] = "distillation"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SOURCE_ONCE})
    teaches: ClassVar[bool] = True
    lambda_distill: float = option(
        20.0, "weight of the distillation from the source model", low=0, weight=True
    )
    confident: float = option(0.9, "a teacher's label above this probability is trusted", low=0, high=1)
    trusted_share: float = option(0.66, "share of the labels of each class that is trusted", low=0, high=1)

    def prepare(self, sweep: Sweep, state: State | None) -> State:
        """Mark at the start of the round what the source model is trusted about, and keep it."""
        if state is not None:
            return state
        return {
            "trusted": trusted(sweep.by("source").probabilities, self.confident, self.trusted_share),
        }

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the distillation on the weak view."""
        old, kept = step.by("source").logits, state["trusted"][step.indices]
        return self.lambda_distill * soft_distillation(step.weak.logits, old, kept), state
