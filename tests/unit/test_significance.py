"""The paired sign-flip test and Holm's correction: by hand, and against scipy."""

from __future__ import annotations

import numpy as np
import pytest

from fedscal.compare.significance import holm, sign_flip_p, sign_test_p, smallest_p, wilson


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1, 2, 3], 2 / 8),  # +++ and --- only
        ([-1, -2, -3], 2 / 8),  # two-sided
        ([1, 1, -1], 8 / 8),  # every sum is +-1 or +-3
        ([3, 2, -1], 4 / 8),  # |sum| >= 4: +++, ++- and their mirrors
        ([2, -2], 4 / 4),
        ([5, 5], 2 / 4),
        ([0, 0, 0], 1),
        ([1, 0], 1),  # the zero may flip, the one stays as far from 0
        ([0.1, 0.2, 0.3], 2 / 8),  # 0.1 + 0.2 + 0.3 depends on the order in floating point
    ],
)
def test_p_by_hand(differences: list[float], p: float) -> None:
    assert sign_flip_p(differences) == p


def test_the_order_of_the_pairs_does_not_matter() -> None:
    assert sign_flip_p([0.1, 0.7, -0.2, 0.3]) == sign_flip_p([0.3, -0.2, 0.1, 0.7])


@pytest.mark.parametrize("count", [2, 5, 9, 12])
def test_p_is_scipys(count: int) -> None:
    from scipy import stats

    values = np.random.default_rng(count).normal(0.4, 1, count)
    oracle = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", alternative="two-sided", n_resamples=np.inf
    )
    assert sign_flip_p(list(values)) == pytest.approx(oracle.pvalue, abs=1e-12)


def test_beyond_sixteen_pairs_p_is_estimated_and_the_same_every_time() -> None:
    values = list(np.random.default_rng(1).normal(0.4, 1, 18))
    flips = np.arange(2**18)[:, None] >> np.arange(18) & 1
    exact = np.mean(np.abs((1 - 2 * flips) @ values) >= abs(sum(values)) - 1e-9)
    assert sign_flip_p(values) == sign_flip_p(values)
    assert sign_flip_p(values) == pytest.approx(exact, abs=4 * np.sqrt(exact / 100_000))
    assert sign_flip_p([1.0] * 40) == pytest.approx(1 / 100_001), "never 0"


@pytest.mark.parametrize("pairs", [2, 5, 9])
def test_the_smallest_p_is_reached_when_all_pairs_agree(pairs: int) -> None:
    assert sign_flip_p([1.0] * pairs) == smallest_p(pairs) == 2 / 2**pairs


@pytest.mark.parametrize(
    ("given", "corrected"),
    [
        ([], []),
        ([0.2], [0.2]),
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # 3 * 0.01; 2 * 0.03; 1 * 0.04 but not below 0.06
        ([0.5, 0.6], [1.0, 1.0]),  # never above 1
    ],
)
def test_holm_by_hand(given: list[float], corrected: list[float]) -> None:
    assert holm(given) == pytest.approx(corrected)


@pytest.mark.parametrize(("better", "worse"), [(5, 0), (0, 5), (3, 3), (7, 2), (0, 0), (40, 21)])
def test_the_sign_test_is_scipys(better: int, worse: int) -> None:
    from scipy import stats

    oracle = stats.binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert sign_test_p(better, worse) == pytest.approx(oracle, abs=1e-12)


@pytest.mark.parametrize(("right", "count"), [(0, 7), (7, 7), (8, 10), (131, 200)])
def test_the_interval_is_scipys(right: int, count: int) -> None:
    from scipy import stats

    oracle = stats.binomtest(right, count).proportion_ci(method="wilson")
    assert wilson(right, count) == pytest.approx((100 * oracle.low, 100 * oracle.high))


def test_nothing_counted_is_nothing_known() -> None:
    assert wilson(0, 0) == (0, 100)
