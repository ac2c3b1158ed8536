"""What every server rule named in METHODS must keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest
import torch

from fedscal.core import weights
from fedscal.core.types import Package, Reply, Weights
from fedscal.methods import METHODS
from fedscal.server.rule import Briefing, ServerRule, ServerState
from fedscal.server.screen import screen
from toys import gaussians, reply, tiny_network

RULES = {row.rule.__name__: row.rule for row in METHODS.values()}
CLIENTS = ("a", "b", "c")


def make_model(seed: int, counter: int = 0) -> dict[str, torch.Tensor]:
    """Return a real model of a few weights, the larger the seed the larger they are."""
    found = weights.snapshot(tiny_network(seed=seed).state_dict())
    moved = {n: t * 10.0**seed if t.is_floating_point() else t + counter for n, t in found.items()}
    return moved | {"head.weight": found["head.weight"], "head.bias": found["head.bias"]}


SOURCE = make_model(0)
STYLES = {client: {"amplitude": torch.full((1, 3, 3), 1.0 + n // 2)} for n, client in enumerate(CLIENTS)}


def begin(rule: ServerRule) -> ServerState:
    return rule.init(Briefing(SOURCE, "backbone.0.weight", rounds=2, gaussians=gaussians(), profiles=STYLES))


def replies(rule: ServerRule, state: ServerState, clients: Sequence[str] = CLIENTS) -> list[Reply]:
    """Return an answer of each client, with the reports that the rule waits for."""
    found = []
    for number, client in enumerate(CLIENTS):
        sent = rule.send(state, client)
        told = {g: {n: t + number + 1 for n, t in ts.items()} for g, ts in rule.reports(sent).items()}
        answer = reply(client, make_model(number + 1, counter=10 - number), examples=number + 1)
        found.append(replace(answer, reports=told))
    return [answer for answer in found if answer.client in clients]


@pytest.fixture(params=RULES.values(), ids=RULES.keys())
def rule(request: pytest.FixtureRequest) -> ServerRule:
    found: ServerRule = request.param()
    return found


def second_round(rule: ServerRule) -> ServerState:
    """Return the state after everybody answered once."""
    return rule.merge(begin(rule), replies(rule, begin(rule)))


def digest(state: ServerState) -> str:
    return weights.digest(weights.flatten(state.groups()))


def looks_like(found: Weights, model: Weights) -> bool:
    return found.keys() == model.keys() and all(
        found[n].shape == model[n].shape and found[n].dtype == model[n].dtype for n in model
    )


def test_before_the_first_round_every_client_starts_from_the_source_model(rule: ServerRule) -> None:
    state = begin(rule)
    for client in CLIENTS:
        assert weights.digest(rule.send(state, client)["server"]) == weights.digest(SOURCE)
        assert weights.digest(rule.deployed(state, client)) == weights.digest(SOURCE)


def test_the_merged_state_does_not_depend_on_the_order_of_the_answers(rule: ServerRule) -> None:
    found, state = set(), second_round(rule)
    for answers in permutations(replies(rule, state)):
        packages = {client: Package(1, 0.1, rule.send(state, client)) for client in CLIENTS}
        sound, failures = screen(answers, packages, rule.reports)
        assert not failures
        found.add(digest(rule.merge(state, sound)))
    assert len(found) == 1


def test_merging_leaves_state_and_replies_as_they_were_and_repeats(rule: ServerRule) -> None:
    state = second_round(rule)
    answers = replies(rule, state)
    before = digest(state), [weights.digest(answer.weights) for answer in answers]
    merged = [digest(rule.merge(state, answers)) for _ in range(2)]
    assert merged[0] == merged[1]
    assert (digest(state), [weights.digest(answer.weights) for answer in answers]) == before


def test_a_rule_that_trains_moves_the_models_of_those_who_answered(rule: ServerRule) -> None:
    state = second_round(rule)
    for client in CLIENTS:
        moved = weights.distance(rule.deployed(state, client), SOURCE) > 0
        assert moved == rule.trains


def test_models_keep_their_shape_and_stay_finite_over_rounds(rule: ServerRule) -> None:
    state = begin(rule)
    for who in (CLIENTS, CLIENTS[:1], CLIENTS[1:]):
        state = rule.merge(state, replies(rule, state, who))
        for client in (*CLIENTS, "never-sampled"):
            for model in (rule.deployed(state, client), *rule.send(state, client).values()):
                assert looks_like(model, SOURCE)
                assert weights.first_not_finite(model) is None


def test_counters_stay_whole_numbers_and_never_run_backwards(rule: ServerRule) -> None:
    state = second_round(rule)
    name = "backbone.1.num_batches_tracked"
    for answer in replies(rule, begin(rule)) if rule.trains else []:
        assert rule.deployed(state, answer.client)[name] >= answer.weights[name]
        assert rule.deployed(state, answer.client)[name].dtype == torch.int64


def test_the_state_survives_being_written(rule: ServerRule) -> None:
    state = second_round(rule)
    data = weights.to_bytes(weights.flatten(state.groups()))
    back = ServerState.of(weights.unflatten(weights.from_bytes(data, "state")))
    assert digest(back) == digest(state)
    for client in CLIENTS:
        assert weights.digest(rule.deployed(back, client)) == weights.digest(rule.deployed(state, client))
