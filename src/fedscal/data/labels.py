"""The true labels, for pre-training on the source domain and for judging results, and for nothing else.

Clients hold unlabelled images. This module is the only door to the label files, so that one
import rule is enough to keep labels out of the code that trains clients.
"""

from __future__ import annotations

from torch import Tensor

from fedscal.data import cache
from fedscal.data.benchmark import Benchmark


def labels(benchmark: Benchmark, domain: str) -> Tensor:
    """Return the int64 labels of a domain, in the order of its images."""
    return cache.load(benchmark, domain, "labels")
