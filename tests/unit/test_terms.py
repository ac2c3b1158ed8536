"""The terms on single batches: SHOT, alignment, proximal and contrastive, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

from fedscal.client.step import Models, Step
from fedscal.client.term import Need, Objective, State, Term
from fedscal.client.terms.alignment import Alignment
from fedscal.client.terms.contrastive import Contrastive
from fedscal.client.terms.proximal import Proximal
from fedscal.client.terms.shot import Shot
from fedscal.core.options import option
from toys import backward, fixed_step, prediction, sure, sweep, tensor_of

STATE = {
    "tau": torch.tensor(0.8),
    "seen": torch.tensor(0.0),
    "share_local": torch.tensor(0.0),
    "share_server": torch.tensor(0.0),
}


# SHOT


def test_shot_is_entropy_plus_diversity_plus_beta_times_cross_entropy() -> None:
    # Predictions (1/2, 1/2), (3/4, 1/4): L_ent 0.627741, L_div -0.661563 (see test_functional). Labels
    # 1 and 0: cross-entropy (log 2 - log 3/4) / 2 = (0.693147 + 0.287682) / 2 = 0.490415.
    labels = {"pseudo_labels": torch.tensor([9, 0, 9, 1])}
    step = fixed_step(sure(0.5, 0.75), indices=[3, 1])
    value, state = Shot(beta=0.5).loss(step, labels)
    assert value.item() == pytest.approx(0.627741 - 0.661563 + 0.5 * 0.490415, abs=1e-5)
    assert state is labels


def test_shot_labels_the_whole_data_from_the_sweep() -> None:
    # The refinement example of test_functional: the second label moves from 0 to 1.
    angles = torch.tensor([0.0, 60, 80, 90]).deg2rad()
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    whole = sweep(sure(0.9, 0.8, 0.9, 0.1), features)
    assert Shot().prepare(whole, None)["pseudo_labels"].tolist() == [0, 1, 1, 1]


# Alignment: the strong view is predicted as (3/4, 1/4), so a kept image costs -log 3/4 = 0.287682 if its
# label is 0 and -log 1/4 = 1.386294 if it is 1.

RIGHT, WRONG = 0.287682, 1.386294


@pytest.mark.parametrize(
    ("local", "server", "expected"),
    [
        (1.0, 0.0, RIGHT),
        (0.0, 1.0, WRONG),
        (1.0, 1.0, RIGHT + WRONG),
        (3.0, 0.5, 3 * RIGHT + 0.5 * WRONG),
        (0.0, 0.0, 0.0),
    ],
    ids=["client only", "server only", "both", "weighted", "none"],
)
@pytest.mark.parametrize("labels", ["cached", "recomputed"])
def test_alignment_adds_its_two_parts(
    local: float, server: float, expected: float, labels: Literal["cached", "recomputed"]
) -> None:
    # The client is sure of class 0 for the first image, the server of class 1 for the second.
    teacher = prediction(torch.cat([sure(0.6), sure(0.95, right=1)]))
    once, every = (teacher, None) if labels == "cached" else (None, teacher)
    step = fixed_step(sure(0.9, 0.7), sure(0.75, 0.75), server=every, once=once)
    term = Alignment(lambda_local=local, lambda_server=server, server_labels=labels)
    value, state = term.loss(step, STATE)
    assert value.item() == pytest.approx(expected, abs=1e-5)
    assert state["share_local"].item() == (0.5 if local else 0)
    assert state["share_server"].item() == (0.5 if server else 0)


def test_the_bounded_alignment_uses_the_double_softmax() -> None:
    step = fixed_step(sure(0.9), sure(0.75))
    value, _ = Alignment(lambda_server=0, alignment_loss="bounded").loss(step, STATE)
    assert value.item() == pytest.approx(math.log(1 + math.exp(-0.5)), abs=1e-6)


def test_a_confidence_equal_to_the_threshold_is_not_kept() -> None:
    weak = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    exactly_half = STATE | {"tau": torch.tensor(0.5, dtype=torch.float64)}
    value, state = Alignment(lambda_server=0).loss(fixed_step(weak, sure(0.75, 0.75)), exactly_half)
    assert state["share_local"].item() == 0.5
    assert value.item() == pytest.approx(WRONG, abs=1e-5)


def test_no_gradient_reaches_the_weak_prediction() -> None:
    weak, strong = sure(0.95).requires_grad_(), sure(0.75).requires_grad_()
    value, _ = Alignment(lambda_server=0).loss(fixed_step(weak, strong), STATE)
    gradients: Sequence[Tensor | None] = torch.autograd.grad(value, [weak, strong], allow_unused=True)
    assert gradients[0] is None
    # d/dz of -log q_0 is q - (1, 0) = (-1/4, 1/4).
    assert tensor_of(gradients[1]).tolist() == [pytest.approx([-0.25, 0.25])]


def test_cached_server_labels_belong_to_the_images_of_the_batch() -> None:
    # Rows 2 and 0 of the client's data: the server is sure of class 1 for row 2, unsure of row 0.
    once = prediction(torch.cat([sure(0.6), sure(0.99), sure(0.99, right=1)]))
    step = fixed_step(sure(0.5, 0.5), sure(0.75, 0.5), once=once, indices=[2, 0])
    value, _ = Alignment(lambda_local=0).loss(step, STATE)
    assert value.item() == pytest.approx(WRONG, abs=1e-5)


def test_shares_are_running_means_over_all_images_of_the_epoch() -> None:
    # Kept: 1 of 1, then 1 of 3, then 0 of 2: the share is 1, then 2/4, then 2/6.
    term, state, shares = Alignment(lambda_server=0), dict(STATE), []
    for confidences in [(0.9,), (0.9, 0.6, 0.6), (0.6, 0.6)]:
        step = fixed_step(sure(*confidences), sure(*confidences))
        _, state = term.loss(step, state)
        shares.append(state["share_local"].item())
    assert shares == pytest.approx([1, 1 / 2, 1 / 3])
    assert STATE["seen"].item() == 0, "the state that went in is left as it was"


@pytest.mark.parametrize(("adaptive", "shift"), [(True, 0.15), (False, 0.0)])
def test_the_threshold_follows_the_entropies_only_if_adaptive(adaptive: bool, shift: float) -> None:
    # Three sure predictions and one even: the mean entropy lies over the median, gamma > 0.15.
    state = Alignment(tau_init=0.8, adaptive=adaptive).prepare(sweep(sure(0.99, 0.99, 0.99, 0.5)), None)
    assert state["tau"].item() == pytest.approx(0.8 + shift)
    assert state["gamma"].item() > 0.15
    assert state["share_local"].item() == state["seen"].item() == 0


def test_a_small_skewness_moves_the_threshold_unclipped() -> None:
    whole = sweep(sure(0.9, 0.8, 0.72, 0.6))
    state = Alignment(tau_init=0.5, gamma_low=-1, gamma_high=1).prepare(whole, None)
    entropies = sorted(-p * math.log(p) - (1 - p) * math.log(1 - p) for p in (0.9, 0.8, 0.72, 0.6))
    mean = sum(entropies) / 4
    deviation = math.sqrt(sum((h - mean) ** 2 for h in entropies) / 4)
    gamma = 3 * (mean - (entropies[1] + entropies[2]) / 2) / deviation
    assert 0.01 < abs(gamma) < 1
    assert state["tau"].item() == pytest.approx(0.5 + gamma, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({}, {Need.STRONG, Need.SERVER_ONCE}),
        ({"server_labels": "recomputed"}, {Need.STRONG, Need.SERVER}),
        ({"lambda_server": 0.0}, {Need.STRONG}),
    ],
)
def test_alignment_needs_what_its_parts_use(options: dict[str, Any], needs: set[Need]) -> None:
    assert Alignment(**options).needs == needs


# Proximal


def step_with_pairs(now: list[float], received: list[float]) -> tuple[Step, nn.Parameter]:
    parameter = nn.Parameter(torch.tensor(now))
    pairs = [(parameter, torch.tensor(received))]
    models = Models(lambda x: prediction(x), None, None, None, lambda: pairs, joint=False)
    return Step(torch.arange(1), lambda: torch.zeros(1), lambda: torch.zeros(1), models), parameter


def test_proximal_is_half_mu_times_the_squared_norm_with_gradient_mu_times_the_difference() -> None:
    # w - w_r = (3, -4): the squared norm is 25, mu/2 of it 2.5 for mu = 0.2, the gradient (0.6, -0.8).
    step, parameter = step_with_pairs([4.0, -3.0], [1.0, 1.0])
    value, _ = Proximal(mu=0.2).loss(step, {})
    backward(value)
    assert value.item() == pytest.approx(2.5)
    assert tensor_of(parameter.grad).tolist() == pytest.approx([0.6, -0.8])


def test_proximal_starts_at_zero_with_a_zero_gradient() -> None:
    step, parameter = step_with_pairs([1.0, 2.0], [1.0, 2.0])
    value, _ = Proximal().loss(step, {})
    backward(value)
    assert value.item() == 0
    assert tensor_of(parameter.grad).tolist() == [0, 0]


# Contrastive


def test_contrastive_pulls_to_the_server_and_pushes_from_the_previous_model() -> None:
    # s+ = 1 and s- = -1 with T = 1/2: mu log(1 + e^-4).
    features = torch.tensor([[1.0, 0.0]])
    step = fixed_step(features, server=prediction(features), previous=prediction(-features))
    value, _ = Contrastive(mu=2.0).loss(step, {})
    assert value.item() == pytest.approx(2 * math.log(1 + math.exp(-4)), abs=1e-6)


def test_contrastive_is_zero_at_the_first_participation() -> None:
    features = torch.tensor([[1.0, 0.0]], requires_grad=True)
    value, _ = Contrastive().loss(fixed_step(features, server=prediction([[0.0, 1.0]])), {})
    assert value.item() == 0


# Objective


@dataclass(frozen=True)
class Smallest(Term):
    """What a term must have, and nothing more."""

    name: ClassVar[str] = "smallest"
    nu: float = option(0.5, "weight of nothing", low=0, weight=True)
    other: float = option(0.0, "another number", low=0)

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        return torch.tensor(self.nu), state


def test_a_term_has_defaults_for_all_but_its_name_and_its_loss() -> None:
    term = Smallest()
    assert (term.needs, term.scalars, term.report({})) == (frozenset(), (), {})
    assert term.prepare(sweep([[0.0, 1.0]]), None) == {}
    assert not term.null
    assert Smallest(nu=0.0, other=3.0).null, "a term whose weights are all 0"
    assert not Shot(beta=0.0).null, "an adaptation stays"


def test_an_objective_is_the_sum_of_its_active_terms() -> None:
    step, _ = step_with_pairs([4.0, -3.0], [1.0, 1.0])
    objective = Objective((Proximal(mu=0.2), Alignment(lambda_local=0, lambda_server=0), Proximal(mu=0.4)))
    value, states = objective.loss(step, objective.prepare(sweep([[0.0, 1.0]]), None))
    assert len(states) == len(objective.active) == 2
    assert value.item() == pytest.approx(2.5 + 5.0)
    assert objective.needs == frozenset()


def test_readings_are_the_scalars_of_the_terms_by_name() -> None:
    objective = Objective((Shot(), Alignment(tau_init=0.7, adaptive=False)))
    states = objective.prepare(sweep(sure(0.9, 0.6)), None)
    readings = objective.readings(states)
    assert readings["alignment.tau"] == pytest.approx(0.7)
    assert not any(name.startswith("shot.") for name in readings), "pseudo-labels are no scalar"
