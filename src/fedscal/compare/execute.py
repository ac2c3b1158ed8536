"""Execute the runs of a grid, several at a time; finished runs are skipped."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from fedscal.core.errors import DirectoryBusy
from fedscal.core.module_command import module_command
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec, environment_keys

_LOOK = 1.0
"""Seconds between two looks at the runs."""


@dataclass(frozen=True)
class Cell:
    """One run of the grid, its directory, named by what decides the result, and who follows it."""

    spec: RunSpec
    directory: RunDirectory
    track: str = ""

    @property
    def name(self) -> str:
        """The cell in a few words."""
        return f"{self.spec.method} from {self.spec.source}, seed {self.spec.seed}"


@dataclass(frozen=True)
class Failed:
    """Why a cell has no result: its process's exit code and stderr."""

    code: int
    reason: str


def cells_of(specs: Sequence[RunSpec], out: Path, track: str = "") -> list[Cell]:
    """Return the cells of a grid, each in its own directory below ``out``; ``track`` names trackers."""
    names = [f"{s.source}-{s.method}-{s.adaptation}-s{s.seed}-{s.digest()[:8]}" for s in specs]
    return [Cell(spec, RunDirectory(out / name), track) for spec, name in zip(specs, names, strict=True)]


def execute(
    cells: Sequence[Cell], jobs: int, done: Callable[[Cell], None], look: Callable[[], None] = lambda: None
) -> list[tuple[Cell, Failed]]:
    """Run the unfinished cells, ``jobs`` at a time; return the failures.

    Each cell is a process of its own: a crash costs one cell, and repeating the command resumes it. ``done``
    is told who has ended, and ``look`` is called every second meanwhile.
    """
    failed: list[tuple[Cell, Failed]] = []
    running: list[subprocess.Popen[str]] = []
    pool = ThreadPoolExecutor(jobs)
    try:
        futures = {pool.submit(_run, cell, running): cell for cell in cells}
        waiting = set(futures)
        while waiting:
            ended, waiting = wait(waiting, _LOOK, FIRST_COMPLETED)
            for future in ended:
                failure = future.result()
                if failure:
                    failed.append((futures[future], failure))
                done(futures[future])
            look()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        _wait_for_all(running)
        raise
    pool.shutdown()
    return failed


def _wait_for_all(running: Sequence[subprocess.Popen[str]]) -> None:
    """Wait for terminated runs, even if the interrupt is repeated meanwhile.

    Not for their threads: Python takes a thread for ended when an interrupt breaks the wait for it.
    """
    while running:
        with contextlib.suppress(BaseException):
            time.sleep(0.05)


def _run(cell: Cell, running: list[subprocess.Popen[str]]) -> Failed | None:
    code, error = DirectoryBusy.exit_code, ""
    while code == DirectoryBusy.exit_code and not cell.directory.finished:
        process = subprocess.Popen(_command(cell), stderr=subprocess.PIPE, text=True, env=_environment())
        running.append(process)
        _, error = process.communicate()
        running.remove(process)
        code = process.returncode
        if code == DirectoryBusy.exit_code:  # an orphan of a killed comparison is running it
            time.sleep(2)
    if not cell.directory.finished:
        return Failed(code, error.strip() or f"exit code {code}")
    sys.stderr.writelines(line for line in error.splitlines(keepends=True) if line.startswith("warning: "))
    return None


def _environment() -> dict[str, str]:
    """Return this process's environment without run keys: the cell's command sets all of them."""
    keys = {f"FEDSCAL_{name.upper()}" for name in environment_keys()}
    return {name: value for name, value in os.environ.items() if name not in keys}


def _command(cell: Cell) -> list[str]:
    path = str(cell.directory.path)
    keys = {**cell.spec.all_keys(), "workers": 1}
    fresh = ["--out", path, *(f"{key}={value}" for key, value in keys.items())]
    words = ["--resume", path] if cell.directory.started else fresh
    followed = ["--track", cell.track] if cell.track else []
    return module_command("fedscal", "run", "--quiet", "--no-report", *followed, *words)
