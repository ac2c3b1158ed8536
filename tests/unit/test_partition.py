"""The cut of a domain into shards."""

from __future__ import annotations

import pytest
import torch

from fedscal.core.errors import UsageError
from fedscal.data.pixels import shards


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("count", "parts"), [(10, 3), (9, 3), (7, 1), (2, 5), (0, 2)])
def test_every_row_lands_in_one_shard_and_sizes_differ_by_at_most_one(count: int, parts: int) -> None:
    cut = shards(count, parts, generator())
    sizes = [len(shard) for shard in cut]
    assert len(cut) == parts
    assert max(sizes) - min(sizes) <= 1
    assert sorted(torch.cat(cut).tolist()) == list(range(count))


def test_the_cut_is_random_and_repeats_with_its_generator() -> None:
    first, again, other = (torch.cat(shards(50, 4, generator(seed))).tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first != list(range(50))


@pytest.mark.parametrize("parts", [0, -3])
def test_less_than_one_part_is_refused(parts: int) -> None:
    with pytest.raises(UsageError, match=f"into {parts} clients"):
        shards(10, parts, generator())
