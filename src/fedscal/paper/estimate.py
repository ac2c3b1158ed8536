"""Estimate how long a table will take here: time one batch of the real model, and count the passes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import nn

from fedscal.client.start import Blend
from fedscal.client.training import ClientData, local_update
from fedscal.compare.execute import Cell
from fedscal.core.rng import Streams, compute_threads
from fedscal.core.table import Table
from fedscal.core.text import count, duration
from fedscal.core.types import Package
from fedscal.core.weights import snapshot
from fedscal.data.benchmark import Benchmark
from fedscal.data.folders.benchmark import Folder, margin
from fedscal.data.views import AugmentedViews
from fedscal.experiment.experiment import find_data, load_data, network_of, training_of
from fedscal.experiment.pretrain import SourceTraining
from fedscal.experiment.spec import RunSpec
from fedscal.methods import build_objective, method
from fedscal.models.network import Network
from fedscal.paper.tables import Entry

_IMAGES = 8
"""Images of the timed batch on a CPU, where time is proportional to them, and of the counted round."""
_LONG = 2.0
"""Seconds of a batch that is not timed as a whole; of a shorter one, what is the same for any size counts."""
_REPEATS = 3
_DAY = 86400.0
_SIDE = 8
"""Side of the images of the client that passes are counted with."""


@dataclass(frozen=True)
class Passes:
    """Passes through the network per image of a participant in one round."""

    forward: int
    forward_backward: int


@dataclass(frozen=True)
class Pace:
    """Seconds per image, views included, and where they were measured."""

    forward: float
    forward_backward: float
    where: str


def passes(spec: RunSpec, clusters: int) -> Passes:
    """Count the passes of a round with a miniature client, which may blend ``clusters`` models."""
    objective = build_objective(spec.method, spec.adaptation, spec.hyper)
    network = Network(nn.Flatten(), 3 * _SIDE**2, classes=3, bottleneck=4)
    model = snapshot(network.state_dict())
    blended = [f"cluster-{number:03}" for number in range(clusters)]
    names = blended if isinstance(objective.start, Blend) else ["server", "source"]
    counts: Counter[bool] = Counter()
    network.register_forward_pre_hook(
        lambda _, inputs: counts.update({torch.is_grad_enabled(): len(inputs[0])})
    )
    local_update(
        Package(2, 1e-6, dict.fromkeys(names, model)),
        {"previous": model},
        ClientData(torch.randint(0, 256, (_IMAGES, 3, _SIDE, _SIDE), dtype=torch.uint8), AugmentedViews()),
        objective,
        replace(training_of(spec), batch_size=_IMAGES),
        Streams(spec.seed, "miniature", 2),
        network,
    )
    return Passes(counts[False] // _IMAGES, counts[True] // _IMAGES)


def seconds_of_run(spec: RunSpec, images: Mapping[str, int], pace: Pace) -> float:
    """Return the seconds of a run without its source model, given the images of every domain."""
    targets = {domain: n for domain, n in images.items() if domain != spec.source}
    total = sum(targets.values())
    evaluation = total * pace.forward
    if not method(spec.method).rule.trains:
        return evaluation
    clients = len(targets) * spec.clients_per_domain
    trained = total * math.ceil(spec.participation * clients) / clients
    needed = passes(spec, clusters=len(targets))
    each = needed.forward * pace.forward + needed.forward_backward * pace.forward_backward
    # After a round every client evaluates the server's model, and every participant its own.
    return evaluation + spec.rounds * (trained * each + evaluation + trained * pace.forward)


def seconds_of_source(spec: RunSpec, images: int, pace: Pace) -> float:
    """Return the seconds of training a source model."""
    trained = spec.pretrain_epochs * (1 - SourceTraining.held_out) * images
    return trained * pace.forward_backward + images * pace.forward


def measure(spec: RunSpec) -> Pace:
    """Time one batch of the run's network: on a CPU a few images, unless a whole batch takes no time."""
    data = load_data(spec)
    network = network_of(spec, data)
    with compute_threads(spec.threads):
        if next(network.parameters()).device.type == "cpu":
            few = _pace(spec, data, network, _IMAGES)
            if few.forward_backward * spec.batch_size > _LONG:
                return few
        return _pace(spec, data, network, spec.batch_size)


def _pace(spec: RunSpec, data: Benchmark, network: Network, size: int) -> Pace:
    """Time a batch of so many images."""
    device = next(network.parameters()).device
    side = margin(data.shape[1])
    seeded, shape = torch.Generator().manual_seed(0), (size, 3, side, side)
    batch = torch.randint(0, 256, shape, dtype=torch.uint8, generator=seeded).to(device)

    def forward() -> None:
        with torch.no_grad():
            network.eval()(data.views.evaluate(batch))

    def step() -> None:
        network.train()
        network(data.views.weak(batch, torch.Generator().manual_seed(0))).logits.sum().backward()
        network.zero_grad(set_to_none=True)

    passed, stepped = (_timed(work, device, spec.threads) / size for work in (forward, step))
    return Pace(passed, stepped, f"{device}, {count(spec.threads, 'thread')}, {spec.model}")


def _timed(work: Callable[[], object], device: torch.device, threads: int) -> float:
    """Return the seconds of the fastest of some repetitions.

    On a CPU it is the process's CPU time per thread, so that other load on the machine does not count.
    """
    spent = []
    for _ in range(_REPEATS):
        started, used = time.perf_counter(), time.process_time()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        cpu = (time.process_time() - used) / threads
        spent.append(cpu if device.type == "cpu" else time.perf_counter() - started)
    return min(spent)


class Document(TypedDict):
    """An estimate as JSON."""

    runs: int
    finished: int
    source_models: int
    seconds: float
    seconds_by_row: dict[str, float]
    finished_took: float
    finished_estimate: float


@dataclass(frozen=True)
class Estimate:
    """The work that is left.

    Attributes:
        cells: the runs that are not finished, by row.
        finished: the number of finished runs.
        seconds: of each row's runs together.
        sources: the seconds of the source models that they need; some may be in the cache.
        models: how many source models.
        pace: the measured pace, by data set.
        past: what the finished runs took by their own clocks, and what is estimated for the same.
    """

    cells: Mapping[str, Sequence[Cell]]
    finished: int
    seconds: Mapping[str, float]
    sources: float
    models: int
    pace: Mapping[str, Pace]
    past: tuple[float, float] = (0.0, 0.0)

    def table(self) -> Table:
        """Return the estimate row by row."""
        lines = [(row, len(cells), self.seconds[row]) for row, cells in self.cells.items()]
        rows = [
            [row, str(number), _long(total / number) if number else "", _long(total)]
            for row, number, total in [*lines, ("source models", self.models, self.sources)]
        ]
        return Table("What is to be done", ["row", "runs", "each", "together"], rows)

    @property
    def total(self) -> float:
        """Seconds of all of it, one run after another."""
        return math.fsum(self.seconds.values()) + self.sources

    @property
    def left(self) -> int:
        """How many runs are not finished."""
        return sum(map(len, self.cells.values()))

    def sentences(self, jobs: int) -> list[str]:
        """Return the estimate in sentences, one run at a time and ``jobs`` at a time."""
        paces = [
            f"{name}: an image takes {1000 * pace.forward:.1f} ms forward and "
            f"{1000 * pace.forward_backward:.1f} ms forward and backward ({pace.where})."
            for name, pace in self.pace.items()
        ]
        text = f"{count(self.left, 'run')} to do, {self.finished} finished: about {_long(self.total)}"
        if jobs > 1:
            text += f", {_long(self.total / jobs)} with {jobs} at a time that do not slow each other"
        return [*paces, text + ", decoding of the images aside.", *self._checked()]

    def _checked(self) -> Iterator[str]:
        """Say how far such an estimate is from what has already been run."""
        took, expected = self.past
        if took:
            yield (
                f"Rounds and evaluations of the {count(self.finished, 'finished run')} took {_long(took)}; "
                f"the estimate for the same is {_long(expected)}, {expected / took:.2f} times that."
            )

    def document(self) -> Document:
        """Return the estimate for JSON."""
        return {
            "runs": self.left,
            "finished": self.finished,
            "source_models": self.models,
            "seconds": self.total,
            "seconds_by_row": dict(self.seconds),
            "finished_took": self.past[0],
            "finished_estimate": self.past[1],
        }


def _long(seconds: float) -> str:
    """Write a time that may be days."""
    return duration(seconds) if seconds < 2 * _DAY else f"{seconds / _DAY:,.0f} days"


def estimate(entries: Sequence[Entry], advance: Callable[[], None] = lambda: None) -> Estimate:
    """Return what the unfinished runs of a table will take on this machine; nothing is run or written."""
    # Tables share runs: each is taken where it comes first.
    first = list({entry.cell.directory.path: entry for entry in reversed(entries)}.values())[::-1]
    todo = [entry for entry in first if not entry.cell.directory.finished]
    done = [entry for entry in first if entry.cell.directory.finished]
    pace, images = {}, {}
    for entry in first:
        if entry.block.dataset not in pace:
            pace[entry.block.dataset] = measure(entry.cell.spec)
            images[entry.block.dataset] = image_counts(find_data(entry.cell.spec))
            advance()
    cells: dict[str, list[Cell]] = {}
    seconds: dict[str, float] = {}
    sources: dict[tuple[str, str, int], float] = {}
    for entry in todo:
        spec, name = entry.cell.spec, entry.block.dataset
        row = f"{entry.block.name}: {entry.variant.title}"
        cells.setdefault(row, []).append(entry.cell)
        seconds[row] = seconds.get(row, 0.0) + seconds_of_run(spec, images[name], pace[name])
        source = seconds_of_source(spec, images[name][spec.source], pace[name])
        sources[name, spec.source, spec.seed] = source
    past = (
        math.fsum(map(_clock, done)),
        math.fsum(
            seconds_of_run(entry.cell.spec, images[entry.block.dataset], pace[entry.block.dataset])
            for entry in done
        ),
    )
    return Estimate(cells, len(done), seconds, math.fsum(sources.values()), len(sources), pace, past)


def _clock(entry: Entry) -> float:
    """Return the seconds of a finished run, without its source model."""
    spent = entry.cell.directory.summary().seconds
    return spent.adapt + spent.evaluate


def image_counts(data: Benchmark) -> dict[str, int]:
    """Return the number of files of every domain."""
    assert isinstance(data.folder, Folder), "tables are made from folders"
    return {domain: len(files) for domain, files in data.folder.tree.domains.items()}
