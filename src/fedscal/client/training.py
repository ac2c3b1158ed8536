"""The only training loop: a client adapts the received model to its unlabelled images."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

from fedscal.client.descent import Descent
from fedscal.client.step import Models, Step
from fedscal.client.term import Need, Objective, State
from fedscal.core import weights
from fedscal.core.lazy import torch
from fedscal.core.rng import Streams
from fedscal.core.types import Images, Memory, Metrics, Package, Prediction, Reply, Sweep, Views, Weights
from fedscal.models.device import microbatched, oom_hint
from fedscal.models.network import Network, predict
from fedscal.models.statistics import SiteStatistics, load_at_site, predict_at_site

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class ClientData:
    """What a client trains on: unlabelled uint8 images (n, C, H, W), and their views."""

    images: Images
    views: Views


@dataclass(frozen=True)
class Training:
    """The client's optimiser: SGD with Nesterov momentum, made anew each round.

    Attributes:
        epochs: local epochs E.
        batch_size: images per batch B.
        joint: weak and strong view in one forward pass. None: only for networks without BatchNorm,
            where it changes nothing.
        label_view: the view that pseudo-labels and the threshold are taken from.
        micro_batch: images whose activations are held at once; 0: those of the whole batch.
        statistics: how clients take statistics of their own; None: the server's are everybody's.
    """

    epochs: int = 5
    batch_size: int = 64
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 1.0
    joint: bool | None = None
    label_view: Literal["evaluation", "weak"] = "evaluation"
    micro_batch: int = 0
    statistics: SiteStatistics | None = None

    @property
    def class_shares(self) -> Tensor | None:
        """The class shares (J,) that the client reckons with; None: all alike."""
        known = self.statistics and self.statistics.shares
        return known.expected.float() if known else None


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

    Args:
        package: what the server sent.
        memory: what the client kept of earlier rounds; empty at the first one.
        data: the client's images and their views.
        objective: the loss.
        training: the optimiser.
        streams: the client's random streams of this round.
        network: a network to compute with; its weights are overwritten. Everything else is left as it is.
    """
    started = time.perf_counter()
    local = _LocalRound(package, memory, data, objective, training, streams, network)
    with streams.for_layers(), oom_hint():
        received, choice = objective.start.begin(package.models, local.sweep)
        network.freeze_head(not objective.trains_head)
        epochs, states = local.train(local.models(received))
    final = weights.snapshot(network.tensors())
    # A site's own statistics do not leave it: those that were received go back.
    sent = weights.with_statistics(final, received) if training.statistics else final
    drift = weights.distance(sent, received)
    if broken := weights.first_not_finite(final):
        raise Diverged(f"tensor '{broken}' is not finite any more; lower lr")
    reply = Reply(
        client=streams.client,
        round=package.round,
        weights=sent,
        examples=len(data.images),
        epochs=epochs,
        seconds=time.perf_counter() - started,
        drift=drift,
        reports=({"start": choice} if choice else {}) | objective.reports(states),
    )
    return reply, {"previous": final} if Need.PREVIOUS in objective.needs else {}


@dataclass(frozen=True)
class _LocalRound:
    """What stays the same while a client trains for one round."""

    package: Package
    memory: Memory
    data: ClientData
    objective: Objective
    training: Training
    streams: Streams
    network: Network

    def sweep(self, model: Weights) -> Prediction:
        """Return a model's predictions of all of the client's images in evaluation view."""
        images, view = self.data.images, self.data.views.evaluate
        return predict_at_site(self.network, model, images, view, self.training.statistics)

    def models(self, received: Weights) -> Models:
        """Set up the models that the objective needs, and only those; the network holds ``received`` then."""
        needs, network = self.objective.needs, self.network
        optional = {"teacher": Need.TEACHER_ONCE, "source": Need.SOURCE_ONCE}
        others = {
            name: self.sweep(self.package.models[name])
            for name, need in optional.items()
            if need in needs and name in self.package.models
        }
        images, view = self.data.images, self.data.views.evaluate
        load_at_site(network, received, images, view, self.training.statistics)
        previous = self.memory.get("previous") if Need.PREVIOUS in needs else None
        joint = not network.norms if self.training.joint is None else self.training.joint
        return Models(
            # The first pass: the network still is the server's, so that no second model is needed.
            server_once=self._server_once() if Need.SERVER_ONCE in needs else None,
            current=microbatched(network, self.training.micro_batch),
            server=_frozen_copy(network) if Need.SERVER in needs else None,
            previous=_frozen_copy(network, previous) if previous is not None else None,
            pairs=cache(partial(_pairs, network, received)),
            joint=Need.STRONG in needs and joint,
            others=others,
            draws=self.streams("terms"),
        )

    def _server_once(self) -> Prediction:
        generator = self.streams("server")
        views = self.data.views
        return predict(self.network, self.data.images, lambda images: views.weak(images, generator))

    def train(self, models: Models) -> tuple[list[Metrics], list[State]]:
        """Train all local epochs; return their scalars, and the terms' states after the last batch."""
        training, data, network, objective = self.training, self.data, self.network, self.objective
        groups = network.parameter_groups(self.package.lr)
        descent = Descent.of(groups, training.clip, training.weight_decay, training.momentum)
        order, weak, strong = self.streams("order"), self.streams("weak"), self.streams("strong")
        view, shares = self._label_view(), training.class_shares
        epochs: list[Metrics] = []
        states: list[State] | None = None
        for _ in range(training.epochs):
            sweep = Sweep(lambda: predict(network, data.images, view), models.others, shares)
            states = objective.prepare(sweep, states)
            total = torch.zeros(())
            _train_mode(network, len(data.images))
            for indices in batches(len(data.images), training.batch_size, order):
                step = self._step(indices, models, weak, strong)
                loss, states = objective.loss(step, states)
                descent.step(loss)
                total += loss.detach() * len(indices)
            if not torch.isfinite(total):
                raise Diverged("the loss is not finite any more; lower lr")
            entropy = {"entropy": float(sweep.entropies.mean())} if sweep.done else {}
            epochs.append({"loss": float(total) / len(data.images), **entropy, **objective.readings(states)})
        return epochs, states or []

    def _label_view(self) -> Callable[[Tensor], Tensor]:
        views = self.data.views
        if self.training.label_view == "evaluation":
            return views.evaluate
        generator = self.streams("labels")
        return lambda images: views.weak(images, generator)

    def _step(self, indices: Tensor, models: Models, weak: torch.Generator, strong: torch.Generator) -> Step:
        images, views = self.data.images[indices].to(self.network.device), self.data.views
        return Step(indices, lambda: views.weak(images, weak), lambda: views.strong(images, strong), models)


def batches(count: int, size: int, generator: torch.Generator) -> list[Tensor]:
    """Cut a random order of ``count`` images into batches; a lone last image joins the batch before it."""
    order = torch.randperm(count, generator=generator)
    full = size * (batch_count(count, size) - 1)
    return [*torch.split(order[:full], size), order[full:]] if full else [order]


def batch_count(count: int, size: int) -> int:
    """Return how many batches ``count`` images make."""
    return max(1, math.ceil((count - 1) / size))


def _pairs(network: Network, received: Weights) -> list[tuple[nn.Parameter, Tensor]]:
    """Return every trainable parameter beside its value as received."""
    named = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    return [(parameter, received[name].to(network.device)) for name, parameter in named]


def _train_mode(network: Network, images: int) -> None:
    # To set the mode of every module takes a client of few images as long as its views.
    if not (network.training and all(norm.training for norm in network.norms)):
        network.train()
    if images == 1:
        network.freeze_statistics()


def _frozen_copy(network: Network, state: Weights | None = None) -> Network:
    """Return a copy of the network without gradient, with other weights if they are given."""
    twin = copy.deepcopy(network)
    if state is not None:
        twin.load_state_dict(state)
    return twin.eval().requires_grad_(False)
