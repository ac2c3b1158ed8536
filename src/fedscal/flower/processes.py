"""Flower's own programs, started with the right flags and environment, watched, and ended."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedscal.core import files
from fedscal.core.documents import read_json
from fedscal.core.errors import FedscalError
from fedscal.core.extras import ExtraMissing

ENDED = "fedscal ended with code"
"""What the last words of a run that failed begin with."""
SITE_FILE = "site.json"
"""Describes a site to the processes that work for it."""
_FLOWER_CODE = re.compile(r"Exit Code: (\d+)")
_MEANINGS = {
    305: "the server does not know this site's key, or the site's last connection has not lapsed yet: "
    "register the key, or wait a minute",
    600: "the server's certificate is not signed by this site's ca.crt, or is for another name",
}
_GRACE = 15.0


def described(folder: Path) -> dict[str, Any]:
    """Return what ``fedscal flower site`` wrote down of a site: its name, its keys, other apps it may run."""
    return dict(read_json(folder / SITE_FILE))


class ProgramEnded(FedscalError):
    """A program of Flower ended by itself."""


def program(name: str) -> str:
    """Return the path of one of Flower's programs, or say how to install it."""
    found = shutil.which(name, path=_search_path())
    if not found:
        raise ExtraMissing("flower", f"{name} is not installed")
    return found


def _search_path() -> str:
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: nothing is sent home, fetched or installed."""
    fixed = {
        "FLWR_HOME": str(files.make_dir(home)),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": os.environ.get("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.5"),
        # Flower starts its parts by name: those of this installation must be found first.
        "PATH": _search_path(),
    }
    return {**os.environ, **fixed}


class Running:
    """A program that was started, whose words are passed on and searched for Flower's exit code."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, say: Callable[[str], None] = print
    ) -> None:
        self.name = argv[2].rpartition(".")[2] if argv[1] == "-m" else Path(argv[0]).name
        self.flower_code = 0
        self._say = say
        self.process = subprocess.Popen(
            list(argv),
            env=dict(env) if env else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            found = _FLOWER_CODE.search(line)
            if found:
                self.flower_code = int(found.group(1))
            self._say(line.rstrip())

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def wait(self) -> int:
        """Wait for its end and its last words."""
        code = self.process.wait()
        self._reader.join(_GRACE)
        return code

    def stop(self) -> None:
        """Ask it to end."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)

    def end(self, grace: float) -> None:
        """End it, not gently if it does not obey."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        if self.running:
            self.process.kill()
        self.wait()

    def verdict(self) -> str:
        """Say why it ended, as far as Flower tells."""
        code = self.flower_code or self.process.returncode
        return f"{self.name} ended with code {code}: {_MEANINGS.get(code, 'see above')}."


@dataclass
class Part:
    """A program that is started again whenever it ends.

    Attributes:
        argv: what is started.
        env: its environment; None means this process's own.
        pause: seconds until it is started again.
        lives: how many short lives in a row it has until it is given up; None: it never is.
        steady: seconds after which its life was not a short one.
        healthy: whether it does what it is for.
    """

    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    pause: float = 1.0
    lives: int | None = 5
    steady: float = 10.0
    healthy: Callable[[], bool] = lambda: True
    running: Running | None = None
    _started: float = 0.0
    _due: float = 0.0
    _short: int = 0

    def start(self, say: Callable[[str], None]) -> Running:
        """Start it, or start it again."""
        say(f"started: {shlex.join(self.argv)}")
        self.running, self._started, self._due = Running(self.argv, self.env, say), time.monotonic(), 0.0
        return self.running

    def check(self, say: Callable[[str], None]) -> None:
        """Start it again if it ended and its time has come; end it if it is not healthy."""
        assert self.running
        if self.running.running:
            if not self.healthy():
                say(f"{self.running.name} is deaf and is ended.")
                self.running.process.kill()
        elif not self._due:
            self.running.wait()
            self._plan(self.running.verdict(), say)
        elif time.monotonic() >= self._due:
            self.start(say)

    def _plan(self, verdict: str, say: Callable[[str], None]) -> None:
        self._short = self._short + 1 if time.monotonic() - self._started < self.steady else 0
        if self.lives is not None and self._short >= self.lives:
            raise ProgramEnded(verdict)
        say(f"{verdict} It is started again in {self.pause:g} s.")
        self._due = time.monotonic() + self.pause


@contextmanager
def kept() -> Iterator[list[Part]]:
    """Hold parts that belong together: whatever happens, none is left running."""
    parts: list[Part] = []
    with together() as programs:
        try:
            yield parts
        finally:
            programs += [part.running for part in parts if part.running]


def keep(parts: Sequence[Part], say: Callable[[str], None]) -> None:
    """Keep parts running until this process is ended, or one of them cannot be."""
    while True:
        for part in parts:
            part.check(say)
        time.sleep(0.5)


@contextmanager
def together() -> Iterator[list[Running]]:
    """Hold programs that belong together: whatever happens, none is left running."""
    programs: list[Running] = []
    try:
        yield programs
    finally:
        for running in programs:
            running.stop()
        end = time.monotonic() + _GRACE
        while programs:
            # An interrupt knocks until it is heard, which is after this: nothing may be left behind.
            with contextlib.suppress(BaseException):
                programs[-1].end(max(0.0, end - time.monotonic()))
                programs.pop()


def wait_for(condition: Callable[[], bool], running: Running, seconds: float) -> None:
    """Wait until a program is ready."""
    end = time.monotonic() + seconds
    while not condition():
        if not running.running:
            running.wait()
            raise ProgramEnded(running.verdict())
        if time.monotonic() > end:
            raise ProgramEnded(f"{running.name} was not ready within {seconds:g} s.")
        time.sleep(0.1)
