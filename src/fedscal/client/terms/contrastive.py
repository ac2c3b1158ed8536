"""MOON: features close to the server model's, away from the client's own of its last participation.

Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedscal import losses
from fedscal.client.step import Step
from fedscal.client.term import Need, State, Term
from fedscal.core.options import option

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Contrastive(Term):
    r"""mu * -log e^{s(z, z_server)/T} / (e^{s(z, z_server)/T} + e^{s(z, z_previous)/T}).

    z is the bottleneck feature of the weak view. A client that takes part for the first time has
    no previous model, and so no term.
    """

    name: ClassVar[str] = "contrastive"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SERVER, Need.PREVIOUS})
    mu: float = option(1.0, "weight of the contrastive term", low=0, weight=True)
    temperature: float = option(0.5, "temperature T of the contrastive term", low=1e-3)

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the contrast of the batch."""
        features, previous = step.weak.features, step.previous
        if previous is None:
            return features.new_zeros(()), state
        value = losses.model_contrast(features, step.server.features, previous.features, self.temperature)
        return self.mu * value, state
