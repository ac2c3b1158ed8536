"""A weight-space ensemble with the source model: what helps every site lies between the two models.

Wortsman, Ilharco, Kim, et al.: Robust fine-tuning of zero-shot models. CVPR 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedscal.core import weights
from fedscal.core.options import option
from fedscal.core.types import Groups, Weights

_SOURCE = "source"


@dataclass(frozen=True)
class SourceShare:
    """w = s w_source + (1 - s) w_server is judged and delivered; clients go on from w_server."""

    source_share: float = option(
        0.0,
        "share of the source model's weights in the model that is judged and delivered",
        low=0,
        high=1,
        later=True,
    )

    @property
    def names(self) -> frozenset[str]:
        """The names of the models that are kept for the ensemble only."""
        return frozenset({_SOURCE} if self.source_share else ())

    def kept(self, source: Weights) -> Groups:
        """Return what the server must keep of the source model."""
        return {_SOURCE: source} if self.source_share else {}

    def mixed(self, server: Weights, models: Groups) -> Weights:
        """Return the model between the server's and the source model that the server kept."""
        if not self.source_share:
            return server
        return weights.mean([models[_SOURCE], server], [self.source_share, 1 - self.source_share])
