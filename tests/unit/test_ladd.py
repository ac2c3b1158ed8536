"""LADD: styles, cluster-wise averages, teachers and the client's losses, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from fedscal.client.style import style
from fedscal.client.terms.distillation import Distillation
from fedscal.client.terms.self_training import SelfTraining, trusted
from fedscal.core.errors import TooFewClients
from fedscal.core.types import Sweep
from fedscal.server.rule import Briefing, ServerState
from fedscal.server.rules.style_clusters import StyleClusters
from toys import fixed_step, prediction, reply, sure


def model(value: float) -> dict[str, Tensor]:
    return {
        "backbone.weight": torch.tensor([value]),
        "backbone.norm.weight": torch.tensor([value]),
        "backbone.norm.running_mean": torch.tensor([value]),
        "bottleneck.weight": torch.tensor([value]),
        "head.weight": torch.tensor([5.0]),
    }


def styles(**levels: float) -> dict[str, Mapping[str, Tensor]]:
    return {client: {"amplitude": torch.full((1, 3, 3), level)} for client, level in levels.items()}


BRIGHT_AND_DARK = styles(a=1.0, b=1.1, c=5.0, d=5.1)


def begun(rule: StyleClusters, rounds: int = 4) -> ServerState:
    return rule.init(Briefing(model(0.0), "backbone.weight", rounds=rounds, profiles=BRIGHT_AND_DARK))


def test_the_style_of_an_even_image_is_its_brightness() -> None:
    images = torch.full((4, 1, 8, 8), 51, dtype=torch.uint8)  # 51 / 255 = 0.2
    found = style(images)["amplitude"]
    assert found.shape == (1, 3, 3)
    expected = torch.zeros(1, 3, 3)
    expected[0, 1, 1] = 0.2
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_a_wave_of_the_lowest_frequency_shows_beside_the_middle() -> None:
    # 0.5 + 0.5 cos(2 pi x / 8) has |FFT| 1/2 at frequency 0 and 1/4 at +1 and -1, horizontally.
    wave = 127.5 + 127.5 * torch.cos(2 * torch.pi * torch.arange(8) / 8)
    images = wave.round().to(torch.uint8).expand(1, 3, 8, 8)
    expected = torch.zeros(3, 3, 3)
    expected[:, 1] = torch.tensor([0.25, 0.5, 0.25])
    torch.testing.assert_close(style(images)["amplitude"], expected, atol=2e-3, rtol=0)


def test_a_style_is_the_mean_over_images_however_many() -> None:
    dark, bright = (torch.full((300, 1, 6, 6), level, dtype=torch.uint8) for level in (0, 255))
    found = style(torch.cat([dark, bright]))["amplitude"]
    assert found[0, 1, 1].item() == pytest.approx(0.5)


def test_clients_of_like_style_share_a_cluster() -> None:
    state = begun(StyleClusters())
    labels = [int(state.per_client[client]["cluster"]) for client in "abcd"]
    assert labels[0] == labels[1] != labels[2] == labels[3]


@pytest.mark.parametrize(
    ("layers", "apart"),
    [
        ("bottleneck", {"bottleneck.weight"}),
        ("norms", {"backbone.norm.weight", "backbone.norm.running_mean"}),
        (
            "all",
            {"backbone.weight", "backbone.norm.weight", "backbone.norm.running_mean", "bottleneck.weight"},
        ),
    ],
)
def test_chosen_layers_are_averaged_in_the_cluster_and_the_others_over_all(
    layers: str, apart: set[str]
) -> None:
    rule = StyleClusters(cluster_layers=layers)  # type: ignore[arg-type]
    answers = [reply("a", model(1.0)), reply("b", model(3.0)), reply("c", model(8.0))]
    state = rule.merge(begun(rule), answers)
    mine, theirs = rule.deployed(state, "b"), rule.deployed(state, "d")
    for name in model(0.0).keys() - {"head.weight"}:
        # Inside: (1 + 3) / 2 and 8. Over all: (1 + 3 + 8) / 3.
        expected = (2.0, 8.0) if name in apart else (4.0, 4.0)
        assert (mine[name].item(), theirs[name].item()) == expected, name


def test_a_cluster_without_a_reply_keeps_its_own_layers_and_takes_the_shared_ones() -> None:
    rule = StyleClusters()
    state = rule.merge(begun(rule), [reply("a", model(6.0))])
    away = rule.deployed(state, "c")
    assert (away["bottleneck.weight"].item(), away["backbone.weight"].item()) == (0.0, 6.0)


def test_late_teachers_are_running_means_of_their_clusters_models() -> None:
    rule = StyleClusters(swa_start=0.5)
    state, teachers = begun(rule, rounds=4), []
    for value in (1.0, 2.0, 4.0, 9.0):
        state = rule.merge(state, [reply("a", model(value))])
        sent = rule.send(state, "a")
        teachers.append(sent["teacher"]["bottleneck.weight"].item() if "teacher" in sent else None)
        assert sent["server"]["bottleneck.weight"].item() == value
        assert sent["source"]["bottleneck.weight"].item() == 0.0
    assert teachers == [None, None, 4.0, 6.5]  # from round 3 of 4: 4, then (4 + 9) / 2


def test_styles_that_cannot_be_used_are_passed_over() -> None:
    odd = {"nan": {"amplitude": torch.full((1, 3, 3), torch.nan)}, "shape": {"amplitude": torch.ones(2)}}
    state = StyleClusters().init(Briefing(model(0.0), "backbone.weight", profiles={**BRIGHT_AND_DARK, **odd}))
    assert "nan" not in state.per_client
    assert StyleClusters().deployed(state, "shape")["head.weight"].item() == 5.0


def test_fewer_than_three_styles_are_refused() -> None:
    with pytest.raises(TooFewClients, match="at least three clients; 2 sent theirs"):
        StyleClusters().init(Briefing(model(0.0), "backbone.weight", profiles=styles(a=1.0, b=2.0)))


def test_a_label_is_trusted_if_sure_or_among_the_best_of_its_class() -> None:
    # Class 0: 0.95 is sure; of 0.95, 0.8, 0.7, 0.6 the top half are 0.95 and 0.8. Class 1: of 0.55 alone, it.
    probabilities = torch.softmax(sure(0.95, 0.8, 0.7, 0.6, 0.45), dim=1)
    assert trusted(probabilities, confident=0.9, share=0.5).tolist() == [True, True, False, False, True]
    assert trusted(probabilities, confident=0.65, share=0.0).tolist() == [True, True, True, False, False]


def test_the_teacher_labels_once_a_round() -> None:
    own, teacher = prediction(sure(0.9, 0.9)), prediction(sure(0.2, 0.9))
    term = SelfTraining()
    state = term.prepare(Sweep(lambda: own, {"teacher": teacher}), None)
    assert state["pseudo_labels"].tolist() == [1, 0]
    assert term.prepare(Sweep(lambda: pytest.fail("no pass is needed")), state) is state
    assert term.prepare(Sweep(lambda: own), None)["pseudo_labels"].tolist() == [0, 0]


def test_only_trusted_labels_teach() -> None:
    # -log 3/4 = 0.287682 for the trusted first image; the second does not count.
    state = {"pseudo_labels": torch.tensor([0, 0]), "trusted": torch.tensor([True, False])}
    value, _ = SelfTraining().loss(fixed_step(sure(0.75, 0.1)), state)
    assert value.item() == pytest.approx(0.287682, abs=1e-6)


def test_distillation_is_the_cross_entropy_from_the_source_model() -> None:
    # The source says (3/4, 1/4), the client (1/2, 1/2): log 2, times the weight.
    step = fixed_step(torch.zeros(1, 2), others={"source": prediction(sure(0.75))})
    value, _ = Distillation(lambda_distill=2.0).loss(step, {})
    assert value.item() == pytest.approx(2 * 0.693147, abs=1e-5)
