"""Processes of a federation: what they may run, how they are started, supervised, and ended."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.documents import read_record
from fedscal.core.errors import FedscalError, UsageError
from fedscal.core.extras import ExtraMissing, from_extra
from fedscal.core.options import Value
from fedscal.core.types import ClientId
from fedscal.flower.output import Output

ENDED = "fedscal ended with code"
"""How the last output line of a run that failed begins."""
_SITE_FILE = "site.json"
_FLOWER_CODE = re.compile(r"Exit Code: (\d+)")
_MEANINGS = {
    305: "the server does not know this site's key, or the site's last connection has not lapsed yet: "
    "register the key, or wait a minute",
    600: "the server's certificate is not signed by this site's ca.crt, or is for another name",
}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GRACE = 15.0


@dataclass(frozen=True)
class SiteDescription:
    """How ``fedscal flower site`` describes a site to its processes.

    Attributes:
        name: the client that it is.
        keys: its own options: where its images and its source model are.
        apps: the sha256 of other apps that it may run.
    """

    name: ClientId
    keys: Mapping[str, Value]
    apps: Sequence[str]

    @classmethod
    def read(cls, folder: Path) -> SiteDescription:
        """Read it where ``write`` left it."""
        return read_record(folder / _SITE_FILE, cls)

    def write(self, folder: Path) -> None:
        """Write it to the folder of the site's state."""
        files.write_json(folder / _SITE_FILE, dump(self))


@cache
def installed_app() -> bytes:
    """Return the app of the installed package as Flower packs it."""
    with from_extra("flower", "fedscal flower"):
        from flwr.cli.build import build_fab_from_disk
    with resources.as_file(resources.files("fedscal.flower") / "app") as folder:
        return build_fab_from_disk(Path(folder))


def allowed_hashes(others: Iterable[str] = ()) -> frozenset[str]:
    """Return the hashes of the apps that may run here: the installed package's, and those an operator lists.

    A Flower app is an archive that a server sends to its sites. Ours holds no code, so its hash says all
    about it: whatever has another hash is refused before it is unpacked.
    """
    listed = [text.strip().lower() for text in others]
    for text in listed:
        if not _SHA256.fullmatch(text):
            raise UsageError(f"'{text[:80]}' is not the sha256 of an app: 64 hexadecimal digits.")
    return frozenset([files.sha256(installed_app()), *listed])


class ProcessEnded(FedscalError):
    """A process of a federation ended by itself, or a server refused what a command needs."""


def flower_program(name: str) -> str:
    """Return the path of one of Flower's programs, or say how to install it."""
    path = shutil.which(name, path=_search_path())
    if not path:
        raise ExtraMissing("flower", f"{name} is not installed")
    return path


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
        # Flower starts its parts by name: those of this installation come first.
        "PATH": _search_path(),
    }
    return {**os.environ, **fixed}


class RunningProcess:
    """A process whose output is passed on line by line and searched for Flower's exit code."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, log: Callable[[str], None] = print
    ) -> None:
        self.name = argv[argv.index("-m") + 1].rpartition(".")[2] if "-m" in argv else Path(argv[0]).name
        self.flower_code = 0
        self._log = log
        self.process = subprocess.Popen(
            list(argv),
            env=dict(env) if env else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C in a terminal is for this process, which ends its parts in order and without tracebacks.
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if code := _FLOWER_CODE.search(line):
                self.flower_code = int(code.group(1))
            self._log(line.rstrip())

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def wait(self) -> int:
        """Wait for its end and the rest of its output."""
        code = self.process.wait()
        self._reader.join(_GRACE)
        return code

    def stop(self) -> None:
        """Send SIGTERM."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)

    def end(self, grace: float) -> None:
        """Wait until it ends; kill it after the grace period."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        if self.running:
            self.process.kill()
        self.wait()

    def exit_reason(self) -> str:
        """Say why it ended, as far as Flower reports it."""
        code = self.flower_code or self.process.returncode
        return f"{self.name} ended with code {code}: {_MEANINGS.get(code, 'its log says more')}."


@dataclass
class SupervisedProcess:
    """A process that is started again whenever it ends.

    Attributes:
        argv: its command.
        env: its environment; None means this process's own.
        pause: seconds until it is started again.
        attempts: how many starts in a row may fail until it is given up; None: it never is.
        stable: seconds after which a start has not failed.
        healthy: whether it works; it is killed if not.
    """

    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    pause: float = 1.0
    attempts: int | None = 5
    stable: float = 10.0
    healthy: Callable[[], bool] = lambda: True
    running: RunningProcess | None = None
    _started: float = 0.0
    _due: float = 0.0
    _failed: int = 0

    def start(self, output: Output) -> RunningProcess:
        """Start it, or start it again."""
        output.note(f"started: {shlex.join(self.argv)}")
        self.running = RunningProcess(self.argv, self.env, output.pass_on)
        self._started, self._due = time.monotonic(), 0.0
        return self.running

    def check(self, output: Output) -> None:
        """Start it again if it ended and its time has come; end it if it is not healthy."""
        assert self.running
        if self.running.running:
            if not self.healthy():
                output.say(f"{self.running.name} has lost its connection and is ended.")
                self.running.process.kill()
        elif not self._due:
            self.running.wait()
            self._plan(self.running.exit_reason(), output)
        elif time.monotonic() >= self._due:
            self.start(output)

    def _plan(self, exit_reason: str, output: Output) -> None:
        self._failed = self._failed + 1 if time.monotonic() - self._started < self.stable else 0
        if self.attempts is not None and self._failed >= self.attempts:
            raise ProcessEnded(f"{exit_reason} Log: {output.path}")
        output.say(f"{exit_reason} It is started again in {self.pause:g} s.")
        self._due = time.monotonic() + self.pause


@contextmanager
def supervised() -> Iterator[list[SupervisedProcess]]:
    """Supervise processes as a group: whatever happens, none is left running."""
    parts: list[SupervisedProcess] = []
    with process_group() as processes:
        try:
            yield parts
        finally:
            processes += [part.running for part in parts if part.running]


def supervise(
    parts: Sequence[SupervisedProcess], output: Output, look: Callable[[], None] = lambda: None
) -> None:
    """Restart processes that end, until this one is ended or one of them given up; look round meanwhile."""
    while True:
        for part in parts:
            part.check(output)
        look()
        time.sleep(0.5)


@contextmanager
def process_group() -> Iterator[list[RunningProcess]]:
    """Hold processes as a group: whatever happens, none is left running."""
    processes: list[RunningProcess] = []
    try:
        yield processes
    finally:
        for running in processes:
            running.stop()
        end = time.monotonic() + _GRACE
        while processes:
            # An interrupt is repeated until it is handled, which is after this: nothing may be left behind.
            with contextlib.suppress(BaseException):
                processes[-1].end(max(0.0, end - time.monotonic()))
                processes.pop()


def wait_for(condition: Callable[[], bool], running: RunningProcess, seconds: float) -> None:
    """Wait until a process is ready."""
    end = time.monotonic() + seconds
    while not condition():
        if not running.running:
            running.wait()
            raise ProcessEnded(running.exit_reason())
        if time.monotonic() > end:
            raise ProcessEnded(f"{running.name} was not ready within {seconds:g} s.")
        time.sleep(0.1)


def end_with_parent() -> None:
    """End this process when its parent is gone, however that one ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
