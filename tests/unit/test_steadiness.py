"""How steady a model's answers are, and the share of the source model that follows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedscal.models.network import predict
from fedscal.models.registry import build_network
from fedscal.models.steadiness import kept_share, steady_odds

IMAGES = torch.randint(0, 256, (40, 1, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


def seen(images: Tensor) -> Tensor:
    return images.float() / 255


@pytest.mark.parametrize("wrong", [0, 10, 40])
def test_the_odds_are_those_of_views_that_are_answered_like_their_image(wrong: int) -> None:
    network = build_network("convnet", (1, 8, 8), 10, seed=3)
    prediction = predict(network, IMAGES, seen)
    # The answers to some images are changed: their views are no longer answered like them.
    prediction.logits[:wrong] = -prediction.logits[:wrong]
    odds = steady_odds(network, IMAGES, seen, prediction)
    assert odds == pytest.approx((2 * (40 - wrong) + 0.5) / (2 * wrong + 0.5))


def test_all_views_are_drawn_anew() -> None:
    shown: list[Tensor] = []
    draw = torch.Generator().manual_seed(0)

    def strong(images: Tensor) -> Tensor:
        shown.append(torch.rand(images.shape, generator=draw))
        return shown[-1]

    network = build_network("convnet", (1, 8, 8), 10, seed=3)
    steady_odds(network, IMAGES, strong, predict(network, IMAGES, seen))
    assert len(shown) == 2
    assert not torch.equal(*shown)


@pytest.mark.parametrize(
    ("gain", "share"), [(0.1, 0.9), (1, 0.9), (1.25, 0.9), (2.5**0.5, 0.45), (2, 0), (30, 0)]
)
def test_the_steadier_the_answers_have_become_the_less_the_source_model_counts(
    gain: float, share: float
) -> None:
    assert kept_share(0.7, 0.7 * gain, 1, 0.9) == pytest.approx(share)
    assert kept_share(4, 4 * gain, 1, 0.9) == pytest.approx(share)


@pytest.mark.parametrize(("equal", "share"), [(0, 0.9), (0.72, 0.9), (0.76, 0.45), (0.8, 0), (1, 0)])
def test_where_more_answers_changed_than_by_strong_views_the_source_model_counts(
    equal: float, share: float
) -> None:
    # Odds of 4: four of five answers of the source model are steady.
    assert kept_share(4, 400, equal, 0.9) == pytest.approx(share)
    assert kept_share(4, 4, equal, 0.9) == 0.9, "nor does it count less than its steadiness asks for"
