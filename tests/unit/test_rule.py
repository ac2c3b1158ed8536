"""Server rules: what is sent, how replies are merged, and by which model a client is judged."""

from __future__ import annotations

import pytest
import torch

from fedscal.core import weights
from fedscal.server.aggregation import Aggregation
from fedscal.server.authors import AuthorsCode
from fedscal.server.rule import Briefing, Frozen, Isolated
from fedscal.server.rules.average import Average
from toys import model, reply

SOURCE = model(0.0)


def test_average_counts_every_client_alike() -> None:
    # (1 + 2 + 9) / 3 = 4 although the last client has 98 of 100 images.
    replies = [reply("a", model(1.0)), reply("b", model(2.0)), reply("c", model(9.0), examples=98)]
    state = Average().merge(Average().init(Briefing(SOURCE, "w")), replies)
    assert state.models["server"]["w"].tolist() == [4.0, -4.0]


def test_average_by_size_counts_every_image_alike() -> None:
    # (1 * 1 + 3 * 5) / 4 = 4.
    rule = Average(Aggregation("size"))
    state = rule.merge(
        rule.init(Briefing(SOURCE, "w")),
        [reply("a", model(1.0), examples=1), reply("b", model(5.0), examples=3)],
    )
    assert state.models["server"]["w"].tolist() == [4.0, -4.0]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # Of 1, 2, 3, 4, 900: the middle; without the ends (2 + 3 + 4) / 3; the nearest to its two nearest.
        (Aggregation("median"), 3.0),
        (Aggregation("trimmed-mean"), 3.0),
        (Aggregation("trimmed-mean", attackers=2), 3.0),
        (Aggregation("krum"), 2.0),
        (Aggregation("uniform"), 182.0),
    ],
)
def test_average_can_withstand_one_wild_client(aggregation: Aggregation, expected: float) -> None:
    rule = Average(aggregation)
    replies = [reply(f"c{n}", model(value)) for n, value in enumerate((1.0, 2.0, 3.0, 4.0, 900.0))]
    state = rule.merge(rule.init(Briefing(SOURCE, "w")), replies)
    assert state.models["server"]["w"].tolist() == [expected, -expected]


def test_average_forgets_the_old_model_and_judges_all_clients_by_the_new() -> None:
    rule = Average()
    state = rule.merge(rule.init(Briefing(model(100.0), "w")), [reply("a", model(1.0))])
    assert set(state.models) == {"server"}
    for client in ("a", "stranger"):
        assert rule.deployed(state, client)["w"].tolist() == [1.0, -1.0]
        assert rule.send(state, client)["server"]["w"].tolist() == [1.0, -1.0]


def test_isolated_clients_go_on_from_their_own_model() -> None:
    rule = Isolated()
    first = rule.merge(rule.init(Briefing(SOURCE, "w")), [reply("a", model(1.0)), reply("b", model(2.0))])
    second = rule.merge(first, [reply("a", model(3.0))])
    expected = {"a": 3.0, "b": 2.0, "c": 0.0}
    for client, value in expected.items():
        assert rule.deployed(second, client)["w"][0].item() == value
        assert rule.send(second, client).keys() == {"server"}, "no client receives another's model"
        assert rule.send(second, client)["server"]["w"][0].item() == value
    assert rule.deployed(first, "a")["w"][0].item() == 1.0, "the state before is left as it was"


def test_frozen_never_moves_and_asks_nobody_to_train() -> None:
    rule = Frozen()
    state = rule.merge(rule.init(Briefing(SOURCE, "w")), [reply("a", model(1.0))])
    assert not rule.trains
    assert weights.digest(rule.deployed(state, "a")) == weights.digest(SOURCE)
    assert torch.equal(rule.send(state, "a")["server"]["w"], SOURCE["w"])


def test_tokens_stay_the_servers_if_they_are_not_averaged() -> None:
    start = {"backbone.cls_token": torch.zeros(1), "backbone.weight": torch.zeros(1)}
    moved = {name: torch.ones(1) for name in start}
    for average, expected in ((True, 1.0), (False, 0.0)):
        rule = Average(authors=AuthorsCode(average_tokens=average))
        found = rule.merge(rule.init(Briefing(start, "backbone.weight")), [reply("a", moved)]).models[
            "server"
        ]
        assert (found["backbone.cls_token"].item(), found["backbone.weight"].item()) == (expected, 1.0)


def test_clients_may_be_judged_by_their_own_last_model() -> None:
    rule = Average(authors=AuthorsCode(judged_model="client"))
    first = rule.merge(rule.init(Briefing(SOURCE, "w")), [reply("a", model(2.0)), reply("b", model(4.0))])
    second = rule.merge(first, [reply("b", model(9.0))])
    judged = {client: rule.deployed(second, client)["w"][0].item() for client in "abc"}
    assert judged == {"a": 2.0, "b": 9.0, "c": 9.0}, "a's is old, c has none and takes the server's"
    assert rule.send(second, "a").keys() == {"server"}
    assert rule.send(second, "a")["server"]["w"][0].item() == 9.0
