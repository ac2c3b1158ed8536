"""Clients a second, and memory, of the same round in this package and in other frameworks.

    python -m benchmarks.peers 10 100 1000 --flower-env DIR --pfl-env DIR

``benchmarks/same_job/job.py`` is what every client does. DIR is a virtual environment with a framework and
this package in it; the frameworks are no dependencies of ours, and one that is not given is left out:

    python -m venv DIR
    DIR/bin/pip install --constraint constraints.txt . 'flwr[simulation]'      # Flower and Ray
    DIR/bin/pip install torch==2.13.0 . 'pfl[pytorch]'                         # pfl-research

Ours and another take turns, several times, so that a busy machine slows both: a row is the median of each
number, and "ours / theirs" the median of the ratios of neighbours, with the least and the largest. Every
process computes with one thread; Flower has one actor, and then two. Six rounds are played and all but the
first are timed; "start" is all that came before. "computing" is the processor time of all processes of the
framework in a timed round, which other work on the machine does not lengthen much; "wall" is the time that
went by.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.same_job.job import ROUNDS
from benchmarks.tree import memory

SIZES = (10, 100, 1_000)
_ROOT = Path(__file__).parents[1]
_LOOK = 0.2
"""Seconds between two looks at the memory."""
_QUIET = {
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else Ray's processes let everybody else on the machine go first
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


@dataclass(frozen=True)
class Framework:
    """A framework: its name, the Python that has it, and the module that plays the job in it."""

    name: str
    python: Path
    module: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """What was measured: peak memory in MB, seconds before the timed rounds, and of one of them."""

    megabytes: float
    start: float
    wall: float
    computing: float

    @classmethod
    def middle(cls, rows: Sequence[Row]) -> Row:
        """Return the median of each number."""
        return cls(*map(median, zip(*map(astuple, rows), strict=True)))


def measured(framework: Framework, clients: int) -> Row:
    """Let a framework play the job in a process of its own."""
    command = [str(framework.python), "-m", f"benchmarks.same_job.{framework.module}", str(clients)]
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile("w+") as told:
        environment = {**os.environ, **_QUIET, "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}", "FLWR_HOME": home}
        process = subprocess.Popen(
            [*command, *framework.words], stdout=told, stderr=subprocess.DEVNULL, env=environment, cwd=_ROOT
        )
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, memory(process.pid))
            time.sleep(_LOOK)
        if process.returncode:
            raise RuntimeError(f"{framework.name} ended with code {process.returncode}")
        told.seek(0)
        found = json.loads(told.read().splitlines()[-1])
    began, ended = found["began"], found["ended"]
    wall, computing = ((ended[clock] - began[clock]) / (ROUNDS - 1) for clock in ("wall", "cpu"))
    return Row(peak, began["wall"], wall, computing)


def frameworks(flower: Path | None, pfl: Path | None) -> Iterator[Framework]:
    """Yield the frameworks that are there."""
    if flower:
        for actors in (1, 2):
            name = f"Flower, {actors} actor{'s'[: actors - 1]}"
            yield Framework(name, flower / "bin" / "python", "in_flower", (str(actors),))
    if pfl:
        yield Framework("pfl-research", pfl / "bin" / "python", "in_pfl")


def compared(
    sizes: Sequence[int], others: Sequence[Framework], turns: int
) -> Iterator[tuple[int, Framework, Row, str]]:
    """Yield rows by number of clients: ours, and after it another's, with how much faster ours is."""
    ours = Framework("fedscal", Path(sys.executable), "in_fedscal")
    for clients in sizes:
        for other in others:
            pairs = [(measured(ours, clients), measured(other, clients)) for _ in range(turns)]
            ratios = sorted(theirs.computing / own.computing for own, theirs in pairs)
            own, theirs = map(Row.middle, zip(*pairs, strict=True))
            yield clients, ours, own, ""
            yield clients, other, theirs, f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        if not others:
            yield clients, ours, Row.middle([measured(ours, clients) for _ in range(turns)]), ""


def main() -> None:
    """Print a table, and the raw numbers as they come."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("clients", type=int, nargs="*", default=SIZES)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--flower-env", type=Path)
    parser.add_argument("--pfl-env", type=Path)
    given = parser.parse_args()
    console = Console(width=140)
    for name, place in (("Flower", given.flower_env), ("pfl-research", given.pfl_env)):
        if not place:
            console.print(f"{name} is left out: no environment is given")
    columns = ("start s", "wall s", "computing s", "clients a computing s", "ours / theirs", "peak MB")
    table = Table("clients", "framework", *columns)
    others = list(frameworks(given.flower_env, given.pfl_env))
    for clients, framework, row, ratio in compared(given.clients, others, given.turns):
        print(json.dumps({"clients": clients, "framework": framework.name, **asdict(row)}), file=sys.stderr)
        numbers = (f"{row.start:.1f}", f"{row.wall:.2f}", f"{row.computing:.2f}")
        rate = f"{clients / row.computing:.0f}"
        table.add_row(f"{clients:,}", framework.name, *numbers, rate, ratio, f"{row.megabytes:.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
