"""BMD on small numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from fedscal.client.terms.bmd import (
    Bmd,
    balanced_prototypes,
    memberships,
    moved_prototypes,
    nearest_class,
    symmetric_cross_entropy,
)
from toys import backward, fixed_step, sure, sweep

AXES = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
"""One prototype a class: class 0 points right, class 1 up."""


def test_a_class_that_is_never_predicted_gets_as_many_images_as_the_others() -> None:
    # n = 6, J = 2, r = 1.5: M = floor(6 / 3) = 2. Class 1 wins nowhere, yet rows 4 and 5 are its likeliest.
    features = torch.tensor([[0.0], [2.0], [4.0], [6.0], [8.0], [10.0]])
    first = torch.tensor([0.99, 0.97, 0.8, 0.7, 0.6, 0.55])
    prototypes = balanced_prototypes(features, torch.stack([first, 1 - first], dim=1), ratio=1.5)
    assert prototypes.shape == (2, 1, 1)
    assert prototypes.flatten().tolist() == [1.0, 9.0]


def test_a_small_client_still_gets_one_image_a_class() -> None:
    # M = max(1, floor(2 / (3 * 2))) = 1.
    probabilities = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    found = balanced_prototypes(torch.tensor([[1.0], [2.0]]), probabilities, 3)
    assert found.flatten().tolist() == [1.0, 2.0]


def test_several_centres_part_the_images_of_a_class() -> None:
    # M = floor(8 / (1 * 2)) = 4. Class 0's images lie at 0, 1, 10 and 11: centres 0.5 and 10.5.
    features = torch.tensor([[0.0], [1.0], [10.0], [11.0], [50.0], [51.0], [60.0], [61.0]])
    first = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1])
    found = balanced_prototypes(features, torch.stack([first, 1 - first], dim=1), ratio=1, centres=2)
    assert found.shape == (2, 2, 1)
    assert sorted(found[0].flatten().tolist()) == [0.5, 10.5]
    assert sorted(found[1].flatten().tolist()) == [50.5, 60.5]


def test_the_nearest_prototype_is_found_by_angle_over_all_centres() -> None:
    # Class 1 has two centres; the image at 100 degrees is nearest to its second one, at 135.
    prototypes = torch.tensor([[[9.0, 1.0], [9.0, 1.0]], [[0.0, -1.0], [-0.1, 0.1]]])
    assert nearest_class(torch.tensor([[-0.17, 0.98], [0.5, 0.0]]), prototypes).tolist() == [1, 0]


def test_membership_is_a_softmax_of_inner_products() -> None:
    # e / (e + 1) = 0.731059 for an image on the first axis.
    belongs = memberships(torch.tensor([[1.0, 0.0]]), AXES)
    assert belongs.flatten().tolist() == pytest.approx([0.731059, 0.268941], abs=1e-6)


def test_prototypes_move_towards_the_batch_by_one_minus_the_momentum() -> None:
    # Both images are at (0, 1), so every batch prototype is (0, 1): 0.9 (1, 0) + 0.1 (0, 1).
    features = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    moved = moved_prototypes(AXES, features, memberships(features, AXES), momentum=0.9)
    torch.testing.assert_close(moved, torch.tensor([[[0.9, 0.1]], [[0.0, 1.0]]]))


def test_symmetric_cross_entropy_adds_the_reverse_direction() -> None:
    # p = (1/2, 1/2), y = (3/4, 1/4): log 2 + (log 4/3 + log 4) / 2 = 0.693147 + 0.836988.
    value = symmetric_cross_entropy(torch.zeros(1, 2), torch.tensor([[0.75, 0.25]]))
    assert value.item() == pytest.approx(1.530135, abs=1e-6)


def test_symmetric_cross_entropy_survives_a_label_without_mass() -> None:
    logits = torch.zeros(1, 2, requires_grad=True)
    backward(symmetric_cross_entropy(logits, torch.tensor([[1.0, 0.0]])))
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


# The image is predicted (3/4, 1/4) and its static label is 0: -log 3/4 = 0.287682. Its feature is placed
# on the first axis, so its dynamic label is (0.731059, 0.268941), and the symmetric cross-entropy
# 0.731059 * 0.287682 + 0.268941 * 1.386294 + 0.75 * 0.313262 + 0.25 * 1.313262 = 1.146409.
@pytest.mark.parametrize(
    ("alpha", "beta", "expected"), [(1.0, 0.0, 0.287682), (0.0, 1.0, 1.146409), (2.0, 0.5, 1.148569)]
)
def test_the_loss_weighs_static_and_dynamic_labels(alpha: float, beta: float, expected: float) -> None:
    state = {"pseudo_labels": torch.tensor([0]), "prototypes": AXES}
    term = Bmd(alpha=alpha, beta_dynamic=beta, information=False)
    value, _ = term.loss(fixed_step(sure(0.75), features=torch.tensor([[5.0, 0.0]])), state)
    assert value.item() == pytest.approx(expected, abs=1e-5)


def test_information_maximisation_is_added_unless_refused() -> None:
    # One image of entropy H: L_ent = H and L_div = -H cancel; two images that differ do not.
    state = {"pseudo_labels": torch.tensor([0, 1]), "prototypes": AXES}
    step = fixed_step(torch.tensor([[9.0, 0.0], [0.0, 9.0]]))
    plain, _ = Bmd(information=False).loss(step, state)
    more, _ = Bmd().loss(step, state)
    # p = (0.999877, 0.000123): L_ent = 0.001234; the mean is (1/2, 1/2): L_div = -log 2.
    assert (more - plain).item() == pytest.approx(0.001234 - 0.693147, abs=1e-5)


def test_each_batch_hands_the_moved_prototypes_to_the_next() -> None:
    whole = sweep(sure(0.9, 0.2, 0.6, 0.4), torch.eye(4)[:, :2] + 0.1)
    term = Bmd(prototype_momentum=0.5)
    first = term.prepare(whole, None)
    kept = first["prototypes"].clone()
    _, second = term.loss(fixed_step(sure(0.9, 0.2), indices=[0, 1]), first)
    assert torch.equal(first["prototypes"], kept), "the state that went in is untouched"
    assert not torch.equal(second["prototypes"], kept)
