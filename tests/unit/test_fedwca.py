"""FedWCA: the clusters, the blend and the two-phase labels, on numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedscal.client.start import Blend, closeness, shares
from fedscal.client.step import Models, Step
from fedscal.client.terms.two_phase import TwoPhase, mixup_loss
from fedscal.core.types import Prediction, Reply
from fedscal.server.rule import Briefing, ServerState
from fedscal.server.rules.weighted_clusters import WeightedClusters, direction
from toys import prediction, reply, sweep

RULE = WeightedClusters()


def model(angle: float, value: float = 0.0) -> dict[str, Tensor]:
    """Return a model whose first layer points into a direction, in degrees, and one weight behind it."""
    turn = math.radians(angle)
    layer = torch.tensor([[math.cos(turn), math.sin(turn)]])
    return {"bias": torch.tensor([9.0]), "layer.weight": 3 * layer, "w": torch.tensor([value])}


def answers(told: Sequence[float] | None = None, **models: dict[str, Tensor]) -> list[Reply]:
    report = {} if told is None else {"start": {"blend": torch.tensor(told)}}
    return [replace(reply(client, found), reports=report) for client, found in sorted(models.items())]


def clustered() -> ServerState:
    """Return two clusters: a and b at 0 and 10 degrees, c and d at 90 and 100."""
    first = answers(a=model(0, 1.0), b=model(10, 3.0), c=model(90, 10.0), d=model(100, 20.0))
    return RULE.merge(RULE.init(Briefing(model(45), "layer.weight")), first)


def test_only_the_direction_of_a_layer_counts() -> None:
    assert direction(model(90)["layer.weight"]).tolist() == pytest.approx([0.0, 1.0], abs=1e-7)


def test_everyone_is_called_until_there_are_clusters() -> None:
    before, after = RULE.init(Briefing(model(45), "layer.weight")), clustered()
    assert RULE.calls_everyone(before)
    assert not RULE.calls_everyone(after)
    assert RULE.send(before, "a").keys() == {"server"}
    assert RULE.send(after, "a").keys() == {"cluster-000", "cluster-001"}
    assert RULE.reports(before.models) == {}
    assert RULE.reports(after.models)["start"]["blend"].shape == (2,)


def test_a_clusters_model_is_the_mean_of_its_members() -> None:
    state = clustered()
    assert state.models["cluster-000"]["w"].item() == 2.0  # (1 + 3) / 2
    assert state.models["cluster-001"]["w"].item() == 15.0  # (10 + 20) / 2
    assert RULE.deployed(state, "a")["w"].item() == 2.0
    assert RULE.deployed(state, "stranger")["w"].item() == 8.5


def test_a_cluster_in_which_nobody_replied_stays() -> None:
    state = RULE.merge(clustered(), answers(told=[0.5, 0.5], b=model(80, 7.0)))
    assert state.models["cluster-000"]["w"].item() == 7.0, "a client stays in its cluster wherever it turns"
    assert state.models["cluster-001"]["w"].item() == 15.0


def test_a_client_is_judged_by_the_blend_that_it_told() -> None:
    state = RULE.merge(clustered(), answers(told=[0.25, 0.75], a=model(0, 4.0)))
    assert RULE.deployed(state, "a")["w"].item() == pytest.approx(0.25 * 4 + 0.75 * 15)
    assert RULE.deployed(state, "b")["w"].item() == 4.0, "b has told nothing yet"


@pytest.mark.parametrize(("told", "clean"), [([-3.0, 2.0], [0.0, 1.0]), ([0.0, 0.0], [0.5, 0.5])])
def test_shares_are_made_shares_whatever_a_client_says(told: list[float], clean: list[float]) -> None:
    state = RULE.merge(clustered(), answers(told=told, a=model(0)))
    assert state.per_client["a"]["blend"].tolist() == clean


def test_a_client_that_missed_the_first_round_joins_the_nearest_cluster() -> None:
    state = RULE.merge(clustered(), answers(told=[1.0, 0.0], late=model(85, 1.0)))
    assert int(state.per_client["late"]["cluster"]) == 1
    assert state.models["cluster-001"]["w"].item() == 1.0


def test_one_answer_in_the_first_round_is_one_cluster() -> None:
    state = RULE.merge(RULE.init(Briefing(model(45), "layer.weight")), answers(a=model(0, 5.0)))
    assert state.models.keys() == {"cluster-000"}


def test_shares_are_proportional_to_density_times_closeness() -> None:
    # 2 * 0.5 = 1 and 1 * 1 = 1; 4 * 0.75 = 3 and 1 * 1 = 1.
    assert shares(torch.tensor([2.0, 1.0]), torch.tensor([0.5, 1.0])).tolist() == [0.5, 0.5]
    assert shares(torch.tensor([4.0, 1.0]), torch.tensor([0.75, 1.0])).tolist() == [0.75, 0.25]
    assert shares(torch.zeros(2), torch.ones(2)).tolist() == [0.5, 0.5]


def test_closeness_is_the_mean_cosine_to_the_own_prototype() -> None:
    # Class 0 at (1, 0) and (0, 1): its prototype is at 45 degrees, cosine 0.707107. Class 1 is alone: 1.
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    logits = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    found = closeness(Prediction(features, logits))
    assert found.item() == pytest.approx((1 + (2 * 0.707107 + 1) / 3) / 2, abs=1e-6)


def test_a_client_starts_from_the_blend_and_tells_its_shares() -> None:
    models = {"cluster-001": {"w": torch.tensor([1.0])}, "cluster-000": {"w": torch.tensor([0.0])}}
    # The first cluster model finds two dense groups, the second predicts four images four ways.
    certain = prediction(torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [0.0, 9.0]]))
    torn = prediction(torch.tensor([[9.0, 0.0], [0.0, 9.0], [1.0, 1.0], [3.0, 2.0]]))
    begun, told = Blend().begin(models, lambda model: torn if model["w"] else certain)
    assert told["blend"].sum().item() == pytest.approx(1)
    assert begun["w"].item() == pytest.approx(told["blend"][1].item())
    assert 0 < told["blend"][1] != told["blend"][0]


def test_a_package_with_one_model_is_taken_as_it_is() -> None:
    server = {"w": torch.tensor([3.0])}
    assert Blend().begin({"server": server}, lambda _: pytest.fail("no pass is needed")) == (server, {})


def test_mixup_mixes_the_labels_as_it_mixes_the_images() -> None:
    # Labels 0 and 1, share 3/4, uniform predictions: each costs log 2, whatever the mixture.
    # With logits (log 3, 0), p = (3/4, 1/4): row 0 has label (3/4, 1/4), row 1 (1/4, 3/4).
    labels, partners = torch.eye(2), torch.tensor([1, 0])
    logits = torch.tensor([[math.log(3), 0.0]] * 2)
    expected = (0.75 * 0.287682 + 0.25 * 1.386294 + 0.25 * 0.287682 + 0.75 * 1.386294) / 2
    value = mixup_loss(logits, labels, partners, torch.tensor(0.75))
    assert value.item() == pytest.approx(expected, abs=1e-6)


def test_phase_two_splits_a_label_on_which_the_phases_disagree() -> None:
    term, axes = TwoPhase(), torch.eye(2)
    first = term.prepare(sweep(9 * axes[[0, 0, 1]]), None)
    assert first["soft_labels"].tolist() == axes[[0, 0, 1]].tolist()
    assert first["agreement"].item() == 1
    second = term.prepare(sweep(9 * axes[[0, 1, 1]]), first)
    assert second["soft_labels"].tolist() == [[1, 0], [0.5, 0.5], [0, 1]]
    assert second["agreement"].item() == pytest.approx(2 / 3)
    third = term.prepare(sweep(9 * axes[[0, 0, 1]]), second)
    assert third["soft_labels"].tolist() == axes[[0, 0, 1]].tolist(), "phase one's labels last for the round"


def test_the_loss_is_that_of_the_mixed_images() -> None:
    # Images are their own logits here, so the mixture of images is the mixture of logits.
    images = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    generator = torch.Generator().manual_seed(3)
    models = Models(lambda x: Prediction(x, x), None, None, None, list, False, {}, generator)
    step = Step(torch.tensor([0, 1]), lambda: images, lambda: images, models)
    state = {"soft_labels": torch.eye(2), "first": torch.eye(2)}
    value, _ = TwoPhase(lambda_mixup=2.0).loss(step, state)
    mixed = step.mixed
    assert 0.5 <= mixed.share <= 1
    blended = mixed.share * images + (1 - mixed.share) * images[mixed.partners]
    expected = 2 * mixup_loss(blended, torch.eye(2), mixed.partners, mixed.share)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
