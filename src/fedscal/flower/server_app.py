"""Flower's ServerApp: the same round loop, checkpoints and records as on one machine, over Flower's Grid."""

from __future__ import annotations

import logging
import re
import secrets
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import InMemoryGrid
from torch import Tensor

from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.errors import FedscalError, ModelRefused, UsageError
from fedscal.core.types import ClientId, Metrics
from fedscal.core.weights import byte_count
from fedscal.data.remote import PREFIX
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.experiment import Experiment, Layout
from fedscal.experiment.progress import Lines, waiting_for
from fedscal.experiment.records import RoundRecord
from fedscal.experiment.run import adapt, resume
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec
from fedscal.flower.driver import FlowerDriver
from fedscal.flower.output import tell, tell_warnings
from fedscal.flower.patches import pull_soon
from fedscal.flower.processes import ENDED, end_with_parent
from fedscal.flower.registry import Registry
from fedscal.flower.schema import Schemas
from fedscal.flower.site_service import run_directory, run_spec, shared_keys, stamp
from fedscal.flower.transport import GridTransport
from fedscal.models.store import find_model, load_model, read_json

_SLACK = 1_000_000
_RUN_NAME = re.compile(r"[0-9a-f]{1,16}")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or go on with, the federation that the run's configuration describes."""
    logging.getLogger("fedscal").addHandler(logging.StreamHandler(sys.stdout))
    tell_warnings()
    if "--parent-pid" in sys.argv:
        # Flower ends such a process politely when its parent is gone, but one that is sending goes on trying
        # for ever, and keeps the run directory from those who resume.
        end_with_parent()
    pull_soon("flwr.superlink.grid.http_grid")
    config = context.run_config
    federation = FlowerFederation(grid, float(config["wait"]), float(config["round-timeout"]))
    out, lines = run_directory(context), Lines(tell)
    try:
        if config["resume"]:
            resume(out, lines, federation=federation)
        else:
            spec = server_spec(run_spec(str(config["keys"])), grid)
            if least := int(config.get("at-least", 0)):
                spec = federation.of_those_there(spec, least, lines)
            adapt(spec, out, lines, federation=federation)
    except FedscalError as error:
        print(f"{ENDED} {error.exit_code}: {error}", flush=True)  # noqa: T201
        raise


def server_spec(spec: RunSpec, grid: Grid) -> RunSpec:
    """Return the server's spec: sites by name, no data. Simulated sites are the clients of a data set."""
    if spec.clients.startswith(PREFIX):
        return spec
    clients = Experiment.build(spec).clients_of_data().clients
    if isinstance(grid, InMemoryGrid) and len(list(grid.get_node_ids())) != len(clients):
        raise UsageError(
            f"the run has {len(clients)} clients; simulate as many nodes: "
            f"--federation-config 'num-supernodes={len(clients)}'"
        )
    flat = {name: value for name, value in spec.all_keys().items() if name not in _OF_DATA}
    return RunSpec.make(**flat, clients=PREFIX + "+".join(clients))


_OF_DATA = frozenset({"benchmark", "source", "clients", "clients_per_domain"})


@dataclass
class FlowerFederation:
    """The sites of a federation, each a machine of its own: waits for them, and makes their driver."""

    grid: Grid
    patience: float
    timeout: float
    _registry: Registry = field(init=False)
    _schemas: Schemas = field(init=False)

    def clients(self, experiment: Experiment, events: Callback) -> Layout:
        """Wait for the sites; each reports its domain and its number of images."""
        self.prepare(experiment.execution)
        self._listen(events)
        self._registry.wait_for_all(self.patience)
        sites = self._registry.sites
        return Layout({c: (sites[c].domain, _rows(sites[c].images)) for c in sorted(sites)}, [])

    def of_those_there(self, spec: RunSpec, least: int, events: Callback) -> RunSpec:
        """Return the run of the sites that have come in time, if they are enough; others have no part."""
        self.prepare(spec)
        self._listen(events)
        self._registry.wait_for(least, self.patience)
        there, missing = sorted(self._registry.sites), self._registry.missing
        if missing:
            left_out = f"{', '.join(missing)} did not come within {self.patience:g} s and has no part in it"
            events.stage(f"starting with {len(there)} of {len(there) + len(missing)} sites; {left_out}", 0)
        return spec.replace(clients=PREFIX + "+".join(there))

    def _listen(self, events: Callback) -> None:
        """Say who is waited for, and from now on who comes and goes."""
        events.stage(waiting_for(self._registry.missing), 0)
        self._registry.changed = events.connected

    def prepare(self, spec: RunSpec) -> None:
        """Set up what the server holds responses against: the sites' names, the source model, the method."""
        path = find_model(Path(spec.source_model))
        source, card = load_model(path.parent, path.stem)
        self._schemas = Schemas.of(spec, source, card)
        names = spec.clients.removeprefix(PREFIX).split("+")
        transport = GridTransport(self.grid, 2 * byte_count(source) + _SLACK)
        self._registry = Registry(self.grid, transport, names, stamp(card, source), shared_keys(spec))

    def driver(
        self, experiment: Experiment, directory: RunDirectory, answered: Callable[[ClientId], None]
    ) -> FlowerDriver:
        """Return the driver over the connected sites."""
        return FlowerDriver(
            clients=experiment.layout.clients,
            registry=self._registry,
            schemas=self._schemas,
            run=_run_name(directory.path / "federation.json"),
            keys=shared_keys(experiment.execution),
            transport=experiment.spec.transport,
            timeout=self.timeout,
            patience=self.patience,
            last_metrics=_last_metrics(directory.rounds(), self._schemas.metrics),
            answered=answered,
        )


def _run_name(path: Path) -> str:
    """Return the name under which sites store this run's memory: a new one unless the run is resumed."""
    if not path.exists():
        files.write_json(path, {"run": secrets.token_hex(8)})
    name = read_json(path).get("run")
    if not isinstance(name, str) or not _RUN_NAME.fullmatch(name):
        raise ModelRefused(f"{path} holds no name of a run: 1 to 16 hexadecimal digits.")
    return name


def _rows(count: int) -> Tensor:
    """Return rows that are known by their number only; a number that somebody else chose takes no memory."""
    return torch.zeros(1, dtype=torch.int64).expand(count)


def _last_metrics(rounds: Sequence[RoundRecord], names: Collection[str]) -> dict[ClientId, Metrics]:
    latest = {client: row for record in rounds for client, row in record.judges.items()}
    return {client: {n: v for n, v in dump(row).items() if n in names} for client, row in latest.items()}
