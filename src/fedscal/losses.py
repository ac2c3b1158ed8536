"""The paper's equations as pure functions of tensors, to be used in any training loop.

Shapes: n images, J classes, d features. Logits are (n, J), features (n, d), labels (n,) int64. Every
function is differentiable where a loss must be, and works on any device.

>>> import torch
>>> from fedscal import losses
>>> weak, strong, server = (torch.randn(8, 5) for _ in range(3))
>>> tau = losses.adaptive_threshold(losses.entropies(weak))
>>> loss, parts = losses.scal(weak, strong, server, tau)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fedscal.core.lazy import F, torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ScalParts",
    "adaptive_threshold",
    "align",
    "alignment_losses",
    "entropies",
    "kept_mean",
    "model_contrast",
    "nearest_prototype",
    "negative_diversity",
    "pearson_skewness",
    "prediction_entropy",
    "prototype_labels",
    "scal",
    "soft_neighbourhood_density",
    "soft_prototypes",
    "threshold_by",
]

_NEIGHBOURS = 1000
"""Soft neighbourhood density compares all pairs of this many images at most."""


class ScalParts(NamedTuple):
    """The two unweighted parts of L_SCAl, and which images (n,) each of them kept."""

    local: Tensor
    server: Tensor
    kept_local: Tensor
    kept_server: Tensor


def scal(
    weak_logits: Tensor | None,
    strong_logits: Tensor,
    server_logits: Tensor | None,
    tau: Tensor | float,
    lambda_local: float = 1.0,
    lambda_server: float = 1.0,
    bounded: bool = False,
) -> tuple[Tensor, ScalParts]:
    r"""L_SCAl = lambda_local L^l + lambda_server L^g, the server and client alignment (Eq. 7-11).

    The client's prediction of the weak view and the server's prediction are two teachers of the strong
    view; see ``align``. No gradient flows into either.

    Args:
        weak_logits: the client's model on the weak view (n, J); None leaves L^l out.
        strong_logits: the client's model on the strong view (n, J), with gradient.
        server_logits: the server's model on the same images (n, J); None leaves L^g out.
        tau: the confidence that a teacher's label must exceed, for both teachers.
        lambda_local: weight of L^l.
        lambda_server: weight of L^g.
        bounded: see ``alignment_losses``.

    Returns:
        The loss, and its parts.

    >>> weak = torch.tensor([[4.0, 0.0], [1.0, 0.0]])       # confidences 0.98 and 0.73
    >>> server = torch.tensor([[0.0, 0.5], [0.0, 3.0]])     # 0.62 and 0.95
    >>> loss, parts = scal(weak, torch.zeros(2, 2), server, tau=0.8)
    >>> parts.kept_local.tolist(), parts.kept_server.tolist()
    ([True, False], [False, True])
    >>> round(loss.item(), 4)                               # log 2 for each teacher
    1.3863
    """
    local, kept_local = _aligned(weak_logits, strong_logits, tau, bounded)
    server, kept_server = _aligned(server_logits, strong_logits, tau, bounded)
    loss = lambda_local * local + lambda_server * server
    return loss, ScalParts(local, server, kept_local, kept_server)


def _aligned(
    teacher: Tensor | None, strong_logits: Tensor, tau: Tensor | float, bounded: bool
) -> tuple[Tensor, Tensor]:
    if teacher is None:
        return strong_logits.new_zeros(()), strong_logits.new_zeros(len(strong_logits), dtype=torch.bool)
    return align(teacher, strong_logits, tau, bounded)


def align(
    teacher_logits: Tensor, strong_logits: Tensor, tau: Tensor | float, bounded: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Mean over {i: max p_i > tau} of D_KL(onehot(p_i) || q_i), p the teacher's and q the strong softmax.

    Returns:
        The mean, 0 if no image is kept, and the mask (n,) of the images that are.

    >>> mean, kept = align(torch.tensor([[3.0, 0.0], [0.0, 0.1]]), torch.zeros(2, 2), tau=0.9)
    >>> round(mean.item(), 4), kept.tolist()
    (0.6931, [True, False])
    """
    confidence, labels = torch.softmax(teacher_logits.detach(), dim=1).max(dim=1)
    kept = confidence > tau
    return kept_mean(alignment_losses(strong_logits, labels, bounded), kept), kept


def alignment_losses(strong_logits: Tensor, labels: Tensor, bounded: bool = False) -> Tensor:
    r"""D_KL(onehot(y) || q) = -log q_y for each image (n,), with q the softmax of the strong view's logits.

    ``bounded`` applies the softmax twice, -log softmax(q)_y, as the authors' code does: a loss
    between log(1 + (J-1)/e) and log(e + J - 1), so that one wrong label can do limited harm.

    >>> alignment_losses(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).tolist()
    [0.6931471824645996]
    """
    inputs = torch.softmax(strong_logits, dim=1) if bounded else strong_logits
    return F.cross_entropy(inputs, labels, reduction="none")


def kept_mean(losses: Tensor, kept: Tensor) -> Tensor:
    """Mean of the losses (n,) where the mask ``kept`` (n,) is true; 0 if it is true nowhere.

    >>> kept_mean(torch.tensor([1.0, 5.0, 3.0]), torch.tensor([True, False, True]))
    tensor(2.)
    """
    return (losses * kept).sum() / kept.sum().clamp_min(1)


def adaptive_threshold(
    entropies: Tensor, tau_init: float = 0.8, gamma_low: float = -0.1, gamma_high: float = 0.15
) -> Tensor:
    r"""Tau = tau_init + max(gamma_L, min(gamma, gamma_H)), gamma the skewness of the entropies (n,).

    >>> adaptive_threshold(torch.tensor([0.1, 0.1, 0.1, 2.0]))      # strongly skewed: gamma is clipped
    tensor(0.9500, dtype=torch.float64)
    """
    return threshold_by(pearson_skewness(entropies), tau_init, gamma_low, gamma_high)


def threshold_by(gamma: Tensor, tau_init: float, gamma_low: float, gamma_high: float) -> Tensor:
    r"""Tau = tau_init + max(gamma_L, min(gamma, gamma_H)), of a skewness that is known already.

    >>> threshold_by(torch.tensor(-0.5), 0.8, -0.1, 0.15)
    tensor(0.7000)
    """
    return tau_init + gamma.clamp(gamma_low, gamma_high)


def pearson_skewness(values: Tensor) -> Tensor:
    r"""Gamma = 3 (mean - median) / std, Pearson's second coefficient of values (n,); 0 where std = 0.

    >>> pearson_skewness(torch.tensor([1.0, 2.0, 3.0]))
    tensor(0., dtype=torch.float64)
    """
    values = values.double()
    std = values.std(correction=0)
    # quantile(0.5) is the middle, or the mean of the two middle values; torch.median takes the lower.
    gap = values.mean() - values.quantile(0.5)
    spread = values.amax() > values.amin()  # of equal values, std is 0 but for rounding
    return torch.where(spread, 3 * gap / std, torch.zeros_like(std))


def entropies(logits: Tensor) -> Tensor:
    """Return the entropy of each prediction (n,), in nats.

    >>> entropies(torch.zeros(1, 4))                                # log 4
    tensor([1.3863])
    """
    return -(torch.softmax(logits, dim=1) * torch.log_softmax(logits, dim=1)).sum(dim=1)


def prediction_entropy(logits: Tensor) -> Tensor:
    r"""L_ent = -1/n sum_i sum_j p_ij log p_ij, with p the softmax of the logits.

    >>> prediction_entropy(torch.zeros(3, 4))
    tensor(1.3863)
    """
    log_p = torch.log_softmax(logits, dim=1)
    return -(log_p.exp() * log_p).sum(dim=1).mean()


def negative_diversity(logits: Tensor) -> Tensor:
    r"""L_div = sum_j m_j log m_j, with m the mean prediction; it is smallest for balanced classes.

    >>> negative_diversity(torch.tensor([[50.0, 0.0], [0.0, 50.0]]))        # -log 2
    tensor(-0.6931)
    """
    mean = torch.softmax(logits, dim=1).mean(dim=0)
    # m log m is 0 at m = 0, but its slope there is not finite: a class may underflow in a whole batch.
    return torch.xlogy(mean, mean.clamp_min(torch.finfo(mean.dtype).tiny)).sum()


def soft_prototypes(features: Tensor, probabilities: Tensor) -> Tensor:
    r"""c_j = sum_i p_ij g_i / sum_i p_ij: one feature prototype per class, shape (J, d).

    >>> soft_prototypes(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]])).tolist()
    [[2.0], [2.0]]
    """
    mass = probabilities.sum(dim=0).clamp_min(torch.finfo(probabilities.dtype).tiny)
    return (probabilities.T @ features) / mass[:, None]


def nearest_prototype(features: Tensor, prototypes: Tensor, allowed: Tensor) -> Tensor:
    """Return argmin_j of the cosine distance D_f(g_i, c_j) over the allowed classes (J,), shape (n,).

    >>> nearest_prototype(torch.tensor([[2.0, 1.0]]), torch.eye(2), torch.tensor([True, True]))
    tensor([0])
    """
    similarity = F.normalize(features, dim=1) @ F.normalize(prototypes, dim=1).T
    return similarity.masked_fill(~allowed, -torch.inf).argmax(dim=1)


def prototype_labels(features: Tensor, probabilities: Tensor, refinements: int = 1) -> Tensor:
    """SHOT's pseudo-labels (n,): nearest soft prototype, then refined with hard prototypes.

    A class that no image is predicted as has no prototype of its own and is left out.

    >>> prototype_labels(torch.eye(2), torch.tensor([[0.9, 0.1], [0.2, 0.8]]))
    tensor([0, 1])
    """
    classes = probabilities.shape[1]
    allowed = torch.bincount(probabilities.argmax(dim=1), minlength=classes) > 0
    labels = nearest_prototype(features, soft_prototypes(features, probabilities), allowed)
    for _ in range(refinements):
        hard = F.one_hot(labels, classes).to(features.dtype)
        labels = nearest_prototype(features, soft_prototypes(features, hard), hard.sum(dim=0) > 0)
    return labels


def model_contrast(features: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    r"""MOON: -log e^{s+/T} / (e^{s+/T} + e^{s-/T}), s the cosine similarity to the other models' features.

    >>> model_contrast(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2), temperature=0.5)
    tensor(0.6931)
    """
    similarity = torch.stack(
        [F.cosine_similarity(features, positive), F.cosine_similarity(features, negative)], dim=1
    )
    target = torch.zeros(len(features), dtype=torch.long, device=features.device)
    return F.cross_entropy(similarity / temperature, target)


def soft_neighbourhood_density(probabilities: Tensor, temperature: float = 0.05) -> float:
    """SND: the mean entropy of the softmax over similarities to the other images (Saito et al., ICCV 2021).

    High where images lie in dense clusters of equal prediction.

    >>> round(soft_neighbourhood_density(torch.ones(4, 2) / 2), 4)          # three equal neighbours: log 3
    1.0986
    """
    if len(probabilities) < 3:
        return 0.0
    rows = torch.linspace(0, len(probabilities) - 1, min(len(probabilities), _NEIGHBOURS)).long()
    points = F.normalize(probabilities[rows], dim=1)
    similarity = (points @ points.T / temperature).fill_diagonal_(-torch.inf)
    log_p = torch.log_softmax(similarity, dim=1)
    return float(-(log_p.exp() * log_p.clamp_min(-1e9)).sum(dim=1).mean())
