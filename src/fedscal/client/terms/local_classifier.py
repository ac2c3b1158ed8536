"""DualAdapt's client side: a classifier and a mixture of Gaussians of one's own. Source-free reading.

Yao, Gong, Qi, Cui, Zhu, Yang: Federated Multi-Target Domain Adaptation. WACV 2022. The original trains
on labelled source images at the server, which this setting does not have (``server/rules/dual_adapt.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedscal import losses
from fedscal.client.step import Step
from fedscal.client.term import State, Term
from fedscal.core.features import class_gaussians, discrepancy, probabilities
from fedscal.core.lazy import F, torch
from fedscal.core.options import option
from fedscal.core.types import Sweep, Weights

if TYPE_CHECKING:
    from torch import Tensor

_REPORTED = ("weight", "bias", "mean", "variance", "share")


def softmax_regression(features: Tensor, labels: Tensor, classes: int, decay: float) -> tuple[Tensor, Tensor]:
    r"""Return the W, b that minimise 1/n sum_i CE(W g_i + b, y_i) + decay/2 ||W||^2."""
    weight = torch.zeros(classes, features.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight, bias], max_iter=50, tolerance_grad=1e-4, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = F.cross_entropy(features @ weight.T + bias, labels) + decay / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        solver.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


@dataclass(frozen=True)
class LocalClassifier(Term):
    r"""lambda_discrepancy * 1/n sum_i sum_j |h(g_i)_j - h_k(g_i)_j|, h the server's head, h_k the client's.

    h_k is fitted to the client's pseudo-labels at the start of every local epoch and stands still within
    it: the features move until both classifiers agree on them. Alone, without an adaptation that holds the
    classes apart, they agree soonest where all features are equal: hence the weight 0, with which a client
    fits and reports and leaves its features alone.
    """

    name: ClassVar[str] = "local_classifier"
    teaches: ClassVar[bool] = True
    null: ClassVar[bool] = False  # even with weight 0, the server waits for its report
    lambda_discrepancy: float = option(
        0.0, "weight of the discrepancy of the two classifiers", low=0, weight=True
    )
    classifier_decay: float = option(1e-3, "L2 penalty of the local classifier", above=0)

    def prepare(self, sweep: Sweep, state: State | None) -> State:
        """Fit the classifier and the mixture to the pseudo-labels."""
        classes = sweep.logits.shape[1]
        labels = self.pseudo_labels(sweep)
        weight, bias = softmax_regression(sweep.features, labels, classes, self.classifier_decay)
        return {"weight": weight, "bias": bias, **class_gaussians(sweep.features, labels, classes)}

    def pseudo_labels(self, sweep: Sweep) -> Tensor:
        """Return the labels that the classifier is fitted to: SHOT's."""
        return losses.prototype_labels(sweep.features, sweep.probabilities)

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the discrepancy on the weak view."""
        own = probabilities(state, step.weak.features)
        return self.lambda_discrepancy * discrepancy(step.weak.probabilities, own), state

    def report(self, state: State) -> Weights:
        """Report the classifier and the mixture of the last local epoch."""
        return {name: state[name] for name in _REPORTED}
