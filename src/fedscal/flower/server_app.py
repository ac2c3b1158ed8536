"""Flower's ServerApp: the same round loop, checkpoints and records as on one machine, over Flower's Grid."""

from __future__ import annotations

import logging
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
from fedscal.core.errors import FedscalError, UsageError
from fedscal.core.types import ClientId, Metrics, Progress
from fedscal.core.weights import byte_count
from fedscal.data.remote import PREFIX
from fedscal.experiment.build import Layout, build_layout
from fedscal.experiment.metrics import in_short
from fedscal.experiment.records import RoundRecord
from fedscal.experiment.run import Silent, adapt, resume
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec
from fedscal.flower.config import run_directory, run_spec
from fedscal.flower.driver import OverFlower
from fedscal.flower.processes import ENDED
from fedscal.flower.registry import Roster
from fedscal.flower.schema import Forms
from fedscal.flower.site_service import shared_keys, stamp
from fedscal.flower.transport import Post
from fedscal.models.store import find_model, load_model, read_json

_SLACK = 1_000_000
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or go on with, the federation that the run's configuration describes."""
    logging.getLogger("fedscal").addHandler(logging.StreamHandler(sys.stdout))
    config = context.run_config
    limits = {"patience": float(config["wait"]), "timeout": float(config["round-timeout"])}
    out = run_directory(context)
    try:
        if config["resume"]:
            resume(out, Lines(), lambda spec: Machines(grid, spec, **limits))
        else:
            spec = server_spec(run_spec(str(config["keys"])), grid)
            adapt(spec, out, Lines(), lambda spec: Machines(grid, spec, **limits))
    except FedscalError as error:
        print(f"{ENDED} {error.exit_code}: {error}", flush=True)  # noqa: T201
        raise


def server_spec(spec: RunSpec, grid: Grid) -> RunSpec:
    """Return the server's spec: sites by name, no data. Simulated sites are the clients of a data set."""
    if spec.clients.startswith(PREFIX):
        return spec
    clients = build_layout(spec).clients
    if isinstance(grid, InMemoryGrid) and len(list(grid.get_node_ids())) != len(clients):
        raise UsageError(
            f"the run has {len(clients)} clients; simulate as many nodes: "
            f"--federation-config 'num-supernodes={len(clients)}'"
        )
    flat = {name: value for name, value in {**spec.flat(), **spec.hyper}.items() if name not in _OF_DATA}
    return RunSpec.make(**flat, clients=PREFIX + "+".join(clients))


_OF_DATA = frozenset({"benchmark", "source", "clients", "clients_per_domain"})


@dataclass
class Machines:
    """A federation of real machines: finds its sites, and lets them work."""

    grid: Grid
    spec: RunSpec
    patience: float
    timeout: float
    _roster: Roster = field(init=False)
    _forms: Forms = field(init=False)

    def __post_init__(self) -> None:
        place = find_model(Path(self.spec.source_model))
        source, card = load_model(place.parent, place.stem)
        self._forms = Forms.of(self.spec, source, card)
        names = self.spec.clients.removeprefix(PREFIX).split("+")
        post = Post(self.grid, 2 * byte_count(source) + _SLACK)
        known = stamp(card, source)
        self._roster = Roster(self.grid, post, names, known, shared_keys(self.spec))

    def find(self, progress: Progress) -> Layout:
        """Wait for the sites; each says its domain and its number of images."""
        progress.stage(f"waiting for {', '.join(sorted(self._roster.expected))}", 0)
        self._roster.gather(self.patience)
        sites = self._roster.sites
        return Layout({c: (sites[c].domain, _rows(sites[c].images)) for c in sorted(sites)}, [])

    def driver(
        self, layout: Layout, directory: RunDirectory, answered: Callable[[ClientId], None]
    ) -> OverFlower:
        """Return the driver over the sites that were found."""
        return OverFlower(
            clients=layout.clients,
            roster=self._roster,
            forms=self._forms,
            run=_run_name(directory.path / "federation.json"),
            keys=shared_keys(self.spec),
            transport=self.spec.transport,
            timeout=self.timeout,
            patience=self.patience,
            judged=_last_judged(directory.rounds(), self._forms.metrics),
            answered=answered,
        )


def _run_name(path: Path) -> str:
    """Return the name under which sites keep this run's memory: a new one unless the run is resumed."""
    if not path.exists():
        files.write_json(path, {"run": secrets.token_hex(8)})
    return str(read_json(path)["run"])


def _rows(count: int) -> Tensor:
    """Return rows that are known by their number only; a number that somebody else chose takes no memory."""
    return torch.zeros(1, dtype=torch.int64).expand(count)


def _last_judged(rounds: Sequence[RoundRecord], names: Collection[str]) -> dict[ClientId, Metrics]:
    clients = rounds[-1].clients if rounds else {}
    return {client: {n: v for n, v in dump(row).items() if n in names} for client, row in clients.items()}


class Lines(Silent):
    """Says how the run goes on in plain lines, which Flower carries to whoever started the run."""

    def stage(self, name: str, total: int) -> None:
        """Name the stage."""
        _say(name)

    def round(self, line: RoundRecord) -> None:
        """Say what came of a round."""
        seconds = line.seconds.adapt + line.seconds.evaluate
        _say(f"round {line.round}  {in_short(line)}  {seconds:.0f} s")

    def warn(self, text: str) -> None:
        """Pass a warning on."""
        _say(f"warning: {text}")


def _say(text: str) -> None:
    print(f"fedscal: {text}", flush=True)  # noqa: T201
