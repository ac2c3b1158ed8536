"""What it costs that many clients judge: passes in shared batches, and the record of what they said.

    python -m benchmarks.judging [--clients 1000] [--record 10000 10] [--columns 10000 100]

Clients of five images of 28 x 28 pixels judge the small convnet, each by itself and in shared batches, in
turn. Then the same invented rounds, of which a tenth of the clients took part in each, are written and read
as lines and as columns. Processor time of one process with one thread; the least of five.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

import fedscal
from fedscal.core import files, weights
from fedscal.data.tensors import keep_tensors
from fedscal.experiment.client_table import ClientTable, column
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.journal import Journal
from fedscal.experiment.records import ClientRecord, RoundRecord, Seconds

_TIMES = 5
_IMAGES, _SIDE, _CLASSES = 5, 28, 10


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor time of some work."""
    started = time.process_time()
    work()
    return time.process_time() - started


def passes(clients: int) -> tuple[float, float]:
    """Return the seconds in which clients judge a model: each by itself, and together."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (clients, _IMAGES, 1, _SIDE, _SIDE), dtype=torch.uint8, generator=draw)
    source = images[:, 0][:50], torch.arange(50) % _CLASSES
    sites = {f"site-{number:05}": images[number] for number in range(clients)}
    data = keep_tensors({"source": source, **sites}, [str(number) for number in range(_CLASSES)])
    spec = fedscal.RunSpec.make(benchmark=data, source="source", clients_per_domain=1, workers=1)
    experiment = Experiment.build(spec)
    alone = experiment.service(experiment.clients_of_data())
    together, model = replace(alone, together=True), weights.snapshot(alone.network.state_dict())
    turns = [
        [seconds_of(lambda s=one: s.evaluate(list(s.data), model)) for one in (alone, together)]  # type: ignore[misc]
        for _ in range(_TIMES)
    ]
    least = [min(column) for column in zip(*turns, strict=True)]
    return least[0], least[1]


def _single(number: float) -> float:
    """Return a number as a network computes it."""
    return float(torch.tensor(number))


def invented(place: int, took_part: bool, draw: random.Random) -> ClientRecord:
    """Return a client of five labelled images."""

    def share() -> float:
        return 20.0 * draw.randint(0, 5)

    judged = ClientRecord(
        domain=f"domain {place % 4}",
        accuracy=share(),
        pseudo_label_accuracy=share(),
        images=_IMAGES,
        signals={name: _single(draw.random()) for name in ("entropy", "infomax", "snd")},
        effective_classes=math.exp(draw.choice((0.0, 0.5, 0.67, 0.95, 1.05, 1.33, 1.6))),
    )
    if not took_part:
        return judged
    names = ("loss", *(f"alignment.{name}" for name in ("tau", "gamma", "share_local", "share_server")))
    return replace(
        judged,
        drift=draw.random(),
        seconds=draw.random(),
        bytes_down=540_000,
        bytes_up=540_000,
        epochs=({name: _single(draw.random()) for name in names},),
        local_accuracy=share(),
        received_accuracy=share(),
        both_wrong=share(),
    )


def record(clients: int, rounds: int, columns: bool) -> tuple[float, float, float]:
    """Return megabytes of a record, and seconds to write a round of it and to read all of it."""
    draw, names = random.Random(0), [f"site-{number:05}" for number in range(clients)]
    with tempfile.TemporaryDirectory() as folder:
        journal, spent = Journal(Path(folder, "metrics.jsonl")), 0.0
        for index in range(rounds + 1):
            who = set(draw.sample(names, clients // 10 if index else 0))
            rows = {name: invented(place, name in who, draw) for place, name in enumerate(names)}
            spent += seconds_of(lambda i=index, w=who, r=rows: journal.append(_round(i, w, r, columns)))  # type: ignore[misc]
        size = files.size_of(Path(folder)) / 1e6
        reading = seconds_of(lambda: [column(one.clients, "accuracy") for one in journal.read().rounds])
    return size, spent / (rounds + 1), reading


def _round(index: int, who: set[str], rows: dict[str, ClientRecord], columns: bool) -> RoundRecord:
    return RoundRecord(
        round=index,
        participants=sorted(who),
        signals={},
        clients=ClientTable.of(rows) if columns else rows,
        warnings=(),
        failures={},
        seconds=Seconds(adapt=1.0),
        selected_round=0,
    )


def main(words: Sequence[str] | None = None) -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--record", type=int, nargs=2, default=(10_000, 10))
    parser.add_argument("--columns", type=int, nargs=2, default=(10_000, 100))
    given = parser.parse_args(words)
    console = Console(width=110, highlight=False)
    torch.set_num_threads(1)
    alone, together = passes(given.clients)
    each = f"{1000 * alone / given.clients:.2f} ms a client, together {1000 * together / given.clients:.2f}"
    console.print(f"{given.clients:,} clients judge: alone {each}, ratio {alone / together:.2f}")
    for (clients, rounds), columns in ((given.record, False), (given.record, True), (given.columns, True)):
        size, writing, reading = record(clients, rounds, columns)
        console.print(
            f"{clients:,} clients x {rounds} rounds as {'columns' if columns else 'lines'}: {size:.1f} MB, "
            f"{1000 * writing:.0f} ms to write a round, {reading:.2f} s to read a number of all"
        )


if __name__ == "__main__":
    main()
