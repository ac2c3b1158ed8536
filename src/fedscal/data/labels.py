"""The true labels, only for pre-training on the source domain and for evaluation.

Clients hold unlabelled images. Only this module reads the label files, so one import
rule keeps labels out of the code that trains clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscal.core.errors import DataRefused
from fedscal.data import cache
from fedscal.data.benchmark import Benchmark

if TYPE_CHECKING:
    from torch import Tensor


def labels(benchmark: Benchmark, domain: str) -> Tensor | None:
    """Return the int64 labels of a domain, in the order of its images; None if it has none."""
    return benchmark.folder.labels(domain) if benchmark.folder else cache.load(benchmark, domain, "labels")


def known_labels(benchmark: Benchmark, domain: str) -> Tensor:
    """Return the labels of a domain that must have them."""
    truth = labels(benchmark, domain)
    if truth is None:
        raise DataRefused(
            f"{domain} of {benchmark.name} has no labels; a source needs one folder of images per class."
        )
    return truth
