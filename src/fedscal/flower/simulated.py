"""Simulated sites: Flower numbers the nodes, and node i is the i-th client of the run's data set."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from flwr.app import Context

from fedscal.core.errors import UsageError
from fedscal.experiment.experiment import Experiment
from fedscal.flower.config import run_directory, run_spec
from fedscal.flower.site_service import Bench


def bench(context: Context) -> Bench:
    """Return the bench of a simulated node, kept as long as its process lives."""
    if "partition-id" not in context.node_config:
        raise UsageError("this SuperNode was not started by 'fedscal flower site'")
    number = int(context.node_config["partition-id"])
    return _bench(str(context.run_config["keys"]), run_directory(context), number)


@lru_cache(maxsize=16)
def _bench(keys: str, out: Path, number: int) -> Bench:
    spec = run_spec(keys)
    clients = Experiment.build(spec).clients_of_data().clients
    if number >= len(clients):
        raise UsageError(f"node {number} has no client: the run has {len(clients)}")
    return Bench(clients[number], spec.all_keys(), out / "sites" / clients[number])
