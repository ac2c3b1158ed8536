"""The cut of a domain into the shards of its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscal.core.errors import UsageError
from fedscal.core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def shards(count: int, parts: int, generator: torch.Generator) -> list[Tensor]:
    """Cut the rows 0..count-1 at random into ``parts`` shards whose sizes differ by at most one.

    The cut knows no labels. Every row lands in exactly one shard; with more parts than rows the
    last shards are empty, and the caller leaves those clients out by name.
    """
    if parts < 1:
        raise UsageError(f"a domain cannot be cut into {parts} clients; give at least 1 client per domain.")
    return list(torch.randperm(count, generator=generator).tensor_split(parts))
