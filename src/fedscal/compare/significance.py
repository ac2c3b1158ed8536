"""Statistical tests: exact tests on pairs, a correction for many rows, an interval for a share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import comb, sqrt
from typing import TYPE_CHECKING

from fedscal.core import rng
from fedscal.core.lazy import np, torch

if TYPE_CHECKING:
    import numpy.typing as npt

_EXACT_UP_TO = 16
_DRAWN, _AT_ONCE = 100_000, 10_000
_NORMAL_95 = 1.959963984540054
_ROUNDING = 1e-9
"""Relative tolerance for sums that differ only by rounding."""


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p of the paired sign-flip permutation test on the mean difference.

    Under the null hypothesis every difference could have either sign: p is the share of all flips whose
    mean is at least as far from 0. Beyond 16 pairs it is estimated from 100,000 random flips and the
    observed one.

    >>> sign_flip_p([1.0, 2.0, 3.0])
    0.25
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) <= _EXACT_UP_TO:
        flips = np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1
        return _as_far(values, flips) / len(flips)
    generator, size = rng.stream(0, "sign-flips"), (_AT_ONCE, len(values))
    drawn = (torch.randint(2, size, generator=generator).numpy() for _ in range(_DRAWN // _AT_ONCE))
    return (1 + sum(_as_far(values, flips) for flips in drawn)) / (1 + _DRAWN)


def _as_far(values: npt.NDArray[np.float64], flips: npt.NDArray[np.int64]) -> int:
    """Count the flips (rows of 0 and 1) whose sum is at least as far from 0 as that of the values."""
    limit = abs(values.sum()) - _ROUNDING * np.abs(values).sum()
    return int(np.count_nonzero(np.abs((1 - 2 * flips) @ values) >= limit))


def smallest_p(pairs: int) -> float:
    """Return the smallest possible p: that of pairs which all have the same sign.

    >>> smallest_p(3)
    0.25
    """
    return float(2.0 ** (1 - pairs))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's corrected p-values, in the order given; they bound the chance of any false positive.

    >>> holm([0.03, 0.01])
    [0.03, 0.02]
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    scaled = [min(1.0, (len(order) - rank) * p_values[index]) for rank, index in enumerate(order)]
    corrected = dict(zip(order, accumulate(scaled, max), strict=True))
    return [corrected[index] for index in range(len(p_values))]


def sign_test_p(better: int, worse: int) -> float:
    """Return the two-sided p of the exact sign test, McNemar's for right and wrong; ties do not count.

    >>> sign_test_p(5, 0), sign_test_p(3, 3)
    (0.0625, 1.0)
    """
    pairs = better + worse
    tail = sum(comb(pairs, count) for count in range(min(better, worse) + 1))
    return float(min(1.0, 2 * tail / 2**pairs))


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share, in %: the whole range if nothing was counted.

    >>> [round(bound, 1) for bound in wilson(8, 10)]
    [49.0, 94.3]
    """
    if count == 0:
        return 0.0, 100.0
    share, weight = right / count, _NORMAL_95**2 / count
    middle = share + weight / 2
    half = _NORMAL_95 * sqrt(share * (1 - share) / count + weight / (4 * count))
    return 100 * (middle - half) / (1 + weight), 100 * (middle + half) / (1 + weight)
