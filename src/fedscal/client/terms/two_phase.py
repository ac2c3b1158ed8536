"""Two-phase pseudo-labels with mixup: FedWCA's client side. A reconstruction.

Mori, Kihara, Miyagawa, Ebihara, Teranishi, Kashima: Federated Source-free Domain Adaptation for
Classification: Weighted Cluster Aggregation for Unlabeled Data. WACV 2025. Of its text (arXiv 2412.13757)
only the beginning was read: that there are two phases, with prototypes and mixup, is known, and what they are
is ours (docs/methods.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedscal import losses
from fedscal.client.step import Step
from fedscal.client.term import Need, State, Term
from fedscal.core.lazy import F, torch
from fedscal.core.options import option
from fedscal.core.types import Sweep

if TYPE_CHECKING:
    from torch import Tensor


def mixup_loss(logits: Tensor, soft_labels: Tensor, partners: Tensor, share: Tensor) -> Tensor:
    r"""-1/n sum_i <s y_i + (1 - s) y_j, log p_i>, j the partner of image i."""
    return F.cross_entropy(logits, torch.lerp(soft_labels[partners], soft_labels, share))


@dataclass(frozen=True)
class TwoPhase(Term):
    r"""lambda_mixup * CE of mixtures of weak views with mixtures of two-phase pseudo-labels.

    Phase one, the first local epoch: the label of the nearest prototype, by the model that the
    client starts from. Phase two, later epochs: the mean of that label and of the one that the present
    model gives; where the two agree it is certain, elsewhere split in halves.
    """

    name: ClassVar[str] = "two_phase"
    scalars: ClassVar[tuple[str, ...]] = ("agreement",)
    needs: ClassVar[frozenset[Need]] = frozenset({Need.MIXED})
    teaches: ClassVar[bool] = True
    lambda_mixup: float = option(1.0, "weight of FedWCA's mixup loss", low=0, weight=True)

    def prepare(self, sweep: Sweep, state: State | None) -> State:
        """Label every image; ``agreement`` is the share of images that both phases label alike."""
        labels = losses.prototype_labels(sweep.features, sweep.probabilities)
        present = F.one_hot(labels, sweep.logits.shape[1]).to(sweep.features.dtype)
        first = present if state is None else state["first"]
        soft = (first + present) / 2
        return {"first": first, "soft_labels": soft, "agreement": (soft.amax(dim=1) == 1).double().mean()}

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the loss of the batch's mixtures."""
        mixed, labels = step.mixed, state["soft_labels"][step.indices]
        return self.lambda_mixup * mixup_loss(
            mixed.prediction.logits, labels, mixed.partners, mixed.share
        ), state
