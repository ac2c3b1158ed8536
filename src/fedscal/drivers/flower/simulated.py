"""Simulated sites: Flower numbers the nodes, and node i is the i-th client of the run's data set."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from flwr.app import Context

from fedscal.build import build_layout
from fedscal.drivers.flower.bench import Bench
from fedscal.errors import UsageError
from fedscal.spec import RunSpec


def bench(context: Context) -> Bench:
    """Return the bench of a simulated node, kept as long as its process lives."""
    if "partition-id" not in context.node_config:
        raise UsageError("this SuperNode was not started by 'fedscal flower site'")
    keys, out = str(context.run_config["keys"]), str(context.run_config["out"])
    return _bench(keys, out, int(context.node_config["partition-id"]))


@lru_cache(maxsize=4)
def _bench(keys: str, out: str, number: int) -> Bench:
    spec = RunSpec.make(**json.loads(keys))
    client = build_layout(spec).clients[number]
    return Bench(client, {**spec.flat(), **spec.hyper}, Path(out) / "sites" / client)
