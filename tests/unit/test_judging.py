"""Who judges in a round, and that rounds and clients without a judgement break nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedscal.experiment.delivery import judge_delivery, with_verdicts
from fedscal.experiment.judging import Judging
from fedscal.experiment.load import Run
from fedscal.experiment.metrics import in_short, latest_judged, outcome_of, selected_round
from fedscal.experiment.outcome import client_rows
from fedscal.experiment.records import ClientRecord, RoundRecord, RoundScores, Scores, Seconds
from fedscal.models.registry import build_network
from fedscal.runtime.together import predict_together

CLIENTS = [f"c-{place:02}" for place in range(20)]


def test_all_judge_in_every_round_unless_keys_say_otherwise() -> None:
    assert all(Judging(9).sample(CLIENTS, 0, round_) == CLIENTS for round_ in range(10))


@pytest.mark.parametrize("judging", [Judging(9, 4, 3), Judging(9, 4), Judging(9, 0, 3)])
def test_the_source_model_and_the_last_one_are_judged_by_all(judging: Judging) -> None:
    assert judging.sample(CLIENTS, 0, 0) == judging.sample(CLIENTS, 0, 9) == CLIENTS


def test_between_them_some_judge_every_few_rounds_others_each_time() -> None:
    judging = Judging(10, 4, 3)
    drawn = {round_: judging.sample(CLIENTS, 7, round_) for round_ in range(1, 10)}
    assert {round_ for round_, who in drawn.items() if who} == {3, 6, 9}
    assert all(
        len(set(drawn[round_])) == 4 and drawn[round_] == sorted(drawn[round_]) for round_ in (3, 6, 9)
    )
    assert drawn[3] != drawn[6]
    assert drawn[3] == judging.sample(CLIENTS, 7, 3) != judging.sample(CLIENTS, 8, 3)
    assert len(Judging(9, 400).sample(CLIENTS, 0, 1)) == 20


def row(infomax: float, classes: float = 5.0, agreement: float = 0.9) -> ClientRecord:
    return ClientRecord(
        domain="d",
        images=30,
        accuracy=10 * infomax,
        signals={"infomax": infomax},
        effective_classes=classes,
        agreement=agreement,
    )


def record(index: int, clients: dict[str, ClientRecord]) -> RoundRecord:
    judged = [one for one in clients.values() if one.judged]
    mean = sum(one.signals["infomax"] for one in judged) / len(judged) if judged else math.nan
    return RoundRecord(
        round=index,
        participants=("a",) if index else (),
        accuracy=RoundScores(Scores({"d": 10 * mean})) if judged else RoundScores(),
        signals={"infomax": mean} if judged else {},
        clients=clients,
        warnings=(),
        failures={},
        seconds=Seconds(adapt=1.0, evaluate=1.0),
        selected_round=0,
    )


TRAINED = ClientRecord(domain="d", drift=0.5, epochs=({"loss": 1.0},))
FIRST = record(0, {"a": row(1.0), "b": row(3.0)})
SILENT = record(1, {"a": TRAINED})


def test_a_round_that_nobody_judged_is_never_selected_and_says_so() -> None:
    assert selected_round([FIRST, SILENT], "infomax") == 0
    assert with_verdicts(SILENT, [FIRST], "infomax").selected_round == 0
    assert with_verdicts(SILENT, [FIRST], "agreement").selected_round == 0
    assert with_verdicts(SILENT, [FIRST], "last").selected_round == 1
    assert with_verdicts(SILENT, [FIRST], "infomax").warnings == ()
    assert in_short(SILENT) == "not judged"


def test_a_sample_is_compared_with_the_source_model_at_the_same_clients() -> None:
    """Client b gained 0.5 and a lost 0.2 from 1: the sample's mean alone, 3.5 or 0.8, would say otherwise."""
    lost, gained = record(1, {"a": row(0.8)}), record(1, {"b": row(3.5)})
    assert selected_round([FIRST, lost], "infomax") == 0
    assert selected_round([FIRST, gained], "infomax") == 1
    better_at_a = record(2, {"a": row(1.6)})
    assert selected_round([FIRST, gained, better_at_a], "infomax") == 2


def test_the_choice_round_by_round_is_that_over_all_rounds() -> None:
    values = [2.0, 2.5, 2.2, 2.5, 1.0]
    records = [FIRST]
    for index, value in enumerate(values, start=1):
        made = record(index, {"a": row(value), "b": row(value, classes=1.0 if index == 2 else 5.0)})
        records.append(with_verdicts(made, records, "infomax"))
    assert [one.selected_round for one in records[1:]] == [
        selected_round(records[: index + 1], "infomax") for index in range(1, 6)
    ]


def test_scores_of_a_run_that_goes_on_are_those_of_its_last_judged_round() -> None:
    records = [FIRST, record(1, {"a": row(2.0), "b": row(4.0)}), replace(SILENT, round=2)]
    assert latest_judged(records).round == 1
    assert outcome_of(records).accuracy.last.average == 30
    rows = {one.name: one for one in client_rows(Run(Path("run"), {}, records, None, None))}
    assert (rows["a"].before, rows["a"].after, rows["b"].after) == (10, 20, 40)
    assert (rows["a"].rounds, rows["b"].rounds) == (2, 0)


def test_a_delivery_that_some_sites_judged_says_how_many() -> None:
    sampled = record(1, {"a": row(2.0)})
    fallen = record(2, {"a": row(2.0, agreement=0.1), "b": row(2.0, agreement=0.1)})
    delivery = judge_delivery([FIRST, sampled, fallen])
    assert (delivery.round, delivery.verdict) == (1, "unsure")
    assert "round 1 was judged at 1 of 2 sites" in delivery.reasons
    assert not any(
        "judged at" in why for why in judge_delivery([FIRST, record(1, dict(FIRST.clients))]).reasons
    )


def test_images_of_several_clients_are_answered_as_each_by_itself() -> None:
    """In float64 a batch of another size moves no more than rounding: 1e-12 is a thousand times of that."""
    network = build_network("convnet", (1, 16, 16), 4, 0, False).double()
    draw = torch.Generator().manual_seed(0)
    sizes = {"a": 5, "b": 1, "c": 300, "d": 250, "e": 7}
    images = {
        name: torch.randint(0, 256, (size, 1, 16, 16), generator=draw, dtype=torch.uint8)
        for name, size in sizes.items()
    }

    seen: list[int] = []

    def view(batch: torch.Tensor) -> torch.Tensor:
        seen.append(len(batch))
        return batch.double() / 255

    made = dict(predict_together(network, images, view))
    assert list(made) == list(sizes)
    assert seen == [32, 256, 44, 256, 32]
    network.eval()
    for name, own in images.items():
        with torch.no_grad():
            alone = network(view(own))
        assert made[name].logits.shape == alone.logits.shape
        assert torch.allclose(made[name].logits, alone.logits, rtol=0, atol=1e-12)
        assert torch.allclose(made[name].features, alone.features, rtol=0, atol=1e-12)
