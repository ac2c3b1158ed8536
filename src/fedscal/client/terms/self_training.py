"""Self-training with a teacher's labels: the local loss of LADD.

Shenaj, Fanì, Toldo, Caldarola, Tavera, Michieli, Ciccone, Zanuttigh, Caputo: Learning Across Domains and
Devices: Style-Driven Source-Free Domain Adaptation in Clustered Federated Learning. WACV 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedscal.client.step import Step
from fedscal.client.term import Adaptation, Need, State
from fedscal.core.lazy import F, torch
from fedscal.core.options import option
from fedscal.core.types import Sweep

if TYPE_CHECKING:
    from torch import Tensor


def trusted(probabilities: Tensor, confident: float, share: float) -> Tensor:
    """Return which labels argmax_j p_ij to trust, shape (n,).

    A label counts if its probability is above ``confident``, or if it is one of the floor(``share`` m) most
    probable of the m labels of its class; of equals the first.
    """
    probability, labels = probabilities.max(dim=1)
    order = torch.arange(len(labels))
    before = (probability[:, None] < probability) | (
        (probability[:, None] == probability) & (order[:, None] > order)
    )
    rank = ((labels[:, None] == labels) & before).sum(dim=1)
    same = torch.bincount(labels, minlength=probabilities.shape[1])[labels]
    return (probability > confident) | (rank < (share * same).floor())


@dataclass(frozen=True)
class SelfTraining(Adaptation):
    """L_LoA = mean over all images of t CE(f(A_w(x)), y), y the teacher's label, t 1 if trusted and else 0.

    The teacher labels all images once per round. It is the model that the server sends for this, and
    the received model where it sends none.
    """

    name: ClassVar[str] = "self_training"
    scalars: ClassVar[tuple[str, ...]] = ("share",)
    title: ClassVar[str] = "self-training"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TEACHER_ONCE})
    confident: float = option(0.9, "a teacher's label above this probability is trusted", low=0, high=1)
    trusted_share: float = option(0.66, "share of the labels of each class that is trusted", low=0, high=1)

    def prepare(self, sweep: Sweep, state: State | None) -> State:
        """Take the teacher's labels at the start of the round, and keep them."""
        if state is not None:
            return state
        probabilities = sweep.by("teacher").probabilities
        kept = trusted(probabilities, self.confident, self.trusted_share)
        return {
            "pseudo_labels": probabilities.argmax(dim=1),
            "trusted": kept,
            "share": kept.double().mean(),
        }

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the loss on the weak view."""
        labels, kept = state["pseudo_labels"][step.indices], state["trusted"][step.indices]
        each = F.cross_entropy(step.weak.logits, labels, reduction="none")
        return (each * kept).mean(), state
