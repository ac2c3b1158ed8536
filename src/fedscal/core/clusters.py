"""Deterministic clustering: the same points, and the same stream to draw from, give the same clusters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedscal.core.lazy import F, torch

if TYPE_CHECKING:
    from torch import Tensor


def k_means(points: Tensor, centres: int, rounds: int = 10) -> Tensor:
    """Return the means (centres, d) that k-means finds.

    It starts from the first point, then always adds the one farthest from all chosen. With fewer
    points than centres, some means are equal.
    """
    chosen = [points[0]]
    for _ in range(1, centres):
        gaps = torch.cdist(points, torch.stack(chosen)).amin(dim=1)
        chosen.append(points[gaps.argmax()])
    means = torch.stack(chosen)
    for _ in range(rounds):
        means = _moved(points, means)
    return means


def _moved(points: Tensor, means: Tensor) -> Tensor:
    """Return the mean of the points nearest to each mean; one that has none stays."""
    member = F.one_hot(nearest(points, means), len(means)).to(points.dtype)
    sizes = member.sum(dim=0)[:, None]
    return torch.where(sizes > 0, member.T @ points / sizes.clamp_min(1), means)


def restarted_k_means(
    points: Tensor, centres: int, generator: torch.Generator, restarts: int = 10, rounds: int = 300
) -> Tensor:
    """Return the labels (n,) of the best of several k-means: least sum of squared distances to the means.

    Each start is drawn by k-means++ and moves until it stands still.
    """
    tried = [_settled(points, _spread(points, centres, generator), rounds) for _ in range(restarts)]
    return nearest(points, min(tried, key=lambda means: float(_gaps(points, means).sum())))


def _settled(points: Tensor, means: Tensor, rounds: int) -> Tensor:
    for _ in range(rounds):
        before, means = means, _moved(points, means)
        if torch.equal(before, means):
            break
    return means


def _spread(points: Tensor, centres: int, generator: torch.Generator) -> Tensor:
    """Draw the first means by k-means++ (Arthur, Vassilvitskii, 2007): each far from those before it."""
    chosen = points[torch.randint(len(points), (1,), generator=generator)]
    for _ in range(1, centres):
        gaps = _gaps(points, chosen)
        odds = gaps if gaps.sum() > 0 else torch.ones_like(gaps)
        chosen = torch.cat([chosen, points[torch.multinomial(odds, 1, generator=generator)]])
    return chosen


def _gaps(points: Tensor, means: Tensor) -> Tensor:
    """Return each point's squared distance to its nearest mean."""
    return torch.cdist(points, means).amin(dim=1).square()


def nearest(points: Tensor, means: Tensor) -> Tensor:
    """Return for each point the index of its nearest mean."""
    return torch.cdist(points, means).argmin(dim=1)


def silhouette(points: Tensor, labels: Tensor) -> float:
    r"""Return the mean over points of (b - a) / max(a, b).

    a is a point's mean distance to the others of its cluster, b the least mean distance to another
    cluster. A point that is alone in its cluster counts 0 (Rousseeuw, 1987).
    """
    member = F.one_hot(labels).to(points.dtype)
    sizes = member.sum(dim=0)
    member, sizes = member[:, sizes > 0], sizes[sizes > 0]
    totals = torch.cdist(points, points) @ member  # (n, clusters)
    own = member.bool()
    inside = (totals * member).sum(dim=1) / ((member @ sizes) - 1).clamp_min(1)
    outside = (totals / sizes).masked_fill(own, torch.inf).amin(dim=1)
    scores = (outside - inside) / torch.maximum(inside, outside).clamp_min(torch.finfo(points.dtype).tiny)
    return float(torch.where(member @ sizes > 1, scores, torch.zeros_like(scores)).mean())


def by_silhouette(points: Tensor, counts: Iterable[int], generator: torch.Generator) -> Tensor:
    """Return the labels of the k-means clustering, k one of ``counts``, with the largest silhouette.

    Of equals the first. Points that are all in one place are one cluster.
    """
    if torch.cdist(points, points).amax() == 0:
        return torch.zeros(len(points), dtype=torch.long)
    tried = [restarted_k_means(points, k, generator) for k in counts]
    return max(tried, key=lambda labels: silhouette(points, labels))


def finch(points: Tensor) -> Tensor:
    """Return the labels of FINCH's first partition (Sarfraz et al., CVPR 2019).

    Two points are linked if one is the other's nearest neighbour by cosine, or if they share theirs;
    clusters are what links connect. Labels follow the order of the points.
    """
    directions = F.normalize(points, dim=1)
    first = (directions @ directions.T).fill_diagonal_(-torch.inf).argmax(dim=1)
    # A shared neighbour is linked to both, so links to the first neighbour connect all that FINCH does.
    roots = list(range(len(points)))

    def root(i: int) -> int:
        while roots[i] != i:
            i = roots[i]
        return i

    for i, j in enumerate(first.tolist()):
        low, high = sorted((root(i), root(j)))
        roots[high] = low
    labels = [root(i) for i in range(len(points))]
    numbers = {r: number for number, r in enumerate(dict.fromkeys(labels))}
    return torch.tensor([numbers[r] for r in labels])
