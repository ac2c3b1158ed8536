"""A weight-space ensemble with the source model: what helps every site lies between the two models.

Wortsman, Ilharco, Kim, et al.: Robust fine-tuning of zero-shot models. CVPR 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedscal.core import weights
from fedscal.core.options import option
from fedscal.core.types import Groups, Weights

_SOURCE, _MEAN = "source", "delivered"


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

    def kept(self, source: Weights, server: Weights) -> Groups:
        """Return what the server keeps beside its model: the source model, and once a round their mean."""
        return {_SOURCE: source, _MEAN: self._mean(source, server)} if self.source_share else {}

    def mixed(self, model: Weights, models: Groups) -> Weights:
        """Return the mean of a model and the source model; of the server's, the one that is kept."""
        if not self.source_share:
            return model
        return models[_MEAN] if model is models["server"] else self._mean(models[_SOURCE], model)

    def without_kept(self, models: Groups) -> Groups:
        """Return the models of a state but those that are kept for the ensemble."""
        return {name: model for name, model in models.items() if name not in (_SOURCE, _MEAN)}

    def _mean(self, source: Weights, model: Weights) -> Weights:
        return weights.mean([source, model], [self.source_share, 1 - self.source_share])
