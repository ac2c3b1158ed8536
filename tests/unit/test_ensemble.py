"""The weight-space ensemble with the source model: judged and delivered, never sent."""

from __future__ import annotations

import torch

from fedscal.core.types import Reply
from fedscal.server.ensemble import SourceShare
from fedscal.server.rule import Briefing, ServerState
from fedscal.server.rules.average import Average


def reply(value: float) -> Reply:
    return Reply("a", 1, {"w": torch.full((2,), value)}, examples=1, epochs=[], seconds=0.0, drift=0.0)


def after_a_round(share: float) -> tuple[Average, ServerState]:
    rule = Average(ensemble=SourceShare(share))
    state = rule.init(Briefing({"w": torch.zeros(2)}, "w"))
    return rule, rule.merge(state, [reply(8.0)])


def test_a_quarter_of_the_source_model_is_delivered_and_clients_go_on_from_their_average() -> None:
    rule, state = after_a_round(0.25)
    assert rule.send(state, "a")["server"]["w"].tolist() == [8.0, 8.0]
    assert rule.deployed(state, "a")["w"].tolist() == [6.0, 6.0]
    assert {name: model["w"].tolist() for name, model in rule.delivered(state).items()} == {
        "server": [6.0, 6.0]
    }


def test_a_resumed_state_still_knows_the_source_model() -> None:
    rule, state = after_a_round(0.25)
    again = ServerState.of(state.groups())
    assert rule.deployed(rule.merge(again, [reply(4.0)]), "a")["w"].tolist() == [3.0, 3.0]


def test_without_a_share_nothing_of_the_source_model_is_kept() -> None:
    rule, state = after_a_round(0.0)
    assert list(state.models) == ["server"]
    assert rule.deployed(state, "a") is state.models["server"]


def test_clients_share_one_mean_so_that_they_share_a_request() -> None:
    rule, state = after_a_round(0.25)
    assert rule.deployed(state, "a") is rule.deployed(state, "b")
