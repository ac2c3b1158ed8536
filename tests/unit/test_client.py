"""The training loop: batches, tiny clients, skipped passes, and what is left untouched."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedscal.client import training as module
from fedscal.client.step import Step
from fedscal.client.term import Objective, State
from fedscal.client.terms.shot import Shot
from fedscal.client.training import Diverged, Training, batches, local_update
from fedscal.core import weights
from fedscal.core.rng import Streams
from fedscal.core.types import Memory, Package, Reply
from fedscal.methods import build_objective
from fedscal.models.network import Network
from fedscal.runtime import service as site_module
from fedscal.runtime.service import ClientService
from toys import NoiseViews, client_data, tensor_of, tiny_network

TRAINING = Training(epochs=2, batch_size=4)


def update(
    method: str = "fedloa",
    images: int = 10,
    training: Training = TRAINING,
    network: Network | None = None,
    memory: Memory | None = None,
    lr: float = 0.05,
    objective: Objective | None = None,
    **hyper: Any,
) -> tuple[Reply, Memory]:
    network = network or tiny_network()
    package = Package(1, lr, {"server": weights.snapshot(network.state_dict())})
    objective = objective or build_objective(method, "shot", hyper)
    return local_update(
        package, memory or {}, client_data(images), objective, training, Streams(0, "a", 1), network
    )


@given(st.integers(1, 60), st.integers(2, 20), st.integers(0, 9))
def test_batches_hold_every_image_once_and_never_one_alone(count: int, size: int, seed: int) -> None:
    parts = batches(count, size, torch.Generator().manual_seed(seed))
    assert sorted(torch.cat(parts).tolist()) == list(range(count))
    sizes = [len(part) for part in parts]
    assert all(n == size for n in sizes[:-1])
    assert 2 <= sizes[-1] <= size + 1 or count == 1


@pytest.mark.parametrize(("count", "sizes"), [(9, [4, 5]), (8, [4, 4]), (10, [4, 4, 2]), (5, [5]), (1, [1])])
def test_a_lone_last_image_joins_the_batch_before_it(count: int, sizes: list[int]) -> None:
    assert [len(part) for part in batches(count, 4, torch.Generator())] == sizes


def test_the_order_is_new_in_every_epoch() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.cat(batches(30, 4, generator)).tolist() for _ in range(2))
    assert first != second


@pytest.mark.parametrize("method", ["fedloa", "fedprox", "fedmoon", "fedscal"])
@pytest.mark.parametrize("images", [1, 2, 3])
def test_clients_of_one_to_three_images_train_to_finite_weights(method: str, images: int) -> None:
    reply, _ = update(method, images)
    assert weights.first_not_finite(reply.weights) is None
    assert weights.distance(reply.weights, tiny_network().state_dict()) > 0
    assert all(torch.isfinite(torch.tensor(list(epoch.values()))).all() for epoch in reply.epochs)


@pytest.mark.parametrize("tau_init", [1.1, 2.0])
def test_above_a_threshold_that_no_confidence_reaches_fedscal_is_fedloa(tau_init: float) -> None:
    """By construction: both losses are 0. BatchNorm would see the strong views even so."""
    plain, _ = update(network=tiny_network(norm=False))
    aligned, _ = update("fedscal", network=tiny_network(norm=False), tau_init=tau_init)
    for name, weight in plain.weights.items():
        assert torch.allclose(aligned.weights[name], weight, atol=1e-6, rtol=0), name
    assert all(epoch["alignment.tau"] >= 1 for epoch in aligned.epochs)
    assert {epoch["alignment.share_local"] for epoch in aligned.epochs} == {0.0}
    kept, _ = update("fedscal", network=tiny_network(norm=False), tau_init=0.3)
    assert weights.distance(kept.weights, plain.weights) > 1e-3, "below it there is a difference to see"


@pytest.mark.parametrize(("images", "touched"), [(1, False), (2, True)])
def test_one_image_has_no_statistics_of_its_own(images: int, touched: bool) -> None:
    reply, _ = update(images=images)
    start = tiny_network().state_dict()
    moved = [
        name for name in start if "running_" in name and not torch.equal(start[name], reply.weights[name])
    ]
    assert bool(moved) == touched
    assert reply.weights["backbone.1.num_batches_tracked"].item() == (2 if touched else 0)


@pytest.mark.parametrize(
    ("method", "hyper", "passes"),
    [
        ("fedloa", {}, 1),
        ("fedprox", {}, 1),
        ("fedmoon", {}, 1),
        ("fedscal", {}, 2),
        ("fedscal", {"lambda_server": 0}, 2),
        ("fedscal", {"lambda_local": 0, "lambda_server": 0}, 1),
    ],
)
def test_the_strong_view_is_computed_only_if_something_needs_it(
    method: str, hyper: dict[str, Any], passes: int
) -> None:
    # 10 images in batches of 4 are 3 batches an epoch; BatchNorm counts the passes in training mode.
    reply, _ = update(method, **hyper)
    assert reply.weights["backbone.1.num_batches_tracked"].item() == 2 * 3 * passes


def test_a_joint_pass_counts_once() -> None:
    reply, _ = update("fedscal", training=dataclasses.replace(TRAINING, joint=True))
    assert reply.weights["backbone.1.num_batches_tracked"].item() == 2 * 3


def test_views_are_joined_by_themselves_only_without_batchnorm(monkeypatch: pytest.MonkeyPatch) -> None:
    joint: list[bool] = []

    def spy(*args: Any) -> Step:
        step = Step(*args)
        joint.append(step.models.joint)
        return step

    monkeypatch.setattr(module, "Step", spy)
    for norm, method in [(False, "fedscal"), (True, "fedscal"), (False, "fedloa")]:
        update(method, images=4, training=Training(1, 4), network=tiny_network(norm))
    assert joint == [True, False, False]


def test_joint_and_separate_passes_agree_without_batchnorm() -> None:
    found = [
        update(
            "fedscal", network=tiny_network(norm=False), training=dataclasses.replace(TRAINING, joint=joint)
        )[0]
        for joint in (True, False)
    ]
    for name, tensor in found[0].weights.items():
        torch.testing.assert_close(tensor, found[1].weights[name], atol=1e-6, rtol=1e-5)
    assert found[0].epochs[-1]["loss"] == pytest.approx(found[1].epochs[-1]["loss"], abs=1e-6)


def test_joint_and_separate_passes_differ_with_batchnorm() -> None:
    found = [
        update("fedscal", training=dataclasses.replace(TRAINING, joint=joint))[0].weights
        for joint in (True, False)
    ]
    assert weights.distance(*found) > 1e-4


def test_the_head_stays_and_the_rest_moves() -> None:
    reply, _ = update()
    start = tiny_network().state_dict()
    same = {name for name in start if torch.equal(start[name], reply.weights[name])}
    assert same == {"head.weight", "head.bias"}


def test_each_epoch_reports_its_loss_and_readings() -> None:
    reply, _ = update("fedscal")
    assert len(reply.epochs) == 2
    assert {"loss", "entropy", "alignment.tau", "alignment.gamma", "alignment.share_local"} <= set(
        reply.epochs[0]
    )
    assert (reply.client, reply.round, reply.examples) == ("a", 1, 10)
    assert reply.epochs[0]["alignment.seen"] == 10


class Sloped(Shot):
    """A loss of twice the sum of the logits' first column, whatever the data."""

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        return 2 * step.weak.logits[:, 0].sum(), state


def test_one_step_is_nesterov_sgd_with_decay_on_the_clipped_gradient() -> None:
    """One batch, one epoch: w - lr (1 + momentum) (g + decay w), with the gradient norm clipped to 1.

    In the first step the momentum buffer is the gradient itself, so Nesterov's step is g + 0.9 g.
    """
    network = tiny_network(norm=False, backbone_rate=0.1)
    start = weights.snapshot(network.state_dict())
    data = client_data(4)
    seen = NoiseViews().weak(
        data.images[batches(4, 4, Streams(0, "a", 1)("order"))[0]], Streams(0, "a", 1)("weak")
    )
    network.freeze_head()
    (2 * network(seen).logits[:, 0].sum()).backward()
    gradients = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
    norm = torch.stack([g.norm() for g in gradients.values()]).norm()
    assert norm > 1, "the clip must matter here"
    reply, _ = update(
        images=4, network=network, training=Training(1, 4), objective=Objective((Sloped(),)), lr=0.1
    )
    for name, gradient in gradients.items():
        rate = 0.01 if name.startswith("backbone") else 0.1
        expected = start[name] - rate * 1.9 * (gradient / norm + 5e-4 * start[name])
        torch.testing.assert_close(reply.weights[name], expected, atol=1e-6, rtol=1e-4)


def test_inputs_are_left_untouched() -> None:
    network, data = tiny_network(seed=1), client_data(6)
    package = Package(3, 0.05, {"server": weights.snapshot(tiny_network(seed=2).state_dict())})
    memory = {"previous": weights.snapshot(tiny_network(seed=3).state_dict())}
    before = [weights.digest(package.models["server"]), weights.digest(memory["previous"])]
    images = tensor_of(data.images).clone()
    objective = build_objective("fedmoon", "shot", {})
    _, kept = local_update(package, memory, data, objective, TRAINING, Streams(0, "a", 3), network)
    assert [weights.digest(package.models["server"]), weights.digest(memory["previous"])] == before
    assert torch.equal(tensor_of(data.images), images)
    assert kept["previous"] is not memory["previous"]


def test_training_starts_at_the_received_model_whatever_the_network_held() -> None:
    package = Package(1, 0.05, {"server": weights.snapshot(tiny_network(seed=2).state_dict())})
    objective = build_objective("fedscal", "shot", {})
    digests = {
        weights.digest(
            local_update(
                package, {}, client_data(6), objective, TRAINING, Streams(0, "a", 1), tiny_network(seed=seed)
            )[0].weights
        )
        for seed in (5, 6)
    }
    assert len(digests) == 1


def test_only_a_term_that_needs_it_makes_the_client_remember_its_model() -> None:
    assert update("fedscal")[1] == {}
    reply, kept = update("fedmoon")
    assert kept.keys() == {"previous"}
    assert weights.digest(kept["previous"]) == weights.digest(reply.weights)


def test_the_remembered_model_moves_fedmoon() -> None:
    memory = {"previous": weights.snapshot(tiny_network(seed=3).state_dict())}
    first, again = update("fedmoon")[0], update("fedmoon", memory=memory)[0]
    assert weights.digest(first.weights) == weights.digest(update("fedloa")[0].weights)
    assert weights.digest(first.weights) != weights.digest(again.weights)


def test_another_client_or_round_draws_other_views() -> None:
    network = tiny_network()
    package = Package(1, 0.05, {"server": weights.snapshot(network.state_dict())})
    objective = build_objective("fedloa", "shot", {})
    streams = [Streams(0, "a", 1), Streams(0, "b", 1), Streams(0, "a", 2), Streams(1, "a", 1)]
    digests = {
        weights.digest(
            local_update(package, {}, client_data(6), objective, TRAINING, one, network)[0].weights
        )
        for one in streams
    }
    assert len(digests) == len(streams)


def test_a_loss_that_is_not_finite_ends_the_update() -> None:
    class Nan(Shot):
        def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
            return step.weak.logits.sum() * float("nan"), state

    with pytest.raises(Diverged, match="lower lr"):
        update(objective=Objective((Nan(),)))


def tensors_in(value: object, seen: set[int]) -> Iterator[Tensor]:
    """Yield every tensor that a value leads to by items, fields, bound objects and closures."""
    if id(value) in seen or isinstance(value, type | ModuleType):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    parts = list(value.values()) if isinstance(value, Mapping) else []
    parts += value if isinstance(value, list | tuple | set | frozenset) else []
    parts += vars(value).values() if hasattr(value, "__dict__") else []
    parts += [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    parts += [getattr(value, "__self__", None)]
    for part in parts:
        yield from tensors_in(part, seen)


def test_a_site_hands_no_label_to_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a label were called: no tensor that training can reach holds the labels' number."""
    mark = 424_242
    handed: list[object] = []

    def heard(*args: Any) -> tuple[Reply, Memory]:
        handed.append(args)
        return local_update(*args)

    def marked(value: object) -> bool:
        return any((tensor.double() == mark).any() for tensor in tensors_in(value, set()))

    monkeypatch.setattr(site_module, "local_update", heard)
    network, labels = tiny_network(), {"a": torch.full((10,), mark)}
    objective = build_objective("fedscal", "shot", {})
    site = ClientService({"a": client_data(10)}, labels, network, objective, TRAINING, seed=0)
    replied = site.train("a", Package(1, 0.05, {"server": weights.snapshot(network.state_dict())}), {})
    assert len(list(tensors_in(handed, set()))) > len(network.state_dict()), "images and models are found"
    assert marked(site), "the labels of the site would be found"
    assert not marked(handed)
    assert not marked(replied)


def test_weights_that_are_not_finite_never_leave_the_client() -> None:
    # One batch: the loss is finite, the step that follows it is not, and no later loss would tell.
    network = tiny_network()
    with torch.no_grad():
        network.bottleneck.bias.fill_(3e38)
    with pytest.raises(Diverged, match="not finite any more"):
        update(network=network, training=Training(1, 64), objective=Objective((Shot(beta=0),)), lr=3e38)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_tensor_of_a_reply_can_hide_what_is_not_finite(value: float) -> None:
    model = tiny_network().state_dict()
    for name, tensor in model.items():
        if tensor.is_floating_point():
            broken = weights.snapshot({**model, name: torch.full_like(tensor, value)})
            assert weights.first_not_finite(broken) == name
