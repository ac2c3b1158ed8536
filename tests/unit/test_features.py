"""Features of a frozen trunk: each is computed once, in the view that its place says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedscal.core.rng import stream
from fedscal.data.features import FeatureBank, FeatureViews
from fedscal.data.pixels import skewed_shards
from toys import NoiseViews, Steps, blobs

WIDTH = 4


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path))
    return tmp_path


class CountingTrunk:
    """Four means of an image; counts the images that it has seen."""

    seen = 0

    def __call__(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return torch.nn.functional.avg_pool2d(images, 3).flatten(1)


def bank(trunk: CountingTrunk, count: int = 2, identity: str = "a") -> FeatureBank:
    return FeatureBank(trunk, (WIDTH,), NoiseViews(), count, identity, "sha")


def all_rows(images: object) -> Tensor:
    return torch.cat(list(images.split(1000)))  # type: ignore[attr-defined]


def test_features_are_those_of_the_views_in_their_places() -> None:
    trunk, (images, _) = CountingTrunk(), blobs(70)
    kept = all_rows(bank(trunk).features(images, "key", "blobs"))
    assert kept.shape == (70, 3, WIDTH)
    torch.testing.assert_close(kept[:, 0], trunk(NoiseViews().evaluate(images)))
    draws = stream(0, "feature-views", 1)  # the second batch of 16
    torch.testing.assert_close(kept[16:32, 1], trunk(NoiseViews().strong(images[16:32], draws)))
    torch.testing.assert_close(kept[16:32, 2], trunk(NoiseViews().strong(images[16:32], draws)))


def test_a_view_draws_among_the_features_of_its_own_kind() -> None:
    kept = torch.arange(3.0).repeat(200, 1)[:, :, None].expand(-1, -1, WIDTH)
    views, draws = FeatureViews(2), stream(0, "x")
    assert set(views.evaluate(kept).flatten().tolist()) == {0.0}
    assert set(views.weak(kept, draws).flatten().tolist()) == {0.0}
    assert set(views.strong(kept, draws).flatten().tolist()) == {1.0, 2.0}


def test_features_are_computed_once_and_again_for_another_trunk_or_a_cut_file(own_cache: Path) -> None:
    trunk, (images, _) = CountingTrunk(), blobs(10)
    first = all_rows(bank(trunk).features(images, "key", "blobs"))
    assert trunk.seen == 30
    assert torch.equal(all_rows(bank(trunk).features(images, "key", "blobs")), first)
    assert trunk.seen == 30
    bank(trunk, identity="b").features(images, "key", "blobs")
    bank(trunk).features(images, "other images", "blobs")
    assert trunk.seen == 90
    for path in own_cache.glob("features/*/features.bin"):
        path.write_bytes(path.read_bytes()[:-4])
    assert torch.equal(all_rows(bank(trunk).features(images, "key", "blobs")), first)
    assert trunk.seen == 120


def test_progress_counts_images() -> None:
    steps = Steps()
    bank(CountingTrunk()).features(blobs(10)[0], "key", "blobs", steps)
    assert (steps.stages, steps.steps) == ([("features of blobs", 10)], 10)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 1000.0])
def test_a_skewed_cut_gives_every_row_to_one_part(alpha: float) -> None:
    labels = torch.arange(600) % 6
    parts = skewed_shards(labels, 4, alpha, seed=1)
    assert torch.cat(parts).sort().values.tolist() == list(range(600))
    assert [part.tolist() for part in skewed_shards(labels, 4, alpha, seed=1)] == [p.tolist() for p in parts]


def test_a_small_alpha_makes_classes_unlike() -> None:
    labels = torch.arange(6000) % 6

    def largest_share(alpha: float) -> float:
        parts = skewed_shards(labels, 5, alpha, seed=0)
        shares = [labels[part].bincount(minlength=6) / max(1, len(part)) for part in parts]
        return float(torch.stack(shares).amax(dim=1).mean())

    assert largest_share(0.1) > 0.4
    assert largest_share(1000.0) < 0.2
