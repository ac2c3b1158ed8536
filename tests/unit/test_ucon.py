"""UCon on small numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from fedscal.client.term import Need
from fedscal.client.terms.ucon import (
    Ucon,
    attraction,
    confidence_ratio,
    dispersion,
    nearest_rows,
    partial_label_loss,
    repulsion,
)
from toys import backward, fixed_step, sure, sweep

BANK = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]])


def test_an_image_is_not_its_own_neighbour() -> None:
    assert nearest_rows(BANK[:2], torch.tensor([0, 1]), BANK, 2).tolist() == [[1, 2], [0, 2]]


def test_a_client_of_two_images_has_one_neighbour() -> None:
    assert nearest_rows(BANK[:2], torch.tensor([0, 1]), BANK[:2], 3).tolist() == [[1], [0]]


def test_attraction_sums_the_agreement_with_the_neighbours() -> None:
    # <(1, 0), (0.6, 0.4)> + <(1/2, 1/2), (0.6, 0.4)> = 0.6 + 0.5.
    nearby = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    assert attraction(torch.tensor([[0.6, 0.4]]), nearby).item() == pytest.approx(-1.1)


def test_repulsion_sums_over_the_others_only() -> None:
    # Pairs: 12 agree 1/2, 13 agree 0, 23 agree 1/2. Sums over the others: 1/2, 1, 1/2; their mean: 2/3.
    probabilities = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    assert repulsion(probabilities).item() == pytest.approx(2 / 3)
    assert repulsion(probabilities[:1]).item() == 0


@pytest.mark.parametrize(("negatives", "expected"), [("sum", 2 / 3), ("mean", 1 / 3)])
def test_the_repulsion_may_be_a_mean(negatives: str, expected: float) -> None:
    # As above, with attraction to nothing: every bank entry predicts class 2.
    logits = torch.tensor([[1.0, 1e-9, 1e-9], [0.5, 0.5, 1e-9], [1e-9, 1.0, 1e-9]]).log()
    state = {
        "features": torch.eye(6, 3),
        "predictions": torch.eye(3)[[2] * 6],
        "seen": torch.ones(6, 3),
        "ratio": torch.tensor(0.0),
    }
    term = Ucon(negatives=negatives, neighbours=1, lambda_dispersion=0)  # type: ignore[arg-type]
    value, _ = term.loss(fixed_step(logits, features=-torch.eye(3)), state)
    assert value.item() == pytest.approx(expected, abs=1e-5)


def test_dispersion_teaches_the_augmented_view_and_not_the_plain_one() -> None:
    # Cross-entropy of (3/4, 1/4) with (1/2, 1/2) is log 2.
    plain = torch.tensor([[0.75, 0.25]], requires_grad=True)
    augmented = torch.zeros(1, 2, requires_grad=True)
    value = dispersion(plain, augmented)
    backward(value)
    assert value.item() == pytest.approx(0.693147, abs=1e-6)
    assert plain.grad is None
    torch.testing.assert_close(augmented.grad, torch.tensor([[-0.25, 0.25]]))


def test_the_strong_view_is_needed_for_dispersion_alone() -> None:
    assert Ucon().needs == {Need.STRONG}
    assert Ucon(lambda_dispersion=0).needs == frozenset()


def test_the_confidence_ratio_compares_the_two_largest() -> None:
    ratios = confidence_ratio(torch.tensor([[0.6, 0.1, 0.3], [0.0, 0.0, 1.0]]))
    assert ratios[0].item() == pytest.approx(2.0)
    assert ratios[1] > 1e6


def test_partial_labels_count_for_uncertain_images_only() -> None:
    # Prediction (1/2, 1/4, 1/4), labels {0, 1}: log 2 + log 4 = 2.079442; one of two images: half of it.
    logits = torch.tensor([[0.5, 0.25, 0.25]] * 2).log()
    labels = torch.tensor([[0, 1], [0, 1]])
    value = partial_label_loss(logits, labels, torch.tensor([True, False]))
    assert value.item() == pytest.approx(1.039721, abs=1e-6)


def test_the_uncertain_ratio_is_the_tenth_percentile_of_the_first_sweep() -> None:
    # Ratios 1, 2, ..., 11: the 10th percentile is the second smallest.
    shares = torch.arange(1.0, 12.0)
    logits = torch.stack([shares.log(), torch.zeros(11)], dim=1)
    assert Ucon().prepare(sweep(logits), None)["ratio"].item() == pytest.approx(2.0)
    assert Ucon(uncertain_ratio=5.0).prepare(sweep(logits), None)["ratio"].item() == 5.0


def test_labels_kept_are_those_with_the_most_predicted_mass_so_far() -> None:
    # (0.6, 0.3, 0.1) in the sweep and (0.1, 0.2, 0.7) in the batch: (0.7, 0.5, 0.8) in all.
    term = Ucon(lambda_dispersion=0)
    before = term.prepare(sweep(torch.tensor([[0.6, 0.3, 0.1]]).log()), None)
    _, after = term.loss(fixed_step(torch.tensor([[0.1, 0.2, 0.7]]).log()), before)
    torch.testing.assert_close(after["seen"], torch.tensor([[0.7, 0.5, 0.8]]))


def test_the_banks_last_for_the_round_and_follow_the_batches() -> None:
    term = Ucon()
    before = term.prepare(sweep(sure(0.9, 0.8, 0.3)), None)
    kept = before["predictions"].clone()
    _, after = term.loss(fixed_step(sure(0.2), strong=sure(0.5), indices=[1]), before)
    assert torch.equal(before["predictions"], kept), "the state that went in is untouched"
    torch.testing.assert_close(after["predictions"], torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]))
    again = term.prepare(sweep(sure(0.5, 0.5, 0.5)), after)
    assert torch.equal(again["predictions"], after["predictions"])


def test_the_loss_is_the_weighted_sum_of_its_parts() -> None:
    # Banks of three images in one place predicted (1/2, 1/2): attraction -(1/2 + 1/2) = -1 with two
    # neighbours. A batch of one: no repulsion. Dispersion: CE of (1/2, 1/2) with (3/4, 1/4) is
    # (0.287682 + 1.386294) / 2 = 0.836988. The ratio 1 is uncertain: log 2 + log 2 = 1.386294.
    state = {
        "features": torch.tensor([[1.0, 0.0]] * 3),
        "predictions": torch.full((3, 2), 0.5),
        "seen": torch.full((3, 2), 0.5),
        "ratio": torch.tensor(1.0),
    }
    term = Ucon(neighbours=2, lambda_dispersion=0.5, lambda_partial=0.1)
    value, _ = term.loss(fixed_step(sure(0.5), strong=sure(0.75), indices=[0]), state)
    assert value.item() == pytest.approx(-1 + 0.5 * 0.836988 + 0.1 * 1.386294, abs=1e-5)
