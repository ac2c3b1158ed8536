"""t-SNE of features. Needs scikit-learn, which an extra brings: import this where that is guarded."""

from __future__ import annotations

import torch
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits
from torch import Tensor

_PERPLEXITY = 30
"""How many neighbours of a point count, in effect."""


def tsne(features: Tensor, steps: int = 1000) -> Tensor:
    """Return points (n, 2) for features (n, d) after so many steps, the same for the same features.

    One thread: several add up in any order, and t-SNE makes another picture of another last bit.
    """
    perplexity = min(_PERPLEXITY, (len(features) - 1) / 3)
    with threadpool_limits(1):
        made = TSNE(perplexity=perplexity, init="pca", random_state=0, max_iter=steps)
        return torch.from_numpy(made.fit_transform(features.numpy()))
