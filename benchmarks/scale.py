"""Memory and CPU seconds of a round by the number of clients that take part: 10, 100, 1,000 and 10,000.

    python -m benchmarks.scale [10 100 1000 ...]
    python -m benchmarks.scale loa 10 2000          # of one method

Every client has five images of 28 x 28 pixels and trains the small convnet on them for one epoch with
FedSCAl; one round, all take part and judge, one process, one thread. LoA keeps a model for each client. Each
row is a process of its own, so that its peak memory is its own. Time is the process's, not the clock's on the
wall, from the round's beginning until it is merged. Ratios are to the first row.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table

import fedscal
from fedscal.core import files
from fedscal.data.tensors import keep_tensors
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.source import source_model
from fedscal.server import rounds

SIZES = (10, 100, 1_000, 10_000)
METHODS = ("fedscal", "loa")
_IMAGES, _SIDE, _CLASSES = 5, 28, 10


@dataclass(frozen=True)
class Cost:
    """What a run took: the peak of its memory, and the CPU seconds of training and merging its one round."""

    megabytes: float
    seconds: float
    checkpoint: float


def images_of(clients: int) -> str:
    """Keep five images for each of so many clients; return their name."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (clients, _IMAGES, 1, _SIDE, _SIDE), dtype=torch.uint8, generator=draw)
    labels = torch.arange(50) % _CLASSES
    source = torch.randint(0, 256, (50, 1, _SIDE, _SIDE), dtype=torch.uint8, generator=draw)
    sites = {f"site-{number:05}": images[number] for number in range(clients)}
    names = [str(number) for number in range(_CLASSES)]
    return keep_tensors({"source": (source, labels), **sites}, names)


def spec_of(method: str, images: str) -> fedscal.RunSpec:
    """Return a run of one round in which all clients take part."""
    return fedscal.RunSpec.make(
        benchmark=images,
        source="source",
        method=method,
        clients_per_domain=1,
        participation=1,
        rounds=1,
        local_epochs=1,
        pretrain_epochs=1,
        workers=1,
    )


def prepare(method: str, clients: int) -> str:
    """Make the images and train the source model; return the images' name."""
    images = images_of(clients)
    source_model(Experiment.build(spec_of(method, images)))
    return images


def measured(method: str, images: str, folder: Path) -> Cost:
    """Run one round in this process."""
    spent: list[float] = []
    play = rounds._round

    def timed(*parts: Any) -> rounds.Round:
        began = time.process_time()
        done = play(*parts)
        spent.append(time.process_time() - began)
        return done

    with mock.patch.object(rounds, "_round", timed):
        run = fedscal.adapt(spec_of(method, images), folder / "run")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cost(peak, sum(spent), files.size_of(run.checkpoints.folder) / 1e6)


def in_a_process_of_its_own(method: str, clients: int) -> Cost:
    """Measure a row; images and source model are there before it, made by yet another process."""
    images = json.loads(_said("--prepare", method, str(clients)))
    return Cost(**json.loads(_said("--one", method, images)))


def _said(*words: str) -> str:
    """Return the last line of this module in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]


def main(methods: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    """Print a table."""
    table = Table("method", "participants", "peak memory", "ratio", "CPU ms a client", "ratio", "checkpoints")
    console = Console(width=100)
    for method in methods:
        first: Cost | None = None
        for clients in sizes:
            with console.status(f"{method}, {clients:,} clients"):
                cost = in_a_process_of_its_own(method, clients)
            first = first or cost
            each, least = cost.seconds / clients, first.seconds / sizes[0]
            table.add_row(
                *(
                    method,
                    f"{clients:,}",
                    f"{cost.megabytes:.0f} MB",
                    f"{cost.megabytes / first.megabytes:.2f}",
                ),
                *(f"{1000 * each:.1f}", f"{each / least:.2f}", f"{cost.checkpoint:.1f} MB"),
            )
    console.print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--prepare"]:
        print(json.dumps(prepare(sys.argv[2], int(sys.argv[3]))))
    elif sys.argv[1:2] == ["--one"]:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asdict(measured(sys.argv[2], sys.argv[3], Path(folder)))))
    else:
        words = sys.argv[1:]
        numbers = tuple(int(word) for word in words if word.isdecimal())
        main(tuple(word for word in words if not word.isdecimal()) or METHODS, numbers or SIZES)
