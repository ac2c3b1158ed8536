"""Features in the plane, to be drawn: t-SNE where scikit-learn is installed, else principal components."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedscal.core.extras import ExtraMissing, from_extra

_ENOUGH = 90
"""Features that t-SNE needs for neighbourhoods of thirty that differ from one another."""
_STEPS = 500
"""Half of what is usual, in half of the time: the divergence of 1,200 features was 0.51, and not 0.48."""


def to_plane(features: Tensor) -> tuple[Tensor, str]:
    """Return points (n, 2) for features (n, d), and how they were made: of few or equal ones by PCA."""
    if len(features) > _ENOUGH and len(features[0]) > 1 and bool((features != features[0]).any()):
        try:
            with from_extra("figures", "t-SNE"):
                from fedscal.experiment.tsne import tsne
            return tsne(features, _STEPS), "t-SNE"
        except ExtraMissing:
            pass
    return _principal(features), "PCA"


def _principal(features: Tensor) -> Tensor:
    """Return the coordinates of features along their first two principal components."""
    centred = features.double() - features.double().mean(dim=0)
    left, scale, _ = torch.linalg.svd(centred, full_matrices=False)
    axes = (left * scale)[:, :2]
    return F.pad(axes, (0, 2 - axes.shape[1]))
