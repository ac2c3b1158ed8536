"""LADD: styles, cluster-wise averages, teachers and the client's losses, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from fedscal.client.style import restyled, style
from fedscal.client.terms.distillation import Distillation, soft_distillation
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
        "head.weight": torch.tensor([value]),
    }


def styles(**levels: float) -> dict[str, Mapping[str, Tensor]]:
    return {client: {"amplitude": torch.full((1, 3, 3), level)} for client, level in levels.items()}


# Five clients are four clusters, the fewest that are tried: a and b are the pair.
FIVE = styles(a=1.0, b=1.1, c=5.0, d=7.0, e=9.0)


def begun(rule: StyleClusters, rounds: int = 4) -> ServerState:
    return rule.init(Briefing(model(0.0), "backbone.weight", rounds=rounds, profiles=FIVE))


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


def test_a_restyled_image_has_the_low_amplitudes_of_the_style_and_all_else_of_its_own() -> None:
    draws = np.random.default_rng(0)
    image = draws.integers(90, 160, (1, 2, 8, 9), dtype=np.uint8)
    other = style(torch.from_numpy(draws.integers(90, 160, (50, 2, 8, 9), dtype=np.uint8)))["amplitude"]
    # The independent way: numpy, unscaled, frequency 0 in the corner, each of the nine frequencies by name.
    spectrum = np.fft.fft2(image[0] / 255)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            amplitude = other[:, down + 1, right + 1].numpy() * 8 * 9
            spectrum[:, down, right] = amplitude * np.exp(1j * np.angle(spectrum[:, down, right]))
    expected = np.clip(np.round(255 * np.fft.ifft2(spectrum).real), 0, 255)
    found = restyled(torch.from_numpy(image), other[None])
    assert found.dtype == torch.uint8
    assert np.abs(found[0].numpy().astype(float) - expected).max() <= 1  # a half may round either way
    assert (found[0].numpy() != image[0]).mean() > 0.5


def test_an_image_in_its_own_style_is_itself_and_a_style_beyond_white_is_cut() -> None:
    image = torch.randint(0, 256, (1, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    own = style(image)["amplitude"]
    assert (restyled(image, own[None]).int() - image.int()).abs().max() <= 1
    own[:, 1, 1] += 1  # brighter by all there is
    assert (restyled(image, own[None]) == 255).all()


def test_clients_of_like_style_share_a_cluster() -> None:
    state = begun(StyleClusters())
    labels = [int(state.per_client[client]["cluster"]) for client in "abcde"]
    assert labels == [0, 0, 1, 2, 3]


def test_with_few_clients_fewer_clusters_are_tried() -> None:
    state = StyleClusters().init(Briefing(model(0.0), "w", profiles=styles(a=1.0, b=1.1, c=5.0)))
    assert [int(state.per_client[client]["cluster"]) for client in "abc"] == [0, 0, 1]


def test_clusters_are_drawn_from_the_runs_seed() -> None:
    draws = torch.Generator().manual_seed(0)
    many = {f"c{n}": {"amplitude": torch.rand(1, 3, 3, generator=draws)} for n in range(12)}

    def found(seed: int) -> list[int]:
        state = StyleClusters().init(Briefing(model(0.0), "w", profiles=many, seed=seed))
        return [int(state.per_client[client]["cluster"]) for client in sorted(many)]

    assert found(1) == found(1)
    assert len({tuple(found(seed)) for seed in range(8)}) > 1


@pytest.mark.parametrize(
    ("layers", "apart"),
    [
        ("classifier", {"bottleneck.weight", "head.weight"}),
        ("norms", {"backbone.norm.weight", "backbone.norm.running_mean"}),
        ("all", set(model(0.0))),
    ],
)
def test_chosen_layers_are_averaged_in_the_cluster_and_the_others_over_all(
    layers: str, apart: set[str]
) -> None:
    rule = StyleClusters(cluster_layers=layers)  # type: ignore[arg-type]
    answers = [
        reply("a", model(1.0), examples=10),
        reply("b", model(5.0), examples=30),
        reply("c", model(8.0), examples=40),
    ]
    state = rule.merge(begun(rule), answers)
    mine, theirs, shared = rule.deployed(state, "b"), rule.deployed(state, "c"), state.models["global"]
    for name in model(0.0):
        # By images, inside: (10 * 1 + 30 * 5) / 40 = 4 and 8; over all: (10 + 150 + 320) / 80 = 6.
        # In the global model both clusters that replied count alike: (4 + 8) / 2.
        expected = (4.0, 8.0, 6.0) if name in apart else (6.0, 6.0, 6.0)
        assert (mine[name].item(), theirs[name].item(), shared[name].item()) == expected, name


def test_the_global_model_counts_clusters_alike_whatever_their_images() -> None:
    rule = StyleClusters()
    state = rule.merge(
        begun(rule), [reply("a", model(1.0), examples=30), reply("c", model(5.0), examples=10)]
    )
    shared = state.models["global"]
    # Classifier: (1 + 5) / 2. Backbone: (30 * 1 + 10 * 5) / 40.
    assert (shared["head.weight"].item(), shared["backbone.weight"].item()) == (3.0, 2.0)


def test_a_cluster_without_a_reply_takes_its_layers_from_the_last_global_model() -> None:
    rule = StyleClusters()
    state = rule.merge(begun(rule), [reply("c", model(6.0)), reply("d", model(2.0))])
    away = rule.deployed(state, "a")
    assert (away["bottleneck.weight"].item(), away["backbone.weight"].item()) == (0.0, 4.0)  # the source's
    state = rule.merge(state, [reply("c", model(10.0))])
    away = rule.deployed(state, "a")
    # The global model of the round before, (6 + 2) / 2, not this round's; the rest is this round's.
    assert (away["bottleneck.weight"].item(), away["backbone.weight"].item()) == (4.0, 10.0)


def test_late_teachers_are_running_means_of_their_clusters_models() -> None:
    rule = StyleClusters(swa_start=0.5)
    state, teachers = begun(rule, rounds=4), []
    for value in (1.0, 2.0, 4.0, 9.0):
        state = rule.merge(state, [reply("a", model(value))])
        sent = rule.send(state, "a")
        teachers.append(sent["teacher"]["bottleneck.weight"].item() if "teacher" in sent else None)
        assert sent["server"]["bottleneck.weight"].item() == value
        assert sent["source"]["bottleneck.weight"].item() == 0.0
    assert teachers == [
        None,
        2.0,
        3.0,
        5.0,
    ]  # from the model of round 2 of 4: 2, (2 + 4) / 2, (2 + 4 + 9) / 3


def test_styles_that_cannot_be_used_are_passed_over() -> None:
    odd = {"nan": {"amplitude": torch.full((1, 3, 3), torch.nan)}, "shape": {"amplitude": torch.ones(2)}}
    state = StyleClusters().init(Briefing(model(5.0), "backbone.weight", profiles={**FIVE, **odd}))
    assert "nan" not in state.per_client
    assert StyleClusters().deployed(state, "shape")["head.weight"].item() == 5.0


def test_fewer_than_three_styles_are_refused() -> None:
    with pytest.raises(TooFewClients, match="at least three clients; 2 sent theirs"):
        StyleClusters().init(Briefing(model(0.0), "backbone.weight", profiles=styles(a=1.0, b=2.0)))


def test_a_label_is_trusted_if_sure_or_among_the_best_of_its_class() -> None:
    # Class 0: 0.95 is sure; of 0.95, 0.8, 0.7, 0.6 half are 0.95 and 0.8. Class 1: half of one is none.
    probabilities = torch.softmax(sure(0.95, 0.8, 0.7, 0.6, 0.45), dim=1)
    assert trusted(probabilities, confident=0.9, share=0.5).tolist() == [True, True, False, False, False]
    assert trusted(probabilities, confident=0.65, share=0.0).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 50])
def test_of_a_class_the_whole_part_of_the_share_is_trusted_even_among_equals(count: int) -> None:
    for values in (np.full(count, 0.7), np.random.default_rng(0).uniform(0.55, 0.85, count)):
        kept = trusted(torch.softmax(sure(*values), dim=1), confident=0.9, share=0.66)
        best = np.argsort(-values, kind="stable")[: int(0.66 * count)]
        assert kept.nonzero().flatten().tolist() == sorted(best.tolist())


def test_the_teacher_labels_once_a_round() -> None:
    own, teacher = prediction(sure(0.9, 0.9)), prediction(sure(0.2, 0.9))
    term = SelfTraining()
    state = term.prepare(Sweep(lambda: own, {"teacher": teacher}), None)
    assert state["pseudo_labels"].tolist() == [1, 0]
    assert term.prepare(Sweep(lambda: pytest.fail("no pass is needed")), state) is state
    assert term.prepare(Sweep(lambda: own), None)["pseudo_labels"].tolist() == [0, 0]


def test_labels_that_are_not_trusted_count_as_0_in_a_mean_over_all() -> None:
    # -log 3/4 = 0.287682 for the trusted first image, 0 for the second: half of it.
    state = {"pseudo_labels": torch.tensor([0, 0]), "trusted": torch.tensor([True, False])}
    value, _ = SelfTraining().loss(fixed_step(sure(0.75, 0.1)), state)
    assert value.item() == pytest.approx(0.287682 / 2, abs=1e-6)


def test_distillation_is_a_mean_over_classes_at_temperature_2_where_the_source_model_is_trusted() -> None:
    draws = np.random.default_rng(0)
    logits, old = draws.normal(size=(7, 4)), 3 * draws.normal(size=(7, 4))
    kept = np.array([1, 0, 1, 1, 0, 1, 1])
    total = 0.0
    for row, target, counts in zip(logits, old, kept, strict=True):
        soft = np.exp(target / 2) / np.exp(target / 2).sum()
        total -= counts * np.sum(soft * np.log(np.exp(row) / np.exp(row).sum())) / 4
    found = soft_distillation(torch.tensor(logits), torch.tensor(old), torch.tensor(kept))
    assert found.item() == pytest.approx(total / 7)


def test_the_source_model_is_trusted_by_its_own_predictions_once_a_round() -> None:
    # Of class 0 the source model is sure of the first; of 0.95, 0.8, 0.6 two thirds are the first two.
    source, own = prediction(sure(0.95, 0.8, 0.6)), prediction(sure(0.2, 0.2, 0.99))
    term = Distillation(lambda_distill=2.0, trusted_share=0.67)
    state = term.prepare(Sweep(lambda: own, {"source": source}), None)
    assert state["trusted"].tolist() == [True, True, False]
    assert term.prepare(Sweep(lambda: pytest.fail("no pass is needed")), state) is state
    step = fixed_step(torch.zeros(2, 2), others={"source": source}, indices=[2, 0])
    # The client is undecided, -log 2 for each class: the mean over classes is half of log 2, and half count.
    assert term.loss(step, state)[0].item() == pytest.approx(2 * 0.693147 / 2 / 2, abs=1e-5)
