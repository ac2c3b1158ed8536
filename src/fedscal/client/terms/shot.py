"""SHOT: information maximisation and prototype pseudo-labels.

Liang, Hu, Feng: Do We Really Need to Access the Source Data? Source Hypothesis Transfer for
Unsupervised Domain Adaptation. ICML 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedscal import losses
from fedscal.client.step import Step
from fedscal.client.term import Adaptation, State
from fedscal.core.lazy import F
from fedscal.core.options import option
from fedscal.core.types import Sweep

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Shot(Adaptation):
    """L_LoA = L_ent + L_div + beta CE(f(A_w(x)), y), with y the pseudo-label of the image."""

    name: ClassVar[str] = "shot"
    title: ClassVar[str] = "SHOT"
    beta: float = option(0.5, "weight of the pseudo-label cross-entropy in SHOT", low=0, weight=True)

    def prepare(self, sweep: Sweep, state: State | None) -> State:
        """Label every image of the client with its nearest prototype."""
        return {"pseudo_labels": losses.prototype_labels(sweep.features, sweep.probabilities)}

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the loss on the weak view."""
        logits = step.weak.logits
        labels = state["pseudo_labels"][step.indices]
        information = losses.prediction_entropy(logits) + losses.negative_diversity(logits)
        return information + self.beta * F.cross_entropy(logits, labels), state
