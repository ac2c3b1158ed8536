"""Many runs, one table: every method from every source with every seed, cached run by run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedscal import files
from fedscal.errors import DirectoryBusy
from fedscal.methods import METHODS
from fedscal.record import RunDirectory
from fedscal.spec import RunSpec, environment_keys

_MOMENTS = ("last", "selected", "best")


@dataclass(frozen=True)
class Cell:
    """One run of the grid and its directory, named by what decides the result."""

    spec: RunSpec
    directory: RunDirectory

    @property
    def name(self) -> str:
        """The cell in a few words."""
        return f"{self.spec.method} from {self.spec.source}, seed {self.spec.seed}"


@dataclass(frozen=True)
class Failed:
    """Why a cell has no result: its process's exit code and last words."""

    code: int
    reason: str


def grid(
    base: RunSpec, methods: Sequence[str], sources: Sequence[str], seeds: Sequence[int], out: Path
) -> list[Cell]:
    """Return the cells; neighbours differ in source or seed, so as not to wait for one source model."""
    specs = [
        base.replace(method=method, source=source, seed=seed)
        for method in methods
        for seed in seeds
        for source in sources
    ]
    return [Cell(spec, RunDirectory(out / _folder(spec))) for spec in specs]


def _folder(spec: RunSpec) -> str:
    return f"{spec.source}-{spec.method}-{spec.adaptation}-s{spec.seed}-{spec.digest()[:8]}"


def execute(cells: Sequence[Cell], jobs: int, done: Callable[[Cell], None]) -> dict[str, Failed]:
    """Run the cells that are not finished, ``jobs`` at a time; return what failed and why.

    Each cell is a process of its own: a crash costs one cell, and repeating the command resumes it.
    """
    failed: dict[str, Failed] = {}
    running: list[subprocess.Popen[str]] = []
    pool = ThreadPoolExecutor(jobs)
    try:
        futures = {pool.submit(_run, cell, running): cell for cell in cells}
        for future in as_completed(futures):
            failure = future.result()
            if failure:
                failed[futures[future].name] = failure
            done(futures[future])
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        raise
    finally:
        pool.shutdown()
    return failed


def _run(cell: Cell, running: list[subprocess.Popen[str]]) -> Failed | None:
    code, error = DirectoryBusy.exit_code, ""
    while code == DirectoryBusy.exit_code and not cell.directory.finished:
        process = subprocess.Popen(_command(cell), stderr=subprocess.PIPE, text=True, env=_environment())
        running.append(process)
        _, error = process.communicate()
        running.remove(process)
        code = process.returncode
        if code == DirectoryBusy.exit_code:  # the orphan of a comparison that was killed works on it
            time.sleep(2)
    return None if cell.directory.finished else Failed(code, error.strip() or f"exit code {code}")


def _environment() -> dict[str, str]:
    """Return this process's environment without keys: the cell's command names every one that it needs."""
    keys = {f"FEDSCAL_{name.upper()}" for name in environment_keys()}
    return {name: value for name, value in os.environ.items() if name not in keys}


def _command(cell: Cell) -> list[str]:
    path = str(cell.directory.path)
    keys = {**cell.spec.flat(), **cell.spec.hyper, "workers": 1}
    fresh = ["--out", path, *(f"{key}={value}" for key, value in keys.items())]
    words = ["--resume", path] if cell.directory.started else fresh
    return [sys.executable, "-m", "fedscal", "run", "--quiet", "--no-report", *words]


def spread(values: Sequence[float]) -> str:
    """Return mean +- sample standard deviation.

    >>> spread([80.0, 82.0, 84.0])
    '82.0 ± 2.0'
    """
    return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def tables(cells: Sequence[Cell]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield a table for each source: (source, header, rows), last round first, the oracle named as one."""
    for source in dict.fromkeys(cell.spec.source for cell in cells):
        mine = [cell for cell in cells if cell.spec.source == source and cell.directory.finished]
        rows = [_row(method, mine) for method in METHODS if any(c.spec.method == method for c in mine)]
        if rows:
            domains = [d for d in _accuracies(mine[0])["last"] if d != "average"]
            header = ["method", *domains, "average, last round", "selected round", "best round (oracle)"]
            yield source, header, rows


def _row(method: str, cells: Sequence[Cell]) -> list[str]:
    runs = [_accuracies(cell) for cell in cells if cell.spec.method == method]
    domains = [d for d in runs[0]["last"] if d != "average"]
    per_domain = [spread([run["last"][d] for run in runs]) for d in domains]
    averages = [spread([run[moment]["average"] for run in runs]) for moment in _MOMENTS]
    return [METHODS[method].title, *per_domain, *averages]


def _accuracies(cell: Cell) -> dict[str, Any]:
    accuracy: dict[str, Any] = cell.directory.summary()["accuracy"]
    return accuracy


def to_markdown(cells: Sequence[Cell], command: str) -> str:
    """Return all tables as Markdown, with the command that made them."""
    seeds = sorted({cell.spec.seed for cell in cells})
    text = [
        f"`{command}`",
        "",
        f"Accuracy in %, mean ± standard deviation over seeds {', '.join(map(str, seeds))}.",
    ]
    for source, header, rows in tables(cells):
        ruler = ["---"] + ["---:"] * (len(header) - 1)
        lines = ["| " + " | ".join(row) + " |" for row in [header, ruler, *rows]]
        text += ["", f"**Source: {source}**", "", *lines]
    return "\n".join(text) + "\n"


def write_results(cells: Sequence[Cell], out: Path, command: str) -> Path:
    """Write ``comparison.md`` and ``comparison.json`` beside the runs."""
    rows = [cell.directory.summary() for cell in cells if cell.directory.finished]
    files.write_json(out / "comparison.json", rows)
    path = out / "comparison.md"
    files.write_bytes(path, to_markdown(cells, command).encode())
    return path
