"""The paper's equations, against numbers worked out by hand."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedscal import losses as functional
from toys import backward, tensor_of

LOG3 = math.log(3)
TWO = torch.tensor([[0.0, 0.0], [LOG3, 0.0]])
"""Two predictions: (1/2, 1/2) and (3/4, 1/4)."""


def directions(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def pairs(*first: float) -> Tensor:
    return torch.tensor([[p, 1 - p] for p in first])


def test_entropy_is_the_mean_of_each_predictions_entropy() -> None:
    # H(1/2, 1/2) = log 2 = 0.693147; H(3/4, 1/4) = 2 log 2 - 3/4 log 3 = 0.562335; mean 0.627741.
    assert functional.prediction_entropy(TWO).item() == pytest.approx(0.627741, abs=1e-6)


def test_diversity_is_the_negative_entropy_of_the_mean_prediction() -> None:
    # The mean is (5/8, 3/8): 5/8 log 5/8 + 3/8 log 3/8 = -0.293752 - 0.367811.
    assert functional.negative_diversity(TWO).item() == pytest.approx(-0.661563, abs=1e-6)


def test_diversity_is_smallest_for_balanced_classes() -> None:
    balanced = torch.tensor([[9.0, 0, 0], [0, 9.0, 0], [0, 0, 9.0]])
    assert functional.negative_diversity(balanced).item() == pytest.approx(-LOG3, abs=1e-6)
    assert functional.negative_diversity(balanced[[0, 0, 1]]) > functional.negative_diversity(balanced)


def test_a_class_without_any_mass_adds_nothing_to_diversity() -> None:
    # exp(-200) is 0 in float32, and 0 log 0 counts as 0: the mean is (1/2, 1/2, 0).
    value = functional.negative_diversity(torch.tensor([[0.0, -200, -200], [-200, 0, -200]]))
    assert value.item() == pytest.approx(-math.log(2))


def test_entropy_of_an_overconfident_prediction_is_zero_with_a_finite_gradient() -> None:
    logits = torch.tensor([[500.0, 0.0]], requires_grad=True)
    value = functional.prediction_entropy(logits)
    backward(value)
    assert value.item() == 0
    assert torch.isfinite(tensor_of(logits.grad)).all()


def test_soft_prototypes_are_means_weighted_by_probability() -> None:
    # c_0 = (3/4 (1,0) + 1/2 (0,1)) / (5/4) = (3/5, 2/5); c_1 = (1/4 (1,0) + 1/2 (0,1)) / (3/4) = (1/3, 2/3).
    found = functional.soft_prototypes(torch.eye(2), pairs(0.75, 0.5))
    torch.testing.assert_close(found, torch.tensor([[3 / 5, 2 / 5], [1 / 3, 2 / 3]]))


def test_the_prototype_of_a_class_without_mass_is_finite() -> None:
    found = functional.soft_prototypes(torch.eye(2), pairs(1.0, 1.0))
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5], [0.0, 0.0]]))


def test_nearest_is_by_cosine_not_by_distance_or_product() -> None:
    # cos((10,1), (1,0)) = 10/sqrt(101) = 0.995 beats cos((10,1), (9,9)) = 11/sqrt(202) = 0.774, although
    # (9,9) is closer (8.1 against 9.1) and has the larger product (99 against 10).
    feature, prototypes = torch.tensor([[10.0, 1.0]]), torch.tensor([[1.0, 0.0], [9.0, 9.0]])
    both = torch.tensor([True, True])
    assert functional.nearest_prototype(feature, prototypes, both).tolist() == [0]
    assert functional.nearest_prototype(feature, prototypes, torch.tensor([False, True])).tolist() == [1]


def test_a_class_that_nothing_is_predicted_as_is_left_out() -> None:
    # The third image points along (1,1), and so does the soft prototype of class 2, which only this image
    # feeds (0.45). No image is predicted as class 2; the next best is c_0 = (1, 1/3) with cosine 0.894.
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    probabilities = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0.5, 0.05, 0.45]])
    everything = torch.ones(3, dtype=torch.bool)
    soft = functional.soft_prototypes(features, probabilities)
    assert functional.nearest_prototype(features, soft, everything).tolist() == [0, 1, 2]
    assert functional.prototype_labels(features, probabilities).tolist() == [0, 1, 0]


def test_one_hard_refinement_moves_a_label() -> None:
    """Unit features at 0, 60, 80 and 90 degrees, predicted as class 0 with 0.9, 0.8, 0.9 and 0.1.

    Soft: c_0 = sum of p_i g_i = (.9+.4+.156, .693+.886+.1) = (1.456, 1.679), at 49.1 degrees, and
    c_1 = (.1+.1+.017, .173+.098+.9) = (.217, 1.172), at 79.5. The middle is 64.3: 60 degrees is class 0.
    Hard: class 0 holds 0 and 60 degrees, mean direction 30; class 1 holds 80 and 90, mean 85. The
    middle is 57.5: now 60 degrees is class 1.
    """
    features, probabilities = directions(0, 60, 80, 90), pairs(0.9, 0.8, 0.9, 0.1)
    assert functional.prototype_labels(features, probabilities, refinements=0).tolist() == [0, 0, 1, 1]
    assert functional.prototype_labels(features, probabilities).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 6], 3 * (3 - 2) / math.sqrt(14 / 3)),
        ([1, 2, 3, 10], 3 * (4 - 2.5) / math.sqrt(50 / 4)),
        ([-6, -2, -1], -3 / math.sqrt(14 / 3)),
        ([1, 2, 3], 0),
        ([0.7] * 7, 0),
        ([0.3], 0),
    ],
    ids=["odd", "even", "negative", "symmetric", "constant", "one value"],
)
def test_skewness_by_hand(values: list[float], expected: float) -> None:
    assert functional.pearson_skewness(torch.tensor(values)).item() == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.floats(0, 3, width=32), min_size=1, max_size=30))
def test_skewness_agrees_with_numpy_and_stays_within_three(values: list[float]) -> None:
    array = np.array(values)
    found = functional.pearson_skewness(torch.tensor(values)).item()
    assert abs(found) <= 3 + 1e-9
    if array.std() > 1e-6:
        assert found == pytest.approx(3 * (array.mean() - np.median(array)) / array.std(), abs=1e-6)


@pytest.mark.parametrize(
    ("values", "tau", "high", "expected"),
    [
        # gamma = 3 (3 - 2) / sqrt(14/3) = 1.3887 of 1, 2, 6, and its negative of -6, -2, -1.
        ([1, 2, 6], 0.8, 2.0, 0.8 + 3 / math.sqrt(14 / 3)),
        ([1, 2, 6], 0.8, 0.15, 0.95),
        ([-6, -2, -1], 0.8, 0.15, 0.7),
        ([1, 2, 6], 0.9, 0.15, 1.05),
        ([-6, -2, -1], 0.05, 0.15, -0.05),
    ],
)
def test_gamma_is_clipped_and_tau_is_not(
    values: list[float], tau: float, high: float, expected: float
) -> None:
    threshold = functional.adaptive_threshold(torch.tensor(values), tau, -0.1, high)
    assert threshold.item() == pytest.approx(expected)


def test_the_documented_examples_of_the_losses_run() -> None:
    result = doctest.testmod(functional)
    assert result.failed == 0
    functions = [getattr(functional, name) for name in functional.__all__ if name.islower()]
    assert [f.__name__ for f in functions if ">>>" not in f.__doc__] == []


def test_scal_is_the_weighted_sum_over_two_teachers_of_what_each_is_sure_of() -> None:
    # The strong view is (3/4, 1/4) twice. The client is sure of class 0 for the first image: log 4/3. The
    # server is sure of class 1 for both: log 4 each, and so in the mean.
    weak = torch.tensor([[5.0, 0.0], [0.1, 0.0]], requires_grad=True)
    strong = TWO[[1, 1]].clone().requires_grad_()
    server = torch.tensor([[0.0, 5.0], [0.0, 5.0]], requires_grad=True)
    loss, parts = functional.scal(weak, strong, server, 0.8, lambda_local=2.0, lambda_server=0.5)
    assert loss.item() == pytest.approx(2 * math.log(4 / 3) + 0.5 * math.log(4), abs=1e-6)
    assert parts.local.item() == pytest.approx(math.log(4 / 3), abs=1e-6)
    assert parts.server.item() == pytest.approx(math.log(4), abs=1e-6)
    assert (parts.kept_local.tolist(), parts.kept_server.tolist()) == ([True, False], [True, True])
    # d(-log q_y)/dz = q - onehot(y): 2 (-1/4, 1/4) of the client's, 0.5/2 (3/4, -3/4) of the server's.
    backward(loss)
    assert (weak.grad, server.grad) == (None, None), "no gradient reaches a teacher"
    assert tensor_of(strong.grad)[0].tolist() == pytest.approx([-0.5 + 0.1875, 0.5 - 0.1875])
    assert tensor_of(strong.grad)[1].tolist() == pytest.approx([0.1875, -0.1875])


def test_scal_without_a_teacher_leaves_its_part_out() -> None:
    loss, parts = functional.scal(None, TWO, torch.tensor([[0.0, 5.0]] * 2), 0.8)
    assert loss.item() == parts.server.item() == pytest.approx((math.log(2) + math.log(4)) / 2)
    assert (parts.local.item(), parts.kept_local.tolist()) == (0, [False, False])


def test_the_mean_runs_over_the_kept_only() -> None:
    losses = torch.tensor([1.0, 5.0, 3.0])
    assert functional.kept_mean(losses, torch.tensor([True, False, True])).item() == 2


def test_nothing_kept_is_zero_with_a_zero_gradient() -> None:
    losses = torch.tensor([1.0, 5.0], requires_grad=True)
    value = functional.kept_mean(losses, torch.tensor([False, False]))
    backward(value)
    assert value.item() == 0
    assert tensor_of(losses.grad).tolist() == [0, 0]


def test_alignment_is_minus_log_q_on_the_logits() -> None:
    # q = (3/4, 1/4): -log 3/4 = 0.287682 for label 0, -log 1/4 = 1.386294 for label 1.
    found = functional.alignment_losses(TWO[[1, 1]], torch.tensor([0, 1]))
    assert found.tolist() == pytest.approx([0.287682, 1.386294], abs=1e-6)


def test_the_bounded_loss_is_a_softmax_of_probabilities() -> None:
    # q = (3/4, 1/4): -log e^(3/4) / (e^(3/4) + e^(1/4)) = log(1 + e^-1/2) = 0.474077; label 1: + 1/2.
    found = functional.alignment_losses(TWO[[1, 1]], torch.tensor([0, 1]), bounded=True)
    assert found.tolist() == pytest.approx([0.474077, 0.974077], abs=1e-6)


@given(
    st.integers(2, 6).flatmap(
        lambda classes: st.tuples(
            st.lists(st.floats(-50, 50, width=32), min_size=classes, max_size=classes),
            st.integers(0, classes - 1),
        )
    )
)
def test_the_bounded_loss_keeps_its_bounds(case: tuple[list[float], int]) -> None:
    logits, label = case
    classes = len(logits)
    value = functional.alignment_losses(torch.tensor([logits]), torch.tensor([label]), bounded=True).item()
    assert math.log(1 + (classes - 1) / math.e) - 1e-6 <= value <= math.log(math.e + classes - 1) + 1e-6


def test_the_bounds_are_reached() -> None:
    certain = torch.tensor([[100.0, 0, 0]])
    right = functional.alignment_losses(certain, torch.tensor([0]), bounded=True).item()
    wrong = functional.alignment_losses(certain, torch.tensor([1]), bounded=True).item()
    assert (right, wrong) == pytest.approx((math.log(1 + 2 / math.e), math.log(math.e + 2)))


@pytest.mark.parametrize(
    ("negative", "temperature", "expected"),
    [
        ((-3.0, 0.0), 0.5, math.log(1 + math.exp(-4))),
        ((-3.0, 0.0), 1.0, math.log(1 + math.exp(-2))),
        ((0.0, 2.0), 0.5, math.log(1 + math.exp(-2))),
        ((7.0, 0.0), 0.5, math.log(2)),
    ],
    ids=["opposite", "opposite, T=1", "orthogonal", "equal"],
)
def test_contrast_by_hand(negative: tuple[float, float], temperature: float, expected: float) -> None:
    # s+ = 1, so the loss is log(1 + e^((s- - 1)/T)), whatever the lengths of the vectors.
    features, positive = torch.tensor([[2.0, 0.0]]), torch.tensor([[5.0, 0.0]])
    value = functional.model_contrast(features, positive, torch.tensor([negative]), temperature)
    assert value.item() == pytest.approx(expected, abs=1e-6)


def test_contrast_is_a_mean_over_images() -> None:
    # Images with s+ = 1, s- = -1 and the other way round: log(1 + e^-4) and log(1 + e^4).
    features, server = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    value = functional.model_contrast(features, server, -server, 0.5).item()
    assert value == pytest.approx((math.log(1 + math.exp(-4)) + math.log(1 + math.exp(4))) / 2, abs=1e-6)


def test_diversity_has_a_finite_slope_where_a_class_has_no_mass_at_all() -> None:
    logits = torch.tensor([[200.0, 0.0], [200.0, 0.0]], requires_grad=True)  # e^-200 underflows to 0
    backward(functional.negative_diversity(logits))
    assert torch.isfinite(tensor_of(logits.grad)).all()


def test_equal_values_have_no_skewness_whatever_rounding_makes_of_their_deviation() -> None:
    assert functional.pearson_skewness(torch.full((7,), 0.1, dtype=torch.float64)).item() == 0
