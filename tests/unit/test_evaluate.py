"""What a client says of a model: accuracy and label-free signals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedscal import losses as functional
from fedscal.losses import soft_neighbourhood_density
from fedscal.runtime.evaluate import JOINT, accuracy, client_metrics, effective_classes, joint_errors
from fedscal.runtime.signals import infomax
from toys import prediction, sure


def snd_by_numpy(probabilities: np.ndarray, temperature: float = 0.05) -> float:
    """Follow Saito et al.: entropy of each row's softmax over its similarities to the others, averaged."""
    entropies = []
    for i, row in enumerate(probabilities):
        others = [other for j, other in enumerate(probabilities) if j != i]
        cosines = [row @ o / np.linalg.norm(row) / np.linalg.norm(o) for o in others]
        exponentials = np.exp((np.array(cosines) - max(cosines)) / temperature)
        shares = exponentials / exponentials.sum()
        entropies.append(-sum(s * math.log(s) for s in shares if s > 0))
    return float(np.mean(entropies))


def random_probabilities(count: int, classes: int = 4) -> torch.Tensor:
    return torch.softmax(2 * torch.randn(count, classes, generator=torch.Generator().manual_seed(0)), dim=1)


def test_accuracy_is_a_percentage() -> None:
    assert accuracy(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2])) == 75


def test_infomax_by_hand() -> None:
    # (1/2, 1/2) and (3/4, 1/4): H of the mean (5/8, 3/8) is 0.661563, the mean entropy 0.627741.
    assert infomax(prediction(sure(0.5, 0.75))) == pytest.approx(0.661563 - 0.627741, abs=1e-5)


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([[99.0, 0, 0], [0, 99.0, 0], [0, 0, 99.0]], math.log(3)),
        ([[99.0, 0, 0]] * 3, 0),
        ([[0.0, 0, 0]] * 3, 0),
    ],
    ids=["sure and balanced", "collapsed", "undecided"],
)
def test_infomax_is_high_only_for_sure_and_balanced_predictions(
    logits: list[list[float]], expected: float
) -> None:
    assert infomax(prediction(logits)) == pytest.approx(expected, abs=1e-6)


def test_neighbourhood_density_agrees_with_a_plain_implementation() -> None:
    probabilities = random_probabilities(9)
    expected = snd_by_numpy(probabilities.double().numpy())
    assert soft_neighbourhood_density(probabilities) == pytest.approx(expected, rel=1e-4)


def test_neighbourhood_density_of_equal_predictions_is_the_log_of_the_others() -> None:
    assert soft_neighbourhood_density(torch.full((6, 3), 1 / 3)) == pytest.approx(math.log(5), rel=1e-5)
    assert soft_neighbourhood_density(torch.full((2, 3), 1 / 3)) == 0


def test_neighbourhood_density_of_many_images_uses_some_spread_over_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 4 of 8 rows: 0, 7/3, 14/3 and 7, rounded down.
    monkeypatch.setattr(functional, "_NEIGHBOURS", 4)
    probabilities = random_probabilities(8)
    expected = snd_by_numpy(probabilities[[0, 2, 4, 7]].double().numpy())
    assert soft_neighbourhood_density(probabilities) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [([0, 1, 2, 3], 4), ([2, 2, 2], 1), ([0, 0, 1, 1], 2), ([0, 0, 0, 1], math.exp(0.5623351))],
)
def test_effective_classes(predicted: list[int], expected: float) -> None:
    # Shares (3/4, 1/4) have entropy 0.562335.
    assert effective_classes(torch.tensor(predicted), 5) == pytest.approx(expected, rel=1e-6)


def test_a_judgement_without_labels_holds_no_accuracy() -> None:
    signals = client_metrics(prediction(sure(0.9, 0.6, 0.2)), torch.tensor([0, 0, 1]), None)
    assert set(signals) == {"images", "entropy", "infomax", "snd", "effective_classes"}
    assert signals["images"] == 3


def test_a_judgement_grades_predictions_and_pseudo_labels_apart() -> None:
    found = client_metrics(
        prediction(sure(0.9, 0.6, 0.2, 0.7)), torch.tensor([1, 0, 1, 1]), torch.tensor([0, 0, 1, 1])
    )
    assert (found["accuracy"], found["pseudo_label_accuracy"]) == (75, 75)
    other = client_metrics(
        prediction(sure(0.9, 0.6, 0.2, 0.7)), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 1])
    )
    assert (other["accuracy"], other["pseudo_label_accuracy"]) == (75, 100)
    assert "pseudo_label_accuracy" not in client_metrics(prediction(sure(0.9)), None, torch.tensor([0]))
    entropies = [-p * math.log(p) - (1 - p) * math.log(1 - p) for p in (0.9, 0.6, 0.2, 0.7)]
    assert found["entropy"] == pytest.approx(sum(entropies) / 4, rel=1e-5)


def test_errors_that_two_models_make_together_are_counted() -> None:
    truth = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1])
    own = prediction(sure(0.9, 0.9, 0.1, 0.1, 0.9, 0.9, 0.1, 0.1))  # wrong: the third, fourth and sixth
    received = prediction(sure(0.9, 0.1, 0.1, 0.1, 0.9, 0.1, 0.1, 0.9))  # the second to fourth, and the last
    found = joint_errors(own, received, truth)
    assert found == {"received_accuracy": 50.0, "both_wrong": 25.0}
    assert found.keys() == JOINT
    assert joint_errors(received, received, truth)["both_wrong"] == 50.0, (
        "with itself it errs as it does alone"
    )


@given(st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1))
def test_both_cannot_be_wrong_more_often_than_one_nor_less_than_they_must(own: int, received: int) -> None:
    def wrong(bits: int) -> torch.Tensor:
        return torch.tensor([0.1 if bits >> place & 1 else 0.9 for place in range(16)])

    first, second = (prediction(sure(*wrong(bits).tolist())) for bits in (own, received))
    truth = torch.zeros(16, dtype=torch.long)
    found = joint_errors(first, second, truth)
    errors = [100 - accuracy(model.logits.argmax(dim=1), truth) for model in (first, second)]
    assert found["received_accuracy"] == 100 - errors[1]
    assert max(0.0, sum(errors) - 100) <= found["both_wrong"] <= min(errors)
    assert found["both_wrong"] == joint_errors(second, first, truth)["both_wrong"]
