"""DualAdapt: the server's classifier is aligned with the clients' own. Source-free reading.

Yao, Gong, Qi, Cui, Zhu, Yang: Federated Multi-Target Domain Adaptation. WACV 2022. The original uses
labelled source images at the server; here they are gone, and class-wise Gaussians of source features,
stored when the source model was trained, stand in for them. Theirs is the feature space of the source
model, from which the clients' features move away: a limit of this reading.

Beyond its weights a client reports a linear classifier of its own and the mean, variance and share of its
features in every pseudo-class: a coarse map of its data in feature space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedscal.core import weights
from fedscal.core.errors import ModelRefused
from fedscal.core.features import discrepancy, probabilities, sample
from fedscal.core.lazy import F, torch
from fedscal.core.options import option
from fedscal.core.rng import stream
from fedscal.core.types import ClientId, Groups, Reply, Weights
from fedscal.server.rule import Briefing, ServerRule, ServerState

if TYPE_CHECKING:
    from torch import Tensor

_REPORT = "local_classifier"
_SAMPLES = 64
"""Features per class that are drawn from the source, and as many in all from every client's mixture."""
_FARTHEST = 1000.0
"""How many times as large as the source's largest mean, or as 1, a client's means and deviations may be."""


@dataclass(frozen=True)
class DualAdapt(ServerRule):
    """Average the features, then train the head: right on the source, at one with the clients' classifiers.

    The head minimises CE(h(z), y) over z from the source Gaussians, plus lambda_agree times the
    discrepancy of h and h_k over z from the mixture of client k, averaged over the replies.
    """

    lambda_agree: float = option(
        1.0, "weight of the agreement with the clients' classifiers", low=0, weight=True
    )
    head_steps: int = option(20, "gradient steps of the server's head per round", low=0, high=10_000)
    head_lr: float = option(0.01, "learning rate of the server's head", above=0)

    def init(self, briefing: Briefing) -> ServerState:
        """Hold the source model and the Gaussians of its features."""
        if not briefing.gaussians:
            raise ModelRefused(
                "dualadapt needs the Gaussians of the source features, which this source model came without; "
                "train it with `fedscal pretrain`, or choose another method."
            )
        notes = {name: briefing.gaussians[name] for name in ("mean", "variance")}
        return ServerState({"server": briefing.source}, notes)

    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Send the shared model."""
        return state.models

    def reports(self, sent: Groups) -> Groups:
        """Require a classifier and a mixture of every client, both of the head's shape."""
        head = sent["server"]["head.weight"]
        flat = torch.zeros(len(head))
        matrices = dict.fromkeys(("weight", "mean", "variance"), torch.zeros_like(head))
        return {_REPORT: {**matrices, "bias": flat, "share": flat}}

    def suspects(self, state: ServerState, replies: Sequence[Reply]) -> dict[ClientId, str]:
        """Name the replies whose mixture is not valid, or lies far from all features."""
        farthest = _FARTHEST * max(1.0, float(state.notes["mean"].abs().max()))
        reasons = {reply.client: _no_mixture(reply.reports[_REPORT], farthest) for reply in replies}
        return {client: reason for client, reason in reasons.items() if reason}

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Average the replies, then align the head."""
        merged = weights.mean([reply.weights for reply in replies])
        head: Weights = {"weight": merged["head.weight"], "bias": merged["head.bias"]}
        head = self._aligned(head, state.notes, replies)
        return ServerState(
            {"server": {**merged, **{f"head.{name}": tensor for name, tensor in head.items()}}}, state.notes
        )

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Return the shared model."""
        return state.models["server"]

    def _aligned(self, head: Weights, source: Weights, replies: Sequence[Reply]) -> Weights:
        # The draws are named by the round alone: the server's rule holds no seed.
        generator = stream(0, _REPORT, replies[0].round)
        labels = torch.arange(len(source["mean"])).repeat_interleave(_SAMPLES)
        known = sample(source, labels, generator)
        views = [_client_view(reply.reports[_REPORT], len(labels), generator) for reply in replies]
        views = [(z, theirs) for z, theirs in views if z.isfinite().all() and theirs.isfinite().all()]
        moving = {name: tensor.clone().requires_grad_() for name, tensor in head.items()}
        solver = torch.optim.SGD(moving.values(), lr=self.head_lr, momentum=0.9)
        for _ in range(self.head_steps):
            loss = F.cross_entropy(known @ moving["weight"].T + moving["bias"], labels)
            apart = [discrepancy(probabilities(moving, z), theirs) for z, theirs in views]
            loss = loss + self.lambda_agree * torch.stack(apart).mean() if apart else loss
            solver.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(moving.values(), 1.0)
            solver.step()
        return {name: tensor.detach() for name, tensor in moving.items()}


def _no_mixture(report: Weights, farthest: float) -> str | None:
    """Return why a report is not a mixture of features, if it is not."""
    if not 0 <= float(report["share"].min()) <= float(report["share"].max()) <= 1:
        return "a share in its report is not between 0 and 1"
    if not 0 <= float(report["variance"].min()) <= float(report["variance"].max()) <= farthest**2:
        return "a variance in its report is negative, or much larger than the source model's features"
    if float(report["mean"].abs().max()) > farthest:
        return "a mean in its report is much larger than the source model's features"
    return None


def _client_view(report: Weights, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw features from a client's mixture; return them with the client's predictions of them."""
    share = report["share"].clamp_min(0)
    share = share if share.sum() > 0 else torch.ones_like(share)
    labels = torch.multinomial(share, count, replacement=True, generator=generator)
    features = sample(report, labels, generator)
    return features, probabilities(report, features)
