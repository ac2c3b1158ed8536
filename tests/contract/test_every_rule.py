"""What every server rule named in METHODS must keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import torch

from fedscal.core import weights
from fedscal.core.options import options_of
from fedscal.core.types import Package, Reply, Weights
from fedscal.experiment.checkpoint import Checkpoints
from fedscal.experiment.records import MergedRound
from fedscal.experiment.spec import RunSpec
from fedscal.methods import METHODS, build_rule
from fedscal.server.rule import Briefing, ServerRule, ServerState
from fedscal.server.rules.average import Average
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


@pytest.fixture(params=list(RULES.values()), ids=list(RULES))
def rule(request: pytest.FixtureRequest) -> ServerRule:
    found: ServerRule = request.param()
    return found


def second_round(rule: ServerRule) -> ServerState:
    """Return the state after everybody answered once."""
    return rule.merge(begin(rule), replies(rule, begin(rule)))


def digest(state: ServerState) -> str:
    return weights.digest_of({**state.groups(), **state.own})


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


AVERAGING = [name for name, row in METHODS.items() if issubclass(row.rule, Average)]


@pytest.mark.parametrize("optimizer", options_of(Average)["server_optimizer"].choices)
@pytest.mark.parametrize("aggregation", options_of(Average)["aggregation"].choices)
@pytest.mark.parametrize("method", AVERAGING)
def test_every_averaging_method_takes_every_aggregation_and_optimiser(
    method: str, aggregation: str, optimizer: str
) -> None:
    keys = {"aggregation": aggregation, "server_optimizer": optimizer, "norm_limit": 1e9}
    plain, spec = (RunSpec.make(source="mnist", method=method, **given) for given in ({}, keys))
    rule = build_rule(method, spec.hyper)
    answers = [
        reply(f"c{number}", make_model(number, counter=number), examples=number + 1) for number in range(5)
    ]
    assert len(answers) >= rule.least_replies()
    state = begin(rule)
    for _ in range(2):
        assert rule.suspects(state, answers) == {}
        state = rule.merge(state, answers)
        assert looks_like(state.models["server"], SOURCE)
        assert weights.first_not_finite(state.models["server"]) is None
    back = spec.replace(aggregation="uniform", server_optimizer="none", norm_limit=0)
    assert spec.digest() != back.digest() == plain.digest()


def test_what_the_server_keeps_about_a_client_is_read_from_old_checkpoints() -> None:
    """Before there was ``per_client``, it was among the notes, as ``kind/client``."""
    notes = {"cluster/a": torch.tensor(1), "blend/a": torch.ones(2), "cluster/b/c": torch.tensor(0)}
    rest = {"layer/backbone.0.weight": torch.tensor(True), "centre/000": torch.ones(3)}
    state = ServerState.of({"cluster-000": SOURCE, "notes": {**notes, **rest}})
    assert {client: set(kept) for client, kept in state.per_client.items()} == {
        "a": {"cluster", "blend"},
        "b/c": {"cluster"},
    }
    assert state.notes.keys() == rest.keys()
    assert state.models.keys() == {"cluster-000"}
    assert list(state.facts()) == ["blend/a", "cluster/a", "cluster/b/c"]
    assert digest(ServerState.of(state.groups())) == digest(state)


def test_the_state_survives_being_written(rule: ServerRule, tmp_path: Path) -> None:
    state = second_round(rule)
    Checkpoints(tmp_path).save(MergedRound(round=2), state)
    found = Checkpoints(tmp_path).latest()
    assert found
    back = found.state
    assert digest(back) == digest(state)
    for client in CLIENTS:
        assert weights.digest(rule.deployed(back, client)) == weights.digest(rule.deployed(state, client))
