"""SCAl: server and client alignment with an adaptive threshold, the centre of FedSCAl.

Yashwanth, Koti, Singh, Marjit, Chakraborty: FedSCAl: Leveraging Server and Client Alignment for
Unsupervised Federated Source-Free Domain Adaptation. WACV 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedscal import losses
from fedscal.client.step import Step
from fedscal.client.term import Need, State, Term
from fedscal.core.lazy import torch
from fedscal.core.options import option
from fedscal.core.types import Prediction, Sweep

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Alignment(Term):
    r"""L_SCAl = lambda_l L^l + lambda_g L^g, with a threshold tau that is set once per local epoch.

    ``losses.scal`` is the loss. The client's own prediction of the weak view and that of the received
    server model are the teachers; one tau serves both.
    """

    name: ClassVar[str] = "alignment"
    scalars: ClassVar[tuple[str, ...]] = ("tau", "gamma", "seen", "share_local", "share_server")
    teaches: ClassVar[bool] = True
    lambda_local: float = option(1.0, "weight of the client alignment L^l", low=0, weight=True)
    lambda_server: float = option(1.0, "weight of the server alignment L^g", low=0, weight=True)
    alignment_loss: Literal["kl", "bounded"] = option("kl", "the paper's loss, or its bounded double softmax")
    server_labels: Literal["cached", "recomputed"] = option(
        "cached", "server predictions once per round on one weak view, or on the weak view of every batch"
    )
    adaptive: bool = option(True, "move the threshold with the skewness of the entropies")
    # Up to 2: above 1 - gamma_low no label is kept, which the paper's figure tries.
    tau_init: float = option(0.8, "threshold before adaptation; above 1 nothing is aligned", low=0, high=2)
    gamma_low: float = option(-0.1, "lower clip of the skewness gamma", low=-1, high=0)
    gamma_high: float = option(0.15, "upper clip of the skewness gamma", low=0, high=1)

    @property
    def needs(self) -> frozenset[Need]:
        """The strong view, and the server's predictions if their part is on."""
        server = Need.SERVER_ONCE if self.server_labels == "cached" else Need.SERVER
        return frozenset({Need.STRONG} | ({server} if self.lambda_server else set()))

    def prepare(self, sweep: Sweep, state: State | None) -> State:
        """Set the threshold from the entropies of the client's predictions."""
        gamma = losses.pearson_skewness(sweep.entropies)
        clips = (self.gamma_low, self.gamma_high) if self.adaptive else (0.0, 0.0)
        tau = losses.threshold_by(gamma, self.tau_init, *clips)
        zero = torch.zeros(())
        return {"tau": tau, "gamma": gamma, "seen": zero, "share_local": zero, "share_server": zero}

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the weighted sum of the parts that are on."""
        total, parts = losses.scal(
            step.weak.logits if self.lambda_local else None,
            step.strong.logits,
            self._server(step).logits if self.lambda_server else None,
            state["tau"],
            self.lambda_local,
            self.lambda_server,
            bounded=self.alignment_loss == "bounded",
        )
        seen = state["seen"] + len(step.indices)
        kept = {"share_local": parts.kept_local, "share_server": parts.kept_server}
        shares = {name: _running_share(state[name], mask, seen) for name, mask in kept.items()}
        return total, state | {"seen": seen, **shares}

    def _server(self, step: Step) -> Prediction:
        return step.server_once if self.server_labels == "cached" else step.server


def _running_share(share: Tensor, mask: Tensor, seen: Tensor) -> Tensor:
    """Return the share of kept images so far, ``seen`` images with this batch's included."""
    return share + (mask.sum() - share * len(mask)) / seen
