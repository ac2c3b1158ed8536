"""The paper's equations as pure functions of tensors. J classes, n images, d features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscal.core.lazy import F, torch

if TYPE_CHECKING:
    from torch import Tensor

_NEIGHBOURS = 1000
"""Soft neighbourhood density compares all pairs of this many images at most."""


def prediction_entropy(logits: Tensor) -> Tensor:
    r"""L_ent = -1/n sum_i sum_j p_ij log p_ij, with p the softmax of the logits."""
    log_p = torch.log_softmax(logits, dim=1)
    return -(log_p.exp() * log_p).sum(dim=1).mean()


def negative_diversity(logits: Tensor) -> Tensor:
    r"""L_div = sum_j m_j log m_j, with m the mean prediction; it is smallest for balanced classes."""
    mean = torch.softmax(logits, dim=1).mean(dim=0)
    # m log m is 0 at m = 0, but its slope there is not finite: a class may underflow in a whole batch.
    return torch.xlogy(mean, mean.clamp_min(torch.finfo(mean.dtype).tiny)).sum()


def soft_prototypes(features: Tensor, probabilities: Tensor) -> Tensor:
    r"""c_j = sum_i p_ij g_i / sum_i p_ij: one feature prototype a class, shape (J, d)."""
    mass = probabilities.sum(dim=0).clamp_min(torch.finfo(probabilities.dtype).tiny)
    return (probabilities.T @ features) / mass[:, None]


def nearest_prototype(features: Tensor, prototypes: Tensor, allowed: Tensor) -> Tensor:
    """Return argmin_j of the cosine distance D_f(g_i, c_j) over the allowed classes, shape (n,)."""
    similarity = F.normalize(features, dim=1) @ F.normalize(prototypes, dim=1).T
    return similarity.masked_fill(~allowed, -torch.inf).argmax(dim=1)


def prototype_labels(features: Tensor, probabilities: Tensor, refinements: int = 1) -> Tensor:
    """SHOT's pseudo-labels: nearest soft prototype, then refined with hard prototypes.

    A class that no image is predicted as has no prototype of its own and is left out.
    """
    classes = probabilities.shape[1]
    allowed = torch.bincount(probabilities.argmax(dim=1), minlength=classes) > 0
    labels = nearest_prototype(features, soft_prototypes(features, probabilities), allowed)
    for _ in range(refinements):
        hard = F.one_hot(labels, classes).to(features.dtype)
        labels = nearest_prototype(features, soft_prototypes(features, hard), hard.sum(dim=0) > 0)
    return labels


def pearson_skewness(values: Tensor) -> Tensor:
    r"""Gamma = 3 (mean - median) / std, Pearson's second coefficient; 0 where std = 0."""
    values = values.double()
    std = values.std(correction=0)
    # quantile(0.5) is the middle, or the mean of the two middle values; torch.median takes the lower.
    gap = values.mean() - values.quantile(0.5)
    spread = values.amax() > values.amin()  # of equal values, std is 0 but for rounding
    return torch.where(spread, 3 * gap / std, torch.zeros_like(std))


def adaptive_threshold(tau_init: float, gamma: Tensor, low: float, high: float) -> Tensor:
    r"""Tau = tau_init + max(gamma_L, min(gamma, gamma_H))."""
    return tau_init + gamma.clamp(low, high)


def kept_mean(losses: Tensor, kept: Tensor) -> Tensor:
    """Mean of the losses where ``kept`` is true; 0 if nothing is kept."""
    return (losses * kept).sum() / kept.sum().clamp_min(1)


def alignment_losses(strong_logits: Tensor, labels: Tensor, bounded: bool = False) -> Tensor:
    r"""D_KL(onehot(y) || q) = -log q_y for each image, with q the softmax of the strong view's logits.

    ``bounded`` applies the softmax twice, -log softmax(q)_y, as the authors' code does: a loss
    between log(1 + (J-1)/e) and log(e + J - 1), so that one wrong label can do limited harm.
    """
    inputs = torch.softmax(strong_logits, dim=1) if bounded else strong_logits
    return F.cross_entropy(inputs, labels, reduction="none")


def model_contrast(features: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    r"""MOON: -log e^{s+/T} / (e^{s+/T} + e^{s-/T}), s the cosine similarity to the other models' features."""
    similarity = torch.stack(
        [F.cosine_similarity(features, positive), F.cosine_similarity(features, negative)], dim=1
    )
    target = torch.zeros(len(features), dtype=torch.long, device=features.device)
    return F.cross_entropy(similarity / temperature, target)


def soft_neighbourhood_density(probabilities: Tensor, temperature: float = 0.05) -> float:
    """SND: the mean entropy of the softmax over similarities to the other images (Saito et al., ICCV 2021).

    High where images lie in dense clusters of equal prediction.
    """
    if len(probabilities) < 3:
        return 0.0
    rows = torch.linspace(0, len(probabilities) - 1, min(len(probabilities), _NEIGHBOURS)).long()
    points = F.normalize(probabilities[rows], dim=1)
    similarity = (points @ points.T / temperature).fill_diagonal_(-torch.inf)
    log_p = torch.log_softmax(similarity, dim=1)
    return float(-(log_p.exp() * log_p.clamp_min(-1e9)).sum(dim=1).mean())
