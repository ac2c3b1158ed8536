"""The job that every framework is given, so that only what it adds differs.

A client has five images of 28 x 28 pixels and makes one step on them: a weak view, one pass forward and back
through the small convnet with the entropy of its predictions as the loss, its gradient cut to length 1, SGD
with Nesterov's momentum. The classifier is frozen. Nobody evaluates. The server averages.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.tree import cpu_seconds
from fedscal.data.views import AugmentedViews
from fedscal.losses import prediction_entropy
from fedscal.models.network import Network
from fedscal.models.registry import build_network

IMAGES, SHAPE, CLASSES = 5, (1, 28, 28), 10
ROUNDS = 6
"""The first one is not timed: it warms up what a process needs once."""
LR, MOMENTUM, DECAY, CLIP = 0.01, 0.9, 5e-4, 1.0
VIEWS = AugmentedViews(beyond=None)


@dataclass(frozen=True)
class Clock:
    """Seconds on the wall since this module was imported, and of computing, in all processes of the job."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Clock:
        """Look at it."""
        return cls(time.perf_counter() - _STARTED, cpu_seconds(os.getpid()))


_STARTED = time.perf_counter()


def tell(began: Clock, ended: Clock) -> None:
    """Print what the process that started this one wants to know: when the timed rounds began and ended."""
    print(json.dumps({"began": asdict(began), "ended": asdict(ended)}), flush=True)


def clients() -> int:
    """Return how many clients this process was started for; it computes with one thread."""
    torch.set_num_threads(1)
    return int(sys.argv[1])


def network() -> Network:
    """Return the network at its start."""
    made = build_network("convnet", SHAPE, CLASSES)
    made.freeze_head()
    return made.train()


def images_of(client: int) -> Tensor:
    """Return a client's uint8 images; drawn when they are asked for, so that nobody has to keep them."""
    draws = torch.Generator().manual_seed(client)
    return torch.randint(0, 256, (IMAGES, *SHAPE), dtype=torch.uint8, generator=draws)


def loss(model: Network, images: Tensor, draws: torch.Generator) -> Tensor:
    """Return the entropy of the predictions of weak views."""
    return prediction_entropy(model(VIEWS.weak(images, draws)).logits)


def optimizer(parameters: Iterable[Any], lr: float = LR) -> torch.optim.SGD:
    """Return what a client makes its step by."""
    return torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True)


def step(model: Network, images: Tensor, draws: torch.Generator) -> None:
    """Train a client: one epoch, which is one batch."""
    descent = optimizer(model.parameter_groups(LR))
    loss(model, images, draws).backward()  # type: ignore[no-untyped-call]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    torch.nn.utils.clip_grad_norm_(parameters, CLIP)
    descent.step()
