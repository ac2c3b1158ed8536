"""The only training loop: a client adapts the received model to its unlabelled images."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedscal import weights
from fedscal.data.benchmark import Views
from fedscal.models.network import Network, predict
from fedscal.objective.step import Models, Step
from fedscal.objective.term import Need, Objective
from fedscal.rng import Streams
from fedscal.types import Memory, Metrics, Package, Reply, Weights


@dataclass(frozen=True)
class ClientData:
    """What a client trains on: unlabelled uint8 images (n, C, H, W), and how they are viewed."""

    images: Tensor
    views: Views


@dataclass(frozen=True)
class Training:
    """The client's optimiser: SGD with Nesterov momentum, made anew each round.

    Attributes:
        epochs: local epochs E.
        batch_size: images a batch B.
        joint: weak and strong view in one forward pass. None: only for networks without BatchNorm,
            where it changes nothing.
    """

    epochs: int = 5
    batch_size: int = 64
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 1.0
    joint: bool | None = None


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
    received = package.models["server"]
    network.load_state_dict(received)
    network.freeze_head()
    with streams.for_layers():
        models = _models(network, received, memory, data, objective, training, streams)
        epochs = tuple(_train(network, models, data, objective, training, streams, package.lr))
    final = weights.snapshot(network.state_dict())
    if broken := weights.first_not_finite(final):
        raise Diverged(f"tensor '{broken}' is not finite any more; lower lr")
    kept = {"previous": final} if Need.PREVIOUS in objective.needs else {}
    seconds = time.perf_counter() - started
    reply = Reply(streams.client, package.round, final, len(data.images), epochs, seconds)
    return reply, kept


def _train(
    network: Network,
    models: Models,
    data: ClientData,
    objective: Objective,
    training: Training,
    streams: Streams,
    lr: float,
) -> Iterator[Metrics]:
    optimizer = torch.optim.SGD(
        network.parameter_groups(lr),
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        nesterov=True,
    )
    order, weak, strong = streams("order"), streams("weak"), streams("strong")
    parameters = [parameter for parameter, _ in models.pairs]
    states = None
    for _ in range(training.epochs):
        sweep = predict(network, data.images, data.views.evaluate)
        states = objective.prepare(sweep, states)
        total = torch.zeros(())
        _train_mode(network, len(data.images))
        for indices in batches(len(data.images), training.batch_size, order):
            step = _step(indices, data, models, weak, strong)
            loss, states = objective.loss(step, states)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, training.clip)
            optimizer.step()
            total += loss.detach() * len(indices)
        if not torch.isfinite(total):
            raise Diverged("the loss is not finite any more; lower lr")
        readings = objective.readings(states)
        yield {"loss": float(total) / len(data.images), "entropy": float(sweep.entropies.mean()), **readings}


def batches(count: int, size: int, generator: torch.Generator) -> list[Tensor]:
    """Cut a random order of ``count`` images into batches; a lone last image joins the batch before it."""
    parts = list(torch.split(torch.randperm(count, generator=generator), size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def _train_mode(network: Network, images: int) -> None:
    network.train()
    if images == 1:
        network.freeze_statistics()


def _step(
    indices: Tensor, data: ClientData, models: Models, weak: torch.Generator, strong: torch.Generator
) -> Step:
    images = data.images[indices]
    views = data.views
    return Step(indices, lambda: views.weak(images, weak), lambda: views.strong(images, strong), models)


def _models(
    network: Network,
    received: Weights,
    memory: Memory,
    data: ClientData,
    objective: Objective,
    training: Training,
    streams: Streams,
) -> Models:
    """Set up the models that the objective needs, and only those."""
    needs = objective.needs
    once = None
    if Need.SERVER_ONCE in needs:  # the network still is the server's: no second model is needed
        generator = streams("server")
        once = predict(network, data.images, lambda images: data.views.weak(images, generator))
    return Models(
        current=network,
        server=_frozen_copy(network, received) if Need.SERVER in needs else None,
        previous=_frozen_copy(network, memory["previous"])
        if Need.PREVIOUS in needs and "previous" in memory
        else None,
        server_once=once,
        pairs=[
            (parameter, received[name])
            for name, parameter in network.named_parameters()
            if parameter.requires_grad
        ],
        joint=Need.STRONG in needs and (not network.norms if training.joint is None else training.joint),
    )


def _frozen_copy(network: Network, state: Weights) -> Network:
    twin = copy.deepcopy(network)
    twin.load_state_dict(state)
    return twin.eval().requires_grad_(False)
