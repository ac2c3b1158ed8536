"""Clustering: by hand on a few points, and beside scikit-learn on many."""

from __future__ import annotations

import pytest
import torch

from fedscal.core.clusters import (
    by_silhouette,
    finch,
    k_means,
    nearest,
    restarted_k_means,
    silhouette,
)


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(*shifts: float, count: int = 20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.cat([torch.randn(count, 3, generator=generator) + shift for shift in shifts])


def test_k_means_finds_what_scikit_learn_finds() -> None:
    from sklearn.cluster import KMeans

    points = blobs(0.0, 6.0, -6.0)
    oracle = torch.from_numpy(KMeans(3, n_init=10, random_state=0).fit(points.numpy()).cluster_centers_)
    ours = k_means(points, 3)
    assert torch.cdist(ours, oracle).amin(dim=1).max() < 1e-5
    assert torch.cdist(oracle, ours).amin(dim=1).max() < 1e-5


def test_k_means_survives_fewer_points_than_centres() -> None:
    assert k_means(torch.tensor([[1.0], [3.0]]), 4).flatten().tolist() == [1.0, 3.0, 1.0, 1.0]


@pytest.mark.parametrize("centres", [2, 5, 9])
def test_restarted_k_means_is_as_good_as_scikit_learns(centres: int) -> None:
    from sklearn.cluster import KMeans

    points = blobs(0.0, 2.0, -1.0, 4.0).double()
    labels = restarted_k_means(points, centres, drawn())
    inertia = sum(
        ((part := points[labels == k]) - part.mean(dim=0)).square().sum() for k in set(labels.tolist())
    )
    oracle = KMeans(centres, n_init=10, random_state=0).fit(points.numpy()).inertia_
    assert float(inertia) <= 1.05 * oracle


def test_restarts_find_what_one_start_misses_and_repeat_bit_for_bit() -> None:
    # Two far pairs and a lone point between: three clusters, that a start with both points of a pair misses.
    points = torch.tensor([[0.0], [1.0], [10.0], [20.0], [21.0]])
    found = [restarted_k_means(points, 3, drawn(seed)).tolist() for seed in range(20)]
    assert all(row[0] == row[1] and row[3] == row[4] and len(set(row)) == 3 for row in found)
    assert found == [restarted_k_means(points, 3, drawn(seed)).tolist() for seed in range(20)]


def test_restarted_k_means_survives_fewer_places_than_centres() -> None:
    assert len(set(restarted_k_means(torch.tensor([[1.0], [1.0], [3.0]]), 3, drawn()).tolist())) == 2


def test_the_silhouette_by_hand() -> None:
    # Points 0, 2 | 10: for 0, a = 2, b = 10: 8/10. For 2, a = 2, b = 8: 6/8. The lone 10 counts 0.
    points = torch.tensor([[0.0], [2.0], [10.0]])
    found = silhouette(points, torch.tensor([0, 0, 1]))
    assert found == pytest.approx((0.8 + 0.75 + 0) / 3)


def test_the_silhouette_is_scikit_learns() -> None:
    from sklearn.metrics import silhouette_score

    points = blobs(0.0, 2.0, -1.0).double()
    labels = nearest(points, k_means(points, 4))
    assert silhouette(points, labels) == pytest.approx(silhouette_score(points.numpy(), labels.numpy()))


@pytest.mark.parametrize("shifts", [(0.0, 9.0), (0.0, 9.0, -9.0), (0.0, 9.0, -9.0, 18.0)])
def test_the_silhouette_tells_how_many_clusters_there_are(shifts: tuple[float, ...]) -> None:
    labels = by_silhouette(blobs(*shifts), range(2, 9), drawn())
    assert len(set(labels.tolist())) == len(shifts)
    assert all(len(set(part.tolist())) == 1 for part in torch.split(labels, 20))


def test_points_in_one_place_are_one_cluster() -> None:
    assert by_silhouette(torch.ones(4, 2), range(2, 4), drawn()).tolist() == [0, 0, 0, 0]


def test_finch_links_first_neighbours() -> None:
    # Degrees. First neighbours: 0 -> 10, 10 -> 0, 25 -> 10; 80 <-> 90; 170 <-> 175.
    angles = torch.deg2rad(torch.tensor([0.0, 80.0, 10.0, 170.0, 25.0, 90.0, 175.0]))
    points = torch.stack([angles.cos(), angles.sin()], dim=1) * torch.arange(1.0, 8.0)[:, None]
    assert finch(points).tolist() == [0, 1, 0, 2, 0, 1, 2]


def test_finch_joins_chains_and_shared_neighbours() -> None:
    # 0 -> 10, 10 -> 18, 18 -> 24, 24 -> 18: one chain. 100 and 140 share 121 (its own neighbour is 140).
    angles = torch.deg2rad(torch.tensor([0.0, 10.0, 18.0, 24.0, 100.0, 121.0, 140.0]))
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert finch(points).tolist() == [0, 0, 0, 0, 1, 1, 1]
