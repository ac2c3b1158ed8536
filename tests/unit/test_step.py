"""A step computes what is asked, once, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedscal.client.step import Models, Step
from fedscal.core.types import Prediction, Sweep
from toys import prediction


class Counted:
    """A model that remembers the sizes of the batches that it saw, and adds a constant to them."""

    def __init__(self, constant: float = 0.0) -> None:
        self.sizes: list[int] = []
        self.constant = constant

    def __call__(self, images: Tensor) -> Prediction:
        self.sizes.append(len(images))
        return prediction(images + self.constant)


def build(joint: bool = False) -> tuple[Step, Counted, Counted, list[str]]:
    drawn: list[str] = []

    def view(name: str, value: float) -> Callable[[], Tensor]:
        def draw() -> Tensor:
            drawn.append(name)
            return torch.full((2, 3), value)

        return draw

    current, server = Counted(), Counted(10.0)
    once = prediction(torch.arange(15.0).view(5, 3))
    models = Models(current, server, None, once, list, joint)
    return Step(torch.tensor([4, 1]), view("weak", 1.0), view("strong", 2.0), models), current, server, drawn


def test_nothing_is_drawn_or_computed_before_it_is_asked_for() -> None:
    _, current, server, drawn = build()
    assert (drawn, current.sizes, server.sizes) == ([], [], [])


def test_each_pass_is_made_once_on_its_own_view() -> None:
    step, current, server, drawn = build()
    for _ in range(2):
        assert torch.unique(step.weak.logits).tolist() == [1]
        assert torch.unique(step.strong.logits).tolist() == [2]
        assert torch.unique(step.server.logits).tolist() == [11], "the server sees the client's weak view"
    assert (current.sizes, server.sizes, drawn) == ([2, 2], [2], ["weak", "strong"])


@pytest.mark.parametrize(("name", "passes"), [("strong", [1, 2]), ("mixed", [1, 1])])
def test_the_weak_view_is_passed_first_whatever_is_used_first(name: str, passes: list[int]) -> None:
    # The statistics of BatchNorm depend on the order of the passes.
    step, _, _, _ = build()
    seen: list[int] = []

    def current(images: Tensor) -> Prediction:
        seen.append(int(images[0, 0]))
        return prediction(images)

    step.models = replace(step.models, current=current)
    getattr(step, name)
    assert seen == passes
    _ = step.weak
    assert seen == passes


def test_a_sweep_runs_when_it_is_used_and_not_when_it_is_shown() -> None:
    runs: list[int] = []

    def run() -> Prediction:
        runs.append(1)
        return prediction([[0.0, 1.0]])

    other = prediction([[5.0, 0.0]])
    sweep = Sweep(run, {"teacher": other})
    assert repr(sweep) == "Sweep(done=False, others=['teacher'])"
    assert sweep.by("teacher") is other
    assert (runs, sweep.done) == ([], False)
    assert sweep.logits.tolist() == sweep.by("nobody").logits.tolist() == [[0.0, 1.0]]
    assert sweep.entropies.shape == (1,)
    assert (runs, sweep.done) == ([1], True)


def test_a_joint_pass_shows_both_views_at_once_and_parts_them_again() -> None:
    step, current, _, _ = build(joint=True)
    assert (torch.unique(step.weak.logits).tolist(), torch.unique(step.strong.features).tolist()) == (
        [1],
        [2],
    )
    assert step.weak.logits.shape == step.strong.logits.shape == (2, 3)
    assert current.sizes == [4]


def test_cached_server_predictions_are_those_of_the_batch() -> None:
    step, _, server, drawn = build()
    assert step.server_once.logits[:, 0].tolist() == [12, 3]
    assert (server.sizes, drawn) == ([], [])


def test_server_and_previous_models_carry_no_gradient() -> None:
    layer = torch.nn.Linear(3, 2)
    models = Models(
        prediction, lambda x: Prediction(x, layer(x)), lambda x: Prediction(x, layer(x)), None, list, False
    )
    step = Step(torch.arange(2), lambda: torch.ones(2, 3), lambda: torch.ones(2, 3), models)
    assert step.previous is not None
    assert not step.server.logits.requires_grad
    assert not step.previous.logits.requires_grad


def test_the_previous_model_may_be_missing_but_the_servers_may_not() -> None:
    step = Step(
        torch.arange(1),
        lambda: torch.ones(1, 2),
        lambda: torch.ones(1, 2),
        Models(prediction, None, None, None, list, False),
    )
    assert step.previous is None
    with pytest.raises(LookupError, match=r"Models\.server is not there; .*Need\.SERVER$"):
        _ = step.server
    with pytest.raises(LookupError, match=r"Models\.server_once is not there; .*Need\.SERVER_ONCE$"):
        _ = step.server_once


def test_prediction_rows_probabilities_and_entropies() -> None:
    # (1/2, 1/2) has entropy log 2 = 0.693147, (3/4, 1/4) has 0.562335.
    whole = prediction(torch.tensor([[1.0, 1.0], [3.0, 1.0]]).log())
    assert whole.entropies.tolist() == pytest.approx([0.693147, 0.562335], abs=1e-6)
    assert whole[torch.tensor([1])].probabilities.tolist() == [pytest.approx([0.75, 0.25])]
