"""The job in Flower's simulation, by Ray: ``python -m benchmarks.same_job.in_flower CLIENTS ACTORS``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.same_job import job
from fedscal.models.network import Network


@cache
def _tools() -> tuple[Network, torch.Generator]:
    """Return the network of a process, which its clients share, and its random numbers."""
    torch.set_num_threads(1)
    return job.network(), torch.Generator().manual_seed(0)


def train(message: Message, context: Context) -> Message:
    """Make a client's step."""
    network, draws = _tools()
    network.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    job.step(network, job.images_of(int(context.node_config["partition-id"])), draws)
    metrics = MetricRecord({"num-examples": job.IMAGES})
    return Message(
        RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message
    )


class TimedAverage(FedAvg):
    """Flower's average, with a clock at the beginning of each round and at its end."""

    def __init__(self, clients: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=clients)
        self.clients = clients
        self.began: list[job.Clock] = []
        self.ended: list[job.Clock] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin a round."""
        self.began.append(job.Clock.now())
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """End a round."""
        got = list(replies)
        assert len([reply for reply in got if not reply.has_error()]) == self.clients
        merged = super().aggregate_train(server_round, got)
        self.ended.append(job.Clock.now())
        return merged


def main() -> None:
    """Play the rounds; say how long all but the first took."""
    clients, actors = job.clients(), int(sys.argv[2])
    strategy = TimedAverage(clients)
    client, server = ClientApp(), ServerApp()
    client.train()(train)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy.start(grid, ArrayRecord(job.network().state_dict()), num_rounds=job.ROUNDS, timeout=36_000)

    ray: dict[str, Any] = {
        "client_resources": {"num_cpus": 1},
        "init_args": {"num_cpus": actors, "include_dashboard": False},
    }
    run_simulation(server, client, clients, backend_config=ray)
    job.tell(strategy.began[1], strategy.ended[-1])


if __name__ == "__main__":
    from benchmarks.same_job import in_flower  # Ray's processes find what they run by its module's name

    in_flower.main()
