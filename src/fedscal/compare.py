"""Many runs, one table: every method from every source with every seed, cached run by run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedscal import files
from fedscal.methods import METHODS
from fedscal.record import RunDirectory
from fedscal.spec import RunSpec

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


def execute(cells: Sequence[Cell], jobs: int, done: Callable[[Cell], None]) -> dict[str, str]:
    """Run the cells that are not finished, ``jobs`` at a time; return what failed and why.

    Each cell is a process of its own: a crash costs one cell, and repeating the command resumes it.
    """
    failed: dict[str, str] = {}
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(_run, cell): cell for cell in cells}
        for future in as_completed(futures):
            error = future.result()
            if error:
                failed[futures[future].name] = error
            done(futures[future])
    return failed


def _run(cell: Cell) -> str | None:
    if cell.directory.finished:
        return None
    path = str(cell.directory.path)
    keys = {**cell.spec.flat(), **cell.spec.hyper, "workers": 1}
    words = (
        ["--resume", path]
        if cell.directory.started
        else ["--out", path, *(f"{k}={v}" for k, v in keys.items())]
    )
    command = [sys.executable, "-m", "fedscal", "run", "--quiet", "--no-report", *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if result.returncode == 0 else result.stderr.strip() or f"exit code {result.returncode}"


def job_count(threads: int, cells: int) -> int:
    """Return how many runs fit the cores side by side."""
    return max(1, min((os.cpu_count() or 1) // threads, cells))


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
