"""From scalars to lines, and from lines to a summary."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from fedscal.core.convert import convert, dump
from fedscal.core.errors import DataRefused
from fedscal.core.types import Failure
from fedscal.experiment.client_table import MANY, ClientTable
from fedscal.experiment.delivery import with_verdicts
from fedscal.experiment.metrics import (
    collapsed,
    doubtful_source,
    left_out,
    merged_round,
    of_own_model,
    outcome_of,
    round_record,
    selected_round,
    source_record,
    summarise,
    unlike_images,
    worse_domains,
)
from fedscal.experiment.records import (
    NO_SCORES,
    ClientRecord,
    MergedRound,
    RoundRecord,
    RoundScores,
    Scores,
    Seconds,
    Traffic,
    by_domain,
    check_domains,
)
from fedscal.runtime.evaluate import client_metrics
from fedscal.runtime.signals import SIGNALS, Signal
from fedscal.server.rounds import Round
from fedscal.server.rule import ServerState
from toys import model, prediction, reply, sure

DOMAINS = {"sea-0": "sea", "sea-1": "sea", "sea-2": "sea", "land-0": "land"}


def judged(
    accuracy: float = 50.0, classes: float = 4.0, signal: float = 1.0, images: int = 99
) -> dict[str, float]:
    signals = {"entropy": signal, "infomax": signal, "snd": signal, "effective_classes": classes}
    return {"accuracy": accuracy, "pseudo_label_accuracy": accuracy + 1, "images": images, **signals}


def line(
    index: int,
    signal: float = 1.0,
    classes: float = 4.0,
    server: float = 50.0,
    own: float = math.nan,
    images: int = 99,
    selected: int | None = None,
) -> RoundRecord:
    client = convert({"domain": "sea", **judged(server, classes, images=images)}, ClientRecord)
    return RoundRecord(
        round=index,
        participants=(),
        clients={"sea-0": replace(client, local_accuracy=own)},
        signals={"entropy": signal, "infomax": signal, "snd": signal},
        accuracy=RoundScores(Scores({"sea": server})),
        warnings=(),
        failures={},
        seconds=Seconds(adapt=1.0, evaluate=2.0),
        selected_round=selected,
    )


def facts() -> dict[str, Any]:
    """Return what the rounds do not tell of a run."""
    names = ("benchmark", "source", "method", "adaptation", "weights_sha256", "spec_sha256", "version")
    return {**dict.fromkeys(names, "x"), "seed": 0, "source_accuracy": None}


def test_domains_count_alike_however_many_clients_they_have() -> None:
    # sea: (10 + 20 + 30) / 3 = 20, land: 80; average (20 + 80) / 2, not (10 + 20 + 30 + 80) / 4.
    values = {"sea-0": 10.0, "sea-1": 20.0, "sea-2": 30.0, "land-0": 80.0}
    assert by_domain(values, DOMAINS) == Scores({"land": 80.0, "sea": 20.0}, 50.0)
    assert by_domain({}, DOMAINS) == NO_SCORES


def test_a_domain_cannot_be_called_average() -> None:
    check_domains(["sea", "average-sea"])
    with pytest.raises(DataRefused, match=r"no domain can be called 'average'.* Rename"):
        check_domains(["sea", "average"])


@pytest.mark.parametrize(
    ("signal", "values", "expected"),
    [
        ("infomax", [1.0, 3.0, 2.0], 1),
        ("snd", [1.0, 3.0, 2.0], 1),
        ("entropy", [2.0, 3.0, 1.0], 2),
        ("infomax", [3.0, 3.0, 2.0], 1),
        ("entropy", [1.0, 2.0, 1.0], 2),
        ("last", [9.0, 1.0, 1.0], 2),
    ],
    ids=[
        "high infomax",
        "high snd",
        "low entropy",
        "the later of equals",
        "the later of equals, down",
        "last",
    ],
)
def test_the_selected_round_has_the_best_signal(signal: str, values: list[float], expected: int) -> None:
    assert selected_round([line(index, value) for index, value in enumerate(values)], signal) == expected


def test_a_collapsed_round_is_passed_over_however_good_its_signal() -> None:
    lines = [line(0, 1.0), line(1, 2.0), line(2, 9.0, classes=1.9)]
    assert collapsed(lines[2], lines[0]) == ["sea-0"]
    assert selected_round(lines, "infomax") == 1
    assert selected_round([line(0, 1.0), line(1, 9.0, classes=1.0)], "infomax") == 0


def test_a_collapse_is_warned_of_once_by_name() -> None:
    healthy = with_verdicts(line(1, 2.0), [line(0)], "infomax")
    fallen = with_verdicts(line(2, 9.0, classes=1.0), [line(0), healthy], "infomax")
    assert (healthy.warnings, healthy.selected_round) == ((), 1)
    assert fallen.warnings == ("round 2: predictions collapse to few classes for sea-0",)
    assert fallen.selected_round == 1
    assert with_verdicts(line(0), [], "infomax").selected_round == 0


def test_a_source_model_that_predicts_one_class_is_doubted() -> None:
    poor = {f"sea-{n}": line(0, classes=1.2).clients["sea-0"] for n in range(5)}
    (warning,) = doubtful_source(poor | {"land-0": line(0).clients["sea-0"]})
    assert "for sea-0, sea-1, sea-2 and 2 more" in warning
    assert doubtful_source(line(0, classes=1.6).clients) == []


def test_few_images_prove_neither_a_collapse_nor_a_bad_source() -> None:
    for images, clients in [(19, []), (20, ["sea-0"])]:
        later = line(1, 9.0, classes=1.0, images=images)
        assert collapsed(later, line(0)) == clients
        assert bool(doubtful_source(later.clients)) == bool(clients)


def test_images_unlike_those_of_the_source_are_named_if_they_are_enough() -> None:
    plain = line(0, images=50).clients["sea-0"]
    far = replace(plain, unlikeness=2.34)
    clients = {"a": far, "b": replace(far, unlikeness=1.5), "c": replace(far, unlikeness=1.0), "d": plain}
    (warning,) = unlike_images(clients)
    assert warning.startswith(
        "the images of a, b are unlike those that the source model was trained on (a 2.3"
    )
    assert unlike_images({"a": replace(far, images=49)}) == []


def test_clients_that_are_left_out_are_named() -> None:
    assert left_out([]) == []
    assert left_out(["b", "a"]) == ["without an image and left out: a, b"]


def test_the_source_record_holds_the_accuracy_of_the_source_model() -> None:
    clients = {
        "sea-0": judged(10),
        "sea-1": judged(20),
        "sea-2": judged(30),
        "land-0": judged(80, signal=5.0),
    }
    found = source_record(clients, DOMAINS, seconds=2.5)
    assert found.accuracy == RoundScores(Scores({"land": 80.0, "sea": 20.0}, 50.0))
    assert found.pseudo_label_accuracy.average == 51
    assert found.signals["infomax"] == (1 + 1 + 1 + 5) / 4
    assert (found.round, found.participants, found.seconds) == (0, (), Seconds(adapt=0.0, evaluate=2.5))


def test_a_round_tells_who_took_part_and_who_failed() -> None:
    told = {"start": {"blend": torch.zeros(3)}}
    answer = replace(reply("sea-0", model(1.0), examples=7), drift=1.5, reports=told)
    done = Round(
        index=3,
        lr=0.1,
        state=ServerState({}),
        participants=["sea-0", "sea-1"],
        replies=[answer],
        failures=[Failure("sea-1", "out of memory")],
        bytes_down={"sea-0": 100, "sea-1": 100},
        seconds=9.0,
    )
    found = round_record(
        merged_round(done, {"sea-0": of_own_model(judged(77))}, 2.0),
        {client: judged() for client in DOMAINS},
        DOMAINS,
        1.0,
    )
    assert found.accuracy.clients == Scores({"sea": 77.0})
    assert found.accuracy.server.average == 50.0
    assert found.failures == {"sea-1": "out of memory"}
    assert found.bytes == Traffic(200, 2 * 4 + 4 + 8 + 3 * 4)
    row = found.clients["sea-0"]
    assert (row.drift, row.images, row.local_accuracy) == (1.5, 99, 77)
    assert "drift" not in dump(found.clients["sea-1"])
    assert not {"both_wrong", "received_accuracy"} & dump(row).keys(), "nobody measured it"
    measured = {"sea-0": of_own_model({**judged(77), "received_accuracy": 60.0, "both_wrong": 20.0})}
    assert found.seconds == Seconds(adapt=9.0, evaluate=3.0)
    merged = merged_round(done, measured, 2.0)
    kept = convert(json.loads(json.dumps(dump(merged))), MergedRound)
    assert dump(kept) == dump(merged), "as a checkpoint keeps it"
    row = round_record(merged, {client: judged() for client in DOMAINS}, DOMAINS, 1.0).clients["sea-0"]
    assert (row.accuracy, row.received_accuracy, row.both_wrong) == (50, 60, 20)
    assert convert(dump(row), ClientRecord) == row


def test_records_without_labels_hold_no_accuracy() -> None:
    signals = {name: value for name, value in judged().items() if "accuracy" not in name}
    found = source_record({"sea-0": signals}, DOMAINS, 0.0)
    assert "accuracy" not in dump(found)
    summary = dump(summarise([with_verdicts(found, [], "infomax")], 0.0, **facts()))
    assert (summary["accuracy"], summary["selected_round"]) == ({}, 0)
    assert not {"best_round", "worse_domains", "client_models"} & summary.keys()


def test_the_summary_shows_last_selected_and_best_side_by_side() -> None:
    records = [
        line(0, server=60.0),
        line(1, server=90.0, own=33.0),
        line(2, server=70.0, own=44.0),
        line(3, server=59.0, selected=2),
    ]
    found = summarise(records, 5.0, **facts())
    assert {name: scores.average for name, scores in vars(found.accuracy).items()} == {
        "source_only": 60.0,
        "last": 59.0,
        "selected": 70.0,
        "best": 90.0,
    }
    assert (found.selected_round, found.best_round, found.worse_domains) == (2, 1, ["sea"])
    assert found.client_models.last.average == 44.0, "the model of a client's last participation"
    assert found.seconds == Seconds(pretrain=5.0, adapt=4.0, evaluate=8.0)


@pytest.mark.parametrize(("last", "worse"), [(59.96, []), (59.94, ["sea"]), (60.0, []), (80.0, [])])
def test_a_domain_is_worse_only_if_the_loss_shows_at_one_decimal(last: float, worse: list[str]) -> None:
    accuracy = outcome_of([line(0, server=60.0), line(1, server=last, selected=1)]).accuracy
    assert worse_domains(accuracy) == worse


def test_a_new_signal_is_recorded_and_selects_by_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    less = replace(SIGNALS["entropy"], compute=lambda prediction: 0.5)
    monkeypatch.setitem(cast(dict[str, Signal], SIGNALS), "margin", less)
    metrics = [{**judged(), "margin": value} for value in (3.0, 1.0, 2.0)]
    records = [source_record({"sea-0": row}, DOMAINS, 0.0) for row in metrics]
    records = [replace(record, round=index) for index, record in enumerate(records)]
    assert [record.signals["margin"] for record in records] == [3.0, 1.0, 2.0]
    assert selected_round(records, "margin") == 1
    assert client_metrics(prediction(sure(0.5)), None, None)["margin"] == 0.5


def test_many_clients_of_a_round_are_columns_and_never_all_there_as_objects() -> None:
    names = [f"c{place:04}" for place in range(MANY + 1)]
    domains = dict.fromkeys(names, "sea")
    done = Round(
        index=1,
        lr=0.1,
        state=ServerState({}),
        participants=names,
        replies=[reply(name, model(1.0)) for name in names],
        failures=[],
        bytes_down=dict.fromkeys(names, 100),
        seconds=9.0,
    )
    merged = merged_round(done, dict.fromkeys(names, of_own_model(judged(77))), 2.0)
    found = round_record(merged, dict.fromkeys(names, judged()), domains, 1.0)
    first = source_record(dict.fromkeys(names, judged()), domains, 1.0)
    assert all(isinstance(one.clients, ClientTable) for one in (merged, found, first))
    few = replace(merged, clients={name: merged.clients[name] for name in names[:2]})
    same = round_record(few, dict.fromkeys(names[:2], judged()), domains, 1.0)
    assert {name: found.clients[name] for name in names[:2]} == same.clients
    assert (found.signals, found.accuracy) == (same.signals, same.accuracy)
