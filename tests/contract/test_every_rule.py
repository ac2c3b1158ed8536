"""What every server rule named in METHODS must keep."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from fedscal import weights
from fedscal.methods import METHODS
from fedscal.server.rule import ServerRule, ServerState
from fedscal.server.screen import screen
from fedscal.types import Reply, Weights
from toys import reply

RULES = {row.rule.__name__: row.rule for row in METHODS.values()}
CLIENTS = ("a", "b", "c")


def make_model(seed: int, counter: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "layer.weight": torch.randn(3, 2, generator=generator) * 10.0**seed,
        "norm.running_var": torch.rand(3, generator=generator),
        "norm.num_batches_tracked": torch.tensor(counter),
    }


SOURCE = make_model(0)


def replies() -> list[Reply]:
    return [reply(c, make_model(i + 1, counter=10 - i), examples=i + 1) for i, c in enumerate(CLIENTS)]


@pytest.fixture(params=RULES.values(), ids=RULES.keys())
def rule(request: pytest.FixtureRequest) -> ServerRule:
    found: ServerRule = request.param()
    return found


def digest(state: ServerState) -> str:
    return weights.digest(weights.flatten(state.models))


def looks_like(found: Weights, model: Weights) -> bool:
    return found.keys() == model.keys() and all(
        found[n].shape == model[n].shape and found[n].dtype == model[n].dtype for n in model
    )


def test_before_the_first_round_every_client_starts_from_the_source_model(rule: ServerRule) -> None:
    state = rule.init(SOURCE)
    for client in CLIENTS:
        assert weights.digest(rule.send(state, client)["server"]) == weights.digest(SOURCE)
        assert weights.digest(rule.deployed(state, client)) == weights.digest(SOURCE)


def test_the_merged_state_does_not_depend_on_the_order_of_the_answers(rule: ServerRule) -> None:
    found = set()
    for answers in permutations(replies()):
        sound, failures = screen(answers, frozenset(CLIENTS), 1, SOURCE)
        assert not failures
        found.add(digest(rule.merge(rule.init(SOURCE), sound)))
    assert len(found) == 1


def test_merging_leaves_state_and_replies_as_they_were_and_repeats(rule: ServerRule) -> None:
    state, answers = rule.init(SOURCE), replies()
    before = digest(state), [weights.digest(answer.weights) for answer in answers]
    merged = [digest(rule.merge(state, answers)) for _ in range(2)]
    assert merged[0] == merged[1]
    assert (digest(state), [weights.digest(answer.weights) for answer in answers]) == before


def test_a_rule_that_trains_moves_the_models_of_those_who_answered(rule: ServerRule) -> None:
    state = rule.merge(rule.init(SOURCE), replies())
    for client in CLIENTS:
        moved = weights.distance(rule.deployed(state, client), SOURCE) > 0
        assert moved == rule.trains


def test_models_keep_their_shape_and_stay_finite_over_rounds(rule: ServerRule) -> None:
    state = rule.init(SOURCE)
    for answers in (replies(), replies()[:1], replies()[1:]):
        state = rule.merge(state, answers)
        for client in (*CLIENTS, "never-sampled"):
            for model in (rule.deployed(state, client), rule.send(state, client)["server"]):
                assert looks_like(model, SOURCE)
                assert weights.first_not_finite(model) is None


def test_counters_stay_whole_numbers_and_never_run_backwards(rule: ServerRule) -> None:
    state = rule.merge(rule.init(SOURCE), replies())
    name = "norm.num_batches_tracked"
    for answer in replies() if rule.trains else []:
        assert rule.deployed(state, answer.client)[name] >= answer.weights[name]
        assert rule.deployed(state, answer.client)[name].dtype == torch.int64


def test_the_state_survives_being_written(rule: ServerRule) -> None:
    state = rule.merge(rule.init(SOURCE), replies())
    data = weights.to_bytes(weights.flatten(state.models))
    back = ServerState(weights.unflatten(weights.from_bytes(data, "state")))
    assert digest(back) == digest(state)
    for client in CLIENTS:
        assert weights.digest(rule.deployed(back, client)) == weights.digest(rule.deployed(state, client))
