"""Simulated sites: Flower numbers the nodes, and node i is the i-th client of the run's data set."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from flwr.app import Context

from fedscal.core.errors import UsageError
from fedscal.experiment.build import build_layout
from fedscal.flower.config import run_directory, run_spec
from fedscal.flower.site_service import SiteService


def simulated_site(context: Context) -> SiteService:
    """Return the service of a simulated node, kept as long as its process lives."""
    if "partition-id" not in context.node_config:
        raise UsageError("this SuperNode was not started by 'fedscal flower site'")
    number = int(context.node_config["partition-id"])
    return _site(str(context.run_config["keys"]), run_directory(context), number)


@lru_cache(maxsize=16)
def _site(keys: str, out: Path, number: int) -> SiteService:
    spec = run_spec(keys)
    clients = build_layout(spec).clients
    if number >= len(clients):
        raise UsageError(f"node {number} has no client: the run has {len(clients)}")
    return SiteService(clients[number], {**spec.flat(), **spec.hyper}, out / "sites" / clients[number])
