"""Which round is delivered without labels, and what is said of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedscal.experiment.delivery import agreement, delivered_round, judge_delivery, with_verdicts
from fedscal.experiment.records import ClientRecord, RoundRecord, Seconds


def record(
    round_: int,
    *agreements: float,
    classes: float = 9.0,
    images: float = 100,
    source_classes: float = 9.0,
    steadiness: float = math.nan,
) -> RoundRecord:
    """Return a round with a site for each agreement."""
    clients = {
        f"site-{number}": ClientRecord(
            domain="d",
            images=images,
            signals={},
            effective_classes=classes if round_ else source_classes,
            agreement=agree,
            source_steadiness=steadiness,
        )
        for number, agree in enumerate(agreements)
    }
    return RoundRecord(
        round=round_,
        participants=(),
        signals={},
        clients=clients,
        warnings=(),
        failures={},
        seconds=Seconds(adapt=0.0),
    )


SOURCE = record(0, 1.0, 1.0)


def test_the_last_round_is_delivered_while_answers_stay_near_the_source_models() -> None:
    records = [SOURCE, record(1, 0.9, 0.9), record(2, 0.8, 0.7)]
    assert delivered_round(records) == 2
    assert judge_delivery(records).verdict == "better"


@pytest.mark.parametrize(
    ("rounds", "chosen"),
    [
        ([record(1, 0.9, 0.8), record(2, 0.55, 0.55)], 1),
        ([record(1, 0.55, 0.6), record(2, 0.5, 0.55)], 0),
        ([record(1, 0.9, 0.9), record(2, 0.9, 0.9, classes=2.0)], 1),
    ],
    ids=["went too far", "went too far at once", "collapsed"],
)
def test_a_run_that_runs_away_delivers_an_earlier_model(rounds: list[RoundRecord], chosen: int) -> None:
    delivery = judge_delivery([SOURCE, *rounds])
    assert (delivery.round, delivery.verdict) == (chosen, "unsure")
    assert ("source model with each site's own" in delivery.reasons[-1]) == (chosen == 0)


@pytest.mark.parametrize(("steadiness", "chosen", "verdict"), [(0.5, 1, "better"), (0.6, 0, "unsure")])
def test_where_the_source_model_is_unsteady_more_answers_may_change(
    steadiness: float, chosen: int, verdict: str
) -> None:
    delivery = judge_delivery([SOURCE, record(1, 0.46, 0.5, steadiness=steadiness)])
    assert (delivery.round, delivery.verdict) == (chosen, verdict)


def test_a_steady_source_model_asks_for_no_more_than_others() -> None:
    assert judge_delivery([SOURCE, record(1, 0.66, 0.66, steadiness=0.99)]).verdict == "better"


def test_a_collapse_of_one_site_is_named_though_the_others_are_well() -> None:
    last = record(2, 0.9, 0.9, 0.9)
    fallen = replace(last.clients["site-1"], effective_classes=2.0)
    last = replace(last, clients={**last.clients, "site-1": fallen})
    delivery = judge_delivery([record(0, 1.0, 1.0, 1.0), record(1, 0.9, 0.9, 0.9), last])
    assert (delivery.round, delivery.verdict, delivery.sites) == (1, "unsure", ["site-1"])
    assert delivery.reasons == [
        "the last round collapsed to few classes at site-1",
        "round 1 is delivered in place of the last round",
    ]


def test_a_round_may_come_back() -> None:
    assert delivered_round([SOURCE, record(1, 0.6, 0.6), record(2, 0.9, 0.9)]) == 2


def test_one_strange_site_and_small_sites_make_it_unsure() -> None:
    delivery = judge_delivery([SOURCE, record(1, 1.0, 0.45)])
    assert (delivery.verdict, delivery.reasons) == (
        "unsure",
        ["more than half of the answers changed at site-1: the source model is kept there"],
    )
    few = judge_delivery([record(0, 1.0, images=5), record(1, 0.9, images=5)])
    assert few.verdict == "unsure"
    assert "site-0" in few.reasons[0]


def test_a_source_model_with_one_answer_is_not_to_be_used() -> None:
    records = [record(0, 1.0, source_classes=1.0), record(1, 0.9)]
    assert judge_delivery(records).verdict == "do not use"


def test_small_sites_do_not_outvote_the_others() -> None:
    mixed = record(1, 0.9)
    small = record(1, 0.1, images=3).clients["site-0"]
    assert agreement(RoundRecord(**{**vars(mixed), "clients": {**mixed.clients, "small": small}})) == 0.9


def test_select_agreement_is_what_the_record_says() -> None:
    first = with_verdicts(SOURCE, [], "agreement")
    far = with_verdicts(record(1, 0.2, 0.3), [first], "agreement")
    assert (first.selected_round, far.selected_round) == (0, 0)


def test_a_site_whose_answers_changed_too_much_keeps_the_source_model() -> None:
    delivery = judge_delivery([SOURCE, record(1, 1.0, 0.45)])
    assert delivery.unchanged == ["site-1"]
    assert (delivery.round_at("site-0"), delivery.round_at("site-1")) == (1, 0)


def test_a_round_that_changed_more_than_most_is_delivered_but_unsure() -> None:
    delivery = judge_delivery([SOURCE, record(1, 0.65, 0.6)])
    assert (delivery.round, delivery.verdict) == (1, "unsure")
    assert delivery.reasons == ["the source model answers alike for 62% of the images only"]
