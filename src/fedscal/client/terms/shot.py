"""SHOT: information maximisation and prototype pseudo-labels.

Liang, Hu, Feng: Do We Really Need to Access the Source Data? Source Hypothesis Transfer for
Unsupervised Domain Adaptation. ICML 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedscal import losses
from fedscal.client.step import Step
from fedscal.client.term import Adaptation, State
from fedscal.core.lazy import F, torch
from fedscal.core.options import option
from fedscal.core.types import Sweep

if TYPE_CHECKING:
    from torch import Tensor


def on_the_sphere(features: Tensor) -> Tensor:
    r"""[g, 1] / ||[g, 1]||: features (n, d) with a 1 appended, then of length 1, shape (n, d + 1)."""
    return F.normalize(torch.cat([features, features.new_ones(len(features), 1)], dim=1), dim=1)


@dataclass(frozen=True)
class Shot(Adaptation):
    """L_LoA = L_ent + L_div + beta CE(f(A_w(x)), y), with y the pseudo-label of the image."""

    name: ClassVar[str] = "shot"
    title: ClassVar[str] = "SHOT"
    beta: float = option(0.5, "weight of the pseudo-label cross-entropy in SHOT", low=0, weight=True)
    label_features: Literal["raw", "normalised"] = option(
        "raw",
        "features that SHOT's prototypes are means of: as they are, or with a 1 appended and of length 1",
        later=True,
    )

    def prepare(self, sweep: Sweep, state: State | None) -> State:
        """Label every image of the client with its nearest prototype."""
        features = sweep.features if self.label_features == "raw" else on_the_sphere(sweep.features)
        return {"pseudo_labels": losses.prototype_labels(features, sweep.probabilities)}

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the loss on the weak view."""
        logits = step.weak.logits
        labels = state["pseudo_labels"][step.indices]
        information = losses.prediction_entropy(logits) + losses.negative_diversity(logits)
        return information + self.beta * F.cross_entropy(logits, labels), state
