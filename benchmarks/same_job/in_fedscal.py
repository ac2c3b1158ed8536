"""The job in this package, as an adaptation of FedLoA: ``python -m benchmarks.same_job.in_fedscal CLIENTS``.

The round loop and the local driver are those of a run, with the spool of its replies on disk.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from benchmarks.same_job import job
from fedscal import RunSpec, losses
from fedscal.core.weights import snapshot
from fedscal.data.tensors import keep_tensors
from fedscal.experiment.checkpoint import Checkpoints
from fedscal.experiment.experiment import Experiment
from fedscal.extend import Adaptation, State, Step, register_adaptation
from fedscal.models.network import Network
from fedscal.runtime.local import LocalDriver
from fedscal.server.rounds import federate
from fedscal.server.rule import Briefing


@dataclass(frozen=True)
class Entropy(Adaptation):
    """The entropy of the predictions of the weak view."""

    name: ClassVar[str] = "entropy"
    title: ClassVar[str] = "entropy"

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the entropy."""
        return losses.prediction_entropy(step.weak.logits), state


register_adaptation("entropy", Entropy)


def experiment(clients: int) -> Experiment:
    """Return a run in which all clients take part in every round."""
    sites = {f"site-{number:05}": job.images_of(number) for number in range(clients)}
    source = torch.zeros(job.CLASSES, *job.SHAPE, dtype=torch.uint8), torch.arange(job.CLASSES)
    data = keep_tensors({"source": source, **sites}, [str(label) for label in range(job.CLASSES)])
    spec = RunSpec.make(
        benchmark=data,
        source="source",
        method="fedloa",
        adaptation="entropy",
        clients_per_domain=1,
        participation=1,
        rounds=job.ROUNDS,
        local_epochs=1,
        lr=job.LR,
        workers=1,
    )
    parts = Experiment.build(spec)
    return parts.with_clients(parts.clients_of_data())


@contextmanager
def counted(network: Network) -> Iterator[Counter[bool]]:
    """Count the images that go through the network meanwhile, apart those with a gradient."""
    seen: Counter[bool] = Counter()

    def count(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen[torch.is_grad_enabled()] += len(inputs[0])

    with network.register_forward_pre_hook(count):
        yield seen


def main() -> None:
    """Play the rounds; say how long all but the first took."""
    clients = job.clients()
    parts = experiment(clients)
    site, rule = parts.service(parts.layout), parts.rule
    state = rule.init(
        Briefing(snapshot(site.network.state_dict()), site.network.first_layer, parts.spec.rounds)
    )
    with tempfile.TemporaryDirectory() as folder:
        kept = Checkpoints(Path(folder))
        driver = LocalDriver(parts.layout.clients, [site], kept.memories)
        rounds = federate(rule, driver, state, parts.schedule, seed=0, storage=kept.storage)
        with counted(site.network) as seen:
            assert len(next(rounds).replies) == clients
        assert seen == {True: clients * job.IMAGES}, f"other passes than the job's: {seen}"
        began = job.Clock.now()
        for _ in range(job.ROUNDS - 1):
            next(rounds)
        ended = job.Clock.now()
    job.tell(began, ended)


if __name__ == "__main__":
    main()
