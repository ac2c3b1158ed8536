"""How the tests start the program, look at what it leaves behind, and compare two runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import pytest
from filelock import FileLock

PYTHON = sys.executable
PROGRAM = str(Path(PYTHON).with_name("fedscal"))
HERE = Path(__file__).parent
WITH_TINY = (str(HERE / "python_with_tiny"), "-m", "fedscal")
DIGITS = [
    "source=mnist",
    "rounds=2",
    "local_epochs=1",
    "pretrain_epochs=1",
    "clients_per_domain=20",
    "participation=0.05",
    "workers=1",
]
TINY = ["benchmark=tiny"]
more = partial(pytest.param, marks=pytest.mark.long)
"""A case that the default suite leaves out: others beside it, or tests/contract, show the same."""
Words = list[str | Path]
"""The words of a command."""
Copy = Callable[[Path], Path]
"""Copies a run, so that a test may damage it."""


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Return the environment of the program: the machine's, a cache of the tests', one thread."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FEDSCAL_", "PYTEST"))}
    fixed = {"FEDSCAL_CACHE": str(cache), "OMP_NUM_THREADS": "1", "COLUMNS": "120", "TEST_PYTHON": PYTHON}
    return {**kept, **fixed, **more}


@dataclass(frozen=True)
class Ended:
    """A process that ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """What it said on stderr, after a look at its form: one or two lines, no traceback."""
        lines = self.err.strip().splitlines()
        assert 1 <= len(lines) <= 2, self.err
        assert "Traceback" not in self.err
        assert "a bug:" not in self.err, self.err
        return self.err


@dataclass
class Zygote:
    """Forks the imported program; see zygote.py. All processes of a run of the tests share one."""

    cache: Path
    scratch: Path
    python: str = PYTHON
    _started: subprocess.Popen[bytes] | None = field(init=False, default=None)
    _requests: TextIO = field(init=False)
    _answers: TextIO = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        place = self.cache.with_name(f"{self.cache.name}.zygote")
        with FileLock(f"{place}.lock"):
            if not place.exists() or not self._connect(place.read_text()):
                # A path in the tests' own folder may be too long for a socket.
                address = str(Path(tempfile.mkdtemp(prefix="zygote-")) / "s")
                self._started = self._start(address)
                place.write_text(address)
                until(lambda: self._connect(address), 300)

    def _start(self, address: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.python, str(HERE / "zygote.py"), address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment(self.cache),
        )

    def _connect(self, address: str) -> bool:
        """Become one of those that a zygote serves, if there is one."""
        assert self._started is None or self._started.poll() is None, "the zygote has died"
        with socket.socket(socket.AF_UNIX) as there, contextlib.suppress(OSError):
            there.connect(address)
            self._requests, self._answers = there.makefile("w"), there.makefile("r")
            return self._answers.readline() == "ready\n"
        return False

    def _ask(self, request: dict[str, Any]) -> Any:
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        return json.loads(self._answers.readline())

    def start(
        self,
        *argv: str | Path,
        cwd: Path | None = None,
        cache: Path | None = None,
        env: dict[str, str] | None = None,
        die_at: int = 0,
        file_limit: int = 0,
        before: str = "",
    ) -> Child:
        """Start the program.

        Args:
            argv: its arguments.
            cwd: its working directory.
            cache: its cache, if not the shared one.
            env: more environment.
            die_at: kill it right before this change of the file system, counted from 1.
            file_limit: the bytes a file may have (RLIMIT_FSIZE).
            before: Python to execute in it before it starts.
        """
        self._count += 1
        base = self.scratch / f"process-{self._count}"
        request = {
            "argv": [str(word) for word in argv],
            "cwd": str(cwd or self.scratch),
            "env": environment(cache or self.cache, **{"TEST_PYTHON": self.python, **(env or {})}),
            "stdout": f"{base}.out",
            "stderr": f"{base}.err",
            "count_file": f"{base}.count",
            "die_at": die_at,
            "file_limit": file_limit,
            "before": before,
        }
        return Child(self, self._ask(request), base)

    def __call__(self, *argv: str | Path, timeout: float = 120, **how: Any) -> Ended:
        """Start the program and wait for its end."""
        return self.start(*argv, **how).wait(timeout)

    def close(self) -> None:
        """Go; the zygote ends when all have gone."""
        self._requests.close()
        self._answers.close()
        if self._started:
            self._started.wait(300)


@dataclass(frozen=True)
class Child:
    """A forked program."""

    zygote: Zygote
    pid: int
    base: Path

    def wait(self, timeout: float = 120) -> Ended:
        """Wait for its end; one that does not end is killed and is a failure."""
        code = self.zygote._ask({"wait": self.pid, "seconds": timeout})
        if code is None:
            self.send(9)
            self.zygote._ask({"wait": self.pid, "seconds": 10})
            raise AssertionError(f"still running after {timeout} s: {self.out}{self.err}")
        return Ended(code, self.out, self.err)

    def running(self) -> bool:
        """Whether it is alive."""
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"

    def send(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    @property
    def out(self) -> str:
        """What it has printed so far."""
        return self._written(".out")

    @property
    def err(self) -> str:
        """What it has printed on stderr so far."""
        return self._written(".err")

    def _written(self, suffix: str) -> str:
        file = self.base.with_suffix(suffix)
        return file.read_text() if file.exists() else ""  # a child that was born just now has none yet

    @property
    def changes(self) -> int:
        """How many changes of the file system it made, if ``die_at`` was given."""
        return int(self.base.with_suffix(".count").read_text())


def program(cache: Path, *argv: str | Path, command: Sequence[str] = (PROGRAM,), **how: Any) -> Ended:
    """Run the installed program as a process of its own."""
    env = environment(cache, **how.pop("env", {}))
    argv = (*command, *map(str, argv))
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=180, check=False, **how)
    return Ended(done.returncode, done.stdout, done.stderr)


class Program(subprocess.Popen[str]):
    """A process that does not outlive a test that failed."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind:
            self.kill()
        super().__exit__(kind, error, trace)


def start_program(cache: Path, *argv: str | Path, command: Sequence[str] = (PROGRAM,), **how: Any) -> Program:
    """Start the installed program; Ctrl-C reaches it even if the tests run in the background."""
    return Program(
        [*command, *map(str, argv)],
        env=environment(cache),
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        **how,
    )


def start_tiny(cache: Path, *argv: str | Path, **how: Any) -> Program:
    """Start the program as a process of its own that knows the tiny benchmarks."""
    return start_program(cache, *argv, command=WITH_TINY, **how)


@dataclass(frozen=True)
class Gate:
    """A place in the program at which every process waits until the gate is opened."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()

    def before(self, module: str, name: str, passing: int = 0) -> str:
        """Return Python that puts the gate before a function, whose first calls may pass."""
        return f"""
import contextlib, os, pathlib, time, {module} as module
real, calls, folder = module.{name}, 0, pathlib.Path({str(self.folder)!r})
def held(*args):
    global calls
    calls += 1
    if calls > {passing}:
        with contextlib.suppress(FileNotFoundError): (folder / str(os.getpid())).touch()
        while folder.exists(): time.sleep(0.01)
    return real(*args)
module.{name} = held"""

    @property
    def reached(self) -> list[int]:
        """The pids of the processes that wait, or have waited."""
        return [int(path.name) for path in self.folder.iterdir()]

    def open(self) -> None:
        """Let them go on."""
        self.folder.rename(self.folder.with_name(f"{self.folder.name}-opened"))


def once(path: Path, make: Callable[[], None]) -> Path:
    """Make something once, whichever process comes first."""
    done = path.with_name(f"{path.name}.done")
    with FileLock(path.with_name(f"{path.name}.lock")):
        if not done.exists():
            make()
            done.touch()
    return path


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def judged(run: Path, round_: int) -> bool:
    """Whether the line of a round is there: it comes after its checkpoint, when its model was judged."""
    metrics = run / "metrics.jsonl"
    return metrics.exists() and metrics.read_bytes().count(b"\n") > round_


def summary(run: Path) -> dict[str, Any]:
    """Return summary.json."""
    value: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return value


def rows(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without what a clock says, and the checksums that depend on it."""
    return [_timeless(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]


_OF_CLOCK = {"seconds", "check", "clients_sha256"}


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(part) for name, part in value.items() if name not in _OF_CLOCK}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


def same_result(run: Path, other: Path) -> bool:
    """Whether two runs ended with the same bits in weights, metrics and models."""
    return (
        summary(run)["weights_sha256"] == summary(other)["weights_sha256"]
        and rows(run) == rows(other)
        and {path.name: path.read_bytes() for path in (run / "model").glob("[!.]*")}
        == {path.name: path.read_bytes() for path in (other / "model").glob("[!.]*")}
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, to see that nothing was changed."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def children(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] not in "ZX":
            found.append(int(entry.parent.name))
    return found


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
