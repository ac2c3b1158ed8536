"""The only training loop: a client adapts the received model to its unlabelled images."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch.nn import Parameter

from fedscal.client.step import Models, Step
from fedscal.client.term import Need, Objective, State
from fedscal.core import weights
from fedscal.core.lazy import torch
from fedscal.core.rng import Streams
from fedscal.core.types import Images, Memory, Metrics, Package, Prediction, Reply, Sweep, Views, Weights
from fedscal.models.device import device_memory, in_pieces
from fedscal.models.network import Network, predict

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ClientData:
    """What a client trains on: unlabelled uint8 images (n, C, H, W), and how they are viewed."""

    images: Images
    views: Views


@dataclass(frozen=True)
class Training:
    """The client's optimiser: SGD with Nesterov momentum, made anew each round.

    Attributes:
        epochs: local epochs E.
        batch_size: images a batch B.
        joint: weak and strong view in one forward pass. None: only for networks without BatchNorm,
            where it changes nothing.
        label_view: the view that pseudo-labels and the threshold are taken from.
        micro_batch: images whose activations are held at once; 0: those of the whole batch.
    """

    epochs: int = 5
    batch_size: int = 64
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 1.0
    joint: bool | None = None
    label_view: Literal["evaluation", "weak"] = "evaluation"
    micro_batch: int = 0


class Diverged(ArithmeticError):
    """The loss or the weights are no longer finite numbers."""


def local_update(
    package: Package,
    memory: Memory,
    data: ClientData,
    objective: Objective,
    training: Training,
    streams: Streams,
    network: Network,
) -> tuple[Reply, Memory]:
    """Train E local epochs from the received model; return the reply and the client's next memory.

    ``network`` is the workbench: its weights are overwritten. Everything else is left untouched.
    """
    started = time.perf_counter()
    with streams.for_layers(), device_memory():
        received, told = objective.start.begin(package.models, lambda model: _sweep(network, model, data))
        network.freeze_head()
        models = _models(network, received, package, memory, data, objective, training, streams)
        epochs, states = _train(network, models, data, objective, training, streams, package.lr)
    final = weights.snapshot(network.state_dict())
    if broken := weights.first_not_finite(final):
        raise Diverged(f"tensor '{broken}' is not finite any more; lower lr")
    kept = {"previous": final} if Need.PREVIOUS in objective.needs else {}
    reply = Reply(
        client=streams.client,
        round=package.round,
        weights=final,
        examples=len(data.images),
        epochs=epochs,
        seconds=time.perf_counter() - started,
        drift=weights.distance(final, received),
        reports=({"start": told} if told else {}) | objective.reports(states),
    )
    return reply, kept


def _train(
    network: Network,
    models: Models,
    data: ClientData,
    objective: Objective,
    training: Training,
    streams: Streams,
    lr: float,
) -> tuple[list[Metrics], list[State]]:
    optimizer = torch.optim.SGD(
        network.parameter_groups(lr),
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        nesterov=True,
    )
    order, weak, strong = streams("order"), streams("weak"), streams("strong")
    view = _label_view(data.views, training, streams)
    parameters = [parameter for parameter, _ in models.pairs]
    epochs: list[Metrics] = []
    states: list[State] | None = None
    for _ in range(training.epochs):
        sweep = Sweep(lambda: predict(network, data.images, view), models.others)
        states = objective.prepare(sweep, states)
        total = torch.zeros(())
        _train_mode(network, len(data.images))
        for indices in batches(len(data.images), training.batch_size, order):
            step = _step(indices, data, network.device, models, weak, strong)
            loss, states = objective.loss(step, states)
            _descend(optimizer, loss, parameters, training.clip)
            total += loss.detach() * len(indices)
        if not torch.isfinite(total):
            raise Diverged("the loss is not finite any more; lower lr")
        entropy = {"entropy": float(sweep.entropies.mean())} if sweep.made else {}
        epochs.append({"loss": float(total) / len(data.images), **entropy, **objective.readings(states)})
    return epochs, states or []


def _descend(
    optimizer: torch.optim.Optimizer, loss: Tensor, parameters: list[Parameter], clip: float
) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()


def _sweep(network: Network, model: Weights, data: ClientData) -> Prediction:
    """Return what a model says of all of the client's images in evaluation view."""
    network.load_state_dict(model)
    return predict(network, data.images, data.views.evaluate)


def _label_view(views: Views, training: Training, streams: Streams) -> Callable[[Tensor], Tensor]:
    if training.label_view == "evaluation":
        return views.evaluate
    generator = streams("labels")
    return lambda images: views.weak(images, generator)


def batches(count: int, size: int, generator: torch.Generator) -> list[Tensor]:
    """Cut a random order of ``count`` images into batches; a lone last image joins the batch before it."""
    order = torch.randperm(count, generator=generator)
    full = size * (batch_count(count, size) - 1)
    return [*torch.split(order[:full], size), order[full:]] if full else [order]


def batch_count(count: int, size: int) -> int:
    """Return into how many batches ``count`` images are cut."""
    return max(1, math.ceil((count - 1) / size))


def _train_mode(network: Network, images: int) -> None:
    network.train()
    if images == 1:
        network.freeze_statistics()


def _step(
    indices: Tensor,
    data: ClientData,
    device: torch.device,
    models: Models,
    weak: torch.Generator,
    strong: torch.Generator,
) -> Step:
    images = data.images[indices].to(device)
    views = data.views
    return Step(indices, lambda: views.weak(images, weak), lambda: views.strong(images, strong), models)


def _models(
    network: Network,
    received: Weights,
    package: Package,
    memory: Memory,
    data: ClientData,
    objective: Objective,
    training: Training,
    streams: Streams,
) -> Models:
    """Set up the models that the objective needs, and only those."""
    needs = objective.needs
    asked = {"teacher": Need.TEACHER_ONCE, "source": Need.SOURCE_ONCE}
    others = {
        name: _sweep(network, package.models[name], data)
        for name, need in asked.items()
        if need in needs and name in package.models
    }
    network.load_state_dict(received)
    once = None
    if Need.SERVER_ONCE in needs:  # the network still is the server's: no second model is needed
        generator = streams("server")
        once = predict(network, data.images, lambda images: data.views.weak(images, generator))
    return Models(
        current=in_pieces(network, training.micro_batch),
        server=_frozen_copy(network, received) if Need.SERVER in needs else None,
        previous=_frozen_copy(network, memory["previous"])
        if Need.PREVIOUS in needs and "previous" in memory
        else None,
        server_once=once,
        pairs=[
            (parameter, received[name].to(network.device))
            for name, parameter in network.named_parameters()
            if parameter.requires_grad
        ],
        joint=Need.STRONG in needs and (not network.norms if training.joint is None else training.joint),
        others=others,
        draws=streams("terms"),
    )


def _frozen_copy(network: Network, state: Weights) -> Network:
    twin = copy.deepcopy(network)
    twin.load_state_dict(state)
    return twin.eval().requires_grad_(False)
