"""UCon: neighbours attract, the batch repels, and uncertain images keep several labels.

Xu, Guo, Yi, Ling, Wang, Yi: Revisiting Source-Free Domain Adaptation: A New Perspective via Uncertainty
Control. ICLR 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedscal.client.step import Step
from fedscal.client.term import Adaptation, Need, State
from fedscal.core.lazy import F, torch
from fedscal.core.options import option
from fedscal.core.types import Sweep

if TYPE_CHECKING:
    from torch import Tensor

_UNCERTAIN_SHARE = 0.1
_LEAST_SHARE = 1e-3
"""A class that the client seems to lack repels its images no more than this lets it."""


def nearest_rows(features: Tensor, rows: Tensor, bank: Tensor, count: int) -> Tensor:
    """Return the rows of the ``count`` nearest others in the bank, by cosine, shape (n, count)."""
    similarity = features @ bank.T
    similarity.scatter_(1, rows[:, None], -torch.inf)  # an image is not its own neighbour
    return similarity.topk(min(count, len(bank) - 1), dim=1).indices


def attraction(probabilities: Tensor, nearby: Tensor) -> Tensor:
    r"""L+ = -1/n sum_i sum_k <s_ik, p_i>, s_ik the bank's prediction for the k-th neighbour of image i."""
    return -torch.einsum("nkj,nj->n", nearby, probabilities).mean()


def repulsion(probabilities: Tensor, shares: Tensor | None = None) -> Tensor:
    r"""L- = 1/n sum_i sum_{j != i} <p_i, p_j> over the batch; 0 for a batch of one.

    With class shares pi (J,) the product is sum_c p_ic p_jc / (J pi_c): answers that are spread as the
    classes are repel each other alike in every class, and not towards classes that the client does not have.
    """
    weighted = probabilities if shares is None else probabilities / (len(shares) * shares)
    products = weighted @ probabilities.T
    return (products.sum() - products.diagonal().sum()) / len(products)


def dispersion(plain_probabilities: Tensor, augmented_logits: Tensor) -> Tensor:
    r"""L_DC = -1/n sum_i <p(x_i), log p(AUG(x_i))>, with no gradient through the plain view."""
    return F.cross_entropy(augmented_logits, plain_probabilities.detach())


def confidence_ratio(probabilities: Tensor) -> Tensor:
    """Return p_(1) / p_(2) of each prediction; 1 means a tie."""
    first, second = probabilities.topk(2, dim=1).values.unbind(dim=1)
    return first / second.clamp_min(torch.finfo(second.dtype).tiny)


def partial_label_loss(logits: Tensor, labels: Tensor, uncertain: Tensor) -> Tensor:
    r"""1/n sum over uncertain i of sum over y in Y_i of CE(y, f(x_i)), Y_i a row of labels (n, k)."""
    losses = -torch.log_softmax(logits, dim=1).gather(1, labels).sum(dim=1)
    return (losses * uncertain).mean()


@dataclass(frozen=True)
class Ucon(Adaptation):
    r"""L_LoA = L+ + lambda_negative L- + lambda_dispersion L_DC + lambda_partial L_PL.

    Banks hold the L2-normalised feature and the prediction of every image. They are built at the start
    of the round and follow the batches. The uncertain set is {i: p_(1) / p_(2) <= R}, with R the 10th
    percentile of the round's first sweep unless it is given. Its images keep the labels with the most
    predicted mass so far in the round.
    """

    name: ClassVar[str] = "ucon"
    scalars: ClassVar[tuple[str, ...]] = ("ratio",)
    title: ClassVar[str] = "UCon"
    neighbours: int = option(3, "K nearest neighbours in UCon; 3, and 2 for DomainNet", low=1)
    lambda_negative: float = option(1.0, "weight of UCon's repulsion", low=0, weight=True)
    negatives: Literal["sum", "mean"] = option(
        "sum", "UCon's repulsion: sum or mean over the rest of the batch"
    )
    lambda_dispersion: float = option(0.5, "weight of UCon's dispersion control", low=0, weight=True)
    lambda_partial: float = option(0.001, "weight of UCon's partial labels", low=0, weight=True)
    partial_labels: int = option(2, "labels that an uncertain image keeps in UCon", low=1)
    uncertain_ratio: float = option(0.0, "R of UCon; 0: the 10th percentile of the first sweep", low=0)

    @property
    def needs(self) -> frozenset[Need]:
        """The strong view, if dispersion control is on."""
        return frozenset({Need.STRONG} if self.lambda_dispersion else ())

    def prepare(self, sweep: Sweep, state: State | None) -> State:
        """Build the banks at the start of the round; later epochs continue with them, without a sweep."""
        if state is not None:
            return state
        ratio = torch.quantile(confidence_ratio(sweep.probabilities).double(), _UNCERTAIN_SHARE)
        return {
            "features": F.normalize(sweep.features, dim=1),
            "predictions": sweep.probabilities,
            "seen": sweep.probabilities,
            "ratio": torch.tensor(self.uncertain_ratio).double() if self.uncertain_ratio else ratio,
            **({} if sweep.shares is None else {"shares": sweep.shares.clamp_min(_LEAST_SHARE)}),
        }

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the loss of a batch, and the banks after it."""
        probabilities, rows = step.weak.probabilities, step.indices
        state = self._remember(step, state)
        others = max(1, len(rows) - 1) if self.negatives == "mean" else 1
        total = self.lambda_negative * repulsion(probabilities, state.get("shares")) / others
        if len(state["features"]) > 1:
            near = nearest_rows(state["features"][rows], rows, state["features"], self.neighbours)
            total = total + attraction(probabilities, state["predictions"][near])
        if self.lambda_dispersion:
            total = total + self.lambda_dispersion * dispersion(probabilities, step.strong.logits)
        labels = state["seen"][rows].topk(min(self.partial_labels, probabilities.shape[1])).indices
        uncertain = confidence_ratio(probabilities.detach()) <= state["ratio"]
        return total + self.lambda_partial * partial_label_loss(step.weak.logits, labels, uncertain), state

    def _remember(self, step: Step, state: State) -> State:
        """Put the batch's present features and predictions into copies of the banks."""
        features, probabilities = step.weak.features.detach(), step.weak.probabilities.detach()
        rows = step.indices
        return state | {
            "features": state["features"].index_copy(0, rows, F.normalize(features, dim=1)),
            "predictions": state["predictions"].index_copy(0, rows, probabilities),
            "seen": state["seen"].index_add(0, rows, probabilities),
        }
