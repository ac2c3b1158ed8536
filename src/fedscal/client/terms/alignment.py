"""SCAl: server and client alignment with an adaptive threshold, the centre of FedSCAl.

Yashwanth, Koti, Singh, Marjit, Chakraborty: FedSCAl: Leveraging Server and Client Alignment for
Unsupervised Federated Source-Free Domain Adaptation. WACV 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedscal import losses as functional
from fedscal.client.step import Step
from fedscal.client.term import Need, State
from fedscal.core.lazy import torch
from fedscal.core.options import option
from fedscal.core.types import Prediction, Sweep

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Alignment:
    r"""L_SCAl = lambda_l L^l + lambda_g L^g.

    L^l = mean over {i: max p_i > tau} of D_KL(onehot(p_i) || q_i), where p_i is the client's own
    prediction of the weak view and q_i that of the strong view. L^g is the same with p_i from the
    received server model. One tau serves both masks; a part with nothing over tau is 0.
    """

    name: ClassVar[str] = "alignment"
    scalars: ClassVar[tuple[str, ...]] = ("tau", "gamma", "seen", "share_local", "share_server")
    lambda_local: float = option(1.0, "weight of the client alignment L^l", low=0)
    lambda_server: float = option(1.0, "weight of the server alignment L^g", low=0)
    alignment_loss: Literal["kl", "bounded"] = option("kl", "the paper's loss, or its bounded double softmax")
    server_labels: Literal["cached", "recomputed"] = option(
        "cached", "server predictions once a round on one weak view, or on the weak view of every batch"
    )
    adaptive: bool = option(True, "move the threshold with the skewness of the entropies")
    tau_init: float = option(0.8, "threshold before adaptation", low=0, high=1)
    gamma_low: float = option(-0.1, "lower clip of the skewness gamma", low=-1, high=0)
    gamma_high: float = option(0.15, "upper clip of the skewness gamma", low=0, high=1)

    @property
    def null(self) -> bool:
        """Whether both parts are switched off."""
        return self.lambda_local == 0 and self.lambda_server == 0

    @property
    def needs(self) -> frozenset[Need]:
        """The strong view, and the server's predictions if their part is on."""
        server = Need.SERVER_ONCE if self.server_labels == "cached" else Need.SERVER
        return frozenset({Need.STRONG} | ({server} if self.lambda_server else set()))

    def prepare(self, sweep: Sweep, state: State | None) -> State:
        """Set the threshold from the entropies of the client's predictions."""
        gamma = functional.pearson_skewness(sweep.entropies)
        shift = gamma if self.adaptive else torch.zeros_like(gamma)
        tau = functional.adaptive_threshold(self.tau_init, shift, self.gamma_low, self.gamma_high)
        zero = torch.zeros(())
        return {"tau": tau, "gamma": gamma, "seen": zero, "share_local": zero, "share_server": zero}

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the weighted sum of the parts that are on."""
        total = torch.zeros((), device=step.indices.device)
        seen = state["seen"] + len(step.indices)
        state = state | {"seen": seen}
        # The weak prediction comes first: with BatchNorm, the order of the passes matters.
        parts = [("share_local", self.lambda_local, step.weak)] if self.lambda_local else []
        if self.lambda_server:
            cached = self.server_labels == "cached"
            parts.append(("share_server", self.lambda_server, step.server_once if cached else step.server))
        for share, weight, teacher in parts:
            value, kept = self._part(teacher, step.strong, state["tau"])
            total = total + weight * value
            state[share] = state[share] + (kept.sum() - state[share] * len(kept)) / seen
        return total, state

    def _part(self, teacher: Prediction, student: Prediction, tau: Tensor) -> tuple[Tensor, Tensor]:
        confidence, labels = teacher.probabilities.detach().max(dim=1)
        kept = confidence > tau
        losses = functional.alignment_losses(student.logits, labels, self.alignment_loss == "bounded")
        return functional.kept_mean(losses, kept), kept
