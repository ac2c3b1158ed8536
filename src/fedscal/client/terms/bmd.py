"""BMD: class-balanced prototypes, static and dynamic pseudo-labels.

Qu, Chen, Zhang, Li, He, Tao: BMD: A General Class-balanced Multicentric Dynamic Prototype Strategy
for Source-free Domain Adaptation. ECCV 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedscal import losses
from fedscal.client.step import Step
from fedscal.client.term import Adaptation, State
from fedscal.core.clusters import k_means
from fedscal.core.lazy import F, torch
from fedscal.core.options import option
from fedscal.core.types import Sweep

if TYPE_CHECKING:
    from torch import Tensor


def balanced_prototypes(features: Tensor, probabilities: Tensor, ratio: float, centres: int = 1) -> Tensor:
    r"""c_j = mean of the M images most likely of class j, M = max(1, floor(n / (r J))).

    Every class gets the same number of images, however rarely it is predicted. With several centres,
    k-means clusters the M images of a class. The shape is (J, centres, d).
    """
    count, classes = probabilities.shape
    top = max(1, int(count / (ratio * classes)))
    rows = probabilities.topk(top, dim=0).indices  # (M, J)
    if centres == 1:
        return features[rows].mean(dim=0)[:, None]
    return torch.stack([k_means(features[rows[:, j]], centres) for j in range(classes)])


def nearest_class(features: Tensor, prototypes: Tensor) -> Tensor:
    """Return the class of the nearest prototype by cosine distance, shape (n,)."""
    similarity = torch.einsum("nd,jkd->njk", F.normalize(features, dim=1), F.normalize(prototypes, dim=2))
    return similarity.amax(dim=2).argmax(dim=1)


def memberships(features: Tensor, prototypes: Tensor) -> Tensor:
    r"""exp<g_i, c_jk> / sum exp<g_i, c>: how much image i belongs to prototype k of class j."""
    products = torch.einsum("nd,jkd->njk", features, prototypes)
    return torch.softmax(products.flatten(1), dim=1).view_as(products)


def nearest_memberships(features: Tensor, prototypes: Tensor) -> Tensor:
    r"""Softmax over the classes j of max_k <g_i, c_jk>: how much image i belongs to each, shape (n, J)."""
    products = torch.einsum("nd,jkd->njk", features, prototypes)
    return torch.softmax(products.amax(dim=2), dim=1)


def moved_prototypes(prototypes: Tensor, features: Tensor, belongs: Tensor, momentum: float) -> Tensor:
    r"""C <- m c + (1 - m) c_batch, c_batch = sum_i p_i g_i / sum_i p_i over the batch."""
    batch = losses.soft_prototypes(features, belongs.flatten(1)).view_as(prototypes)
    return momentum * prototypes + (1 - momentum) * batch


def symmetric_cross_entropy(logits: Tensor, soft_labels: Tensor) -> Tensor:
    r"""-1/n sum_i sum_j (y_ij log p_ij + p_ij log y_ij)."""
    log_p = torch.log_softmax(logits, dim=1)
    log_y = soft_labels.clamp_min(torch.finfo(soft_labels.dtype).tiny).log()
    return -(soft_labels * log_p + log_p.exp() * log_y).sum(dim=1).mean()


@dataclass(frozen=True)
class Bmd(Adaptation):
    r"""L_LoA = alpha L_st + beta_dynamic L_dyn (+ L_ent + L_div, as the authors run it).

    L_st is the cross-entropy with the label of the nearest prototype, set once per local epoch; L_dyn the
    symmetric cross-entropy with the soft label that the moving prototypes give an image in its batch.
    Features are L2-normalised before they meet a prototype. BMD's own code rebuilds the prototypes once from
    the images that lie nearest to them, and its dynamic label counts the nearest prototype of a class alone
    and has a gradient: ``prototype_passes`` and ``dynamic_label``.
    """

    name: ClassVar[str] = "bmd"
    title: ClassVar[str] = "BMD"
    alpha: float = option(1.0, "weight of BMD's static pseudo-labels", low=0, weight=True)
    beta_dynamic: float = option(1.0, "weight of BMD's dynamic pseudo-labels", low=0, weight=True)
    top_ratio: float = option(3.0, "r: BMD's prototypes are means of n / (r J) images", above=0)
    prototypes: int = option(1, "prototypes per class in BMD", low=1, high=100)
    prototype_momentum: float = option(0.9999, "how slowly BMD's prototypes move", low=0, high=1)
    information: bool = option(True, "add information maximisation to BMD")
    prototype_passes: int = option(
        1, "times that BMD builds its prototypes: from predictions, then from nearness", low=1, later=True
    )
    dynamic_label: Literal["membership", "nearest"] = option(
        "membership",
        "BMD's soft label: all prototypes of a class, no gradient; or the nearest one, with gradient",
        later=True,
    )

    def prepare(self, sweep: Sweep, state: State | None) -> State:
        """Build the prototypes and label every image by the nearest one."""
        features = F.normalize(sweep.features, dim=1)
        centres = balanced_prototypes(features, sweep.probabilities, self.top_ratio, self.prototypes)
        for _ in range(self.prototype_passes - 1):
            near = nearest_memberships(features, centres)
            centres = balanced_prototypes(features, near, self.top_ratio, self.prototypes)
        return {"pseudo_labels": nearest_class(features, centres), "prototypes": centres}

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the loss on the weak view, and the prototypes after this batch."""
        logits = step.weak.logits
        features = F.normalize(step.weak.features.detach(), dim=1)
        belongs = memberships(features, state["prototypes"])
        static = F.cross_entropy(logits, state["pseudo_labels"][step.indices])
        dynamic = symmetric_cross_entropy(logits, self._dynamic_label(step, state, belongs))
        total = self.alpha * static + self.beta_dynamic * dynamic
        if self.information:
            total = total + losses.prediction_entropy(logits) + losses.negative_diversity(logits)
        moved = moved_prototypes(state["prototypes"], features, belongs, self.prototype_momentum)
        return total, state | {"prototypes": moved}

    def _dynamic_label(self, step: Step, state: State, belongs: Tensor) -> Tensor:
        if self.dynamic_label == "membership":
            return belongs.sum(dim=2)
        return nearest_memberships(F.normalize(step.weak.features, dim=1), state["prototypes"])
