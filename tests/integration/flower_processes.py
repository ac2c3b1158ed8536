"""Flower's real programs on this machine, by the commands that a user types; none outlives its test."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flower_world import SITES, World
from harness import HERE, PROGRAM, environment, until

from fedscal.flower.endpoint import free_port

ODD_PYTHON = str(HERE / "python_with_tiny")
START = 120
"""Seconds within which a program must be ready, on a busy machine too."""


@dataclass
class Started:
    """A command that was started in a session of its own."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def text(self) -> str:
        """What it has said so far."""
        return self.log.read_text(errors="replace")

    def says(self, words: str, seconds: float = START) -> None:
        """Wait until it has said something."""
        until(lambda: words in self.text or self.process.poll() is not None, seconds)
        assert words in self.text, self.text

    def wait(self, seconds: float) -> int:
        """Wait for its end."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s: {self.text}") from None

    def kill(self) -> None:
        """Kill it and all that it started, at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()


@dataclass
class Federation:
    """A server and its sites."""

    world: World
    folder: Path
    cache: Path
    port: int = field(default_factory=free_port)
    commands: list[Started] = field(default_factory=list)

    @property
    def keys(self) -> Path:
        """The folder of keys."""
        return self.folder / "keys"

    def start(self, name: str, *words: Any, sabotage: str = "") -> Started:
        """Start a command of the program; ``sabotage`` is Python that it executes first."""
        log = self.folder / f"{name}-{len(self.commands)}.log"
        program = [ODD_PYTHON, "-m", "fedscal"] if sabotage else [PROGRAM]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*program, "flower", *map(str, words)],
                cwd=self.folder,
                env=environment(self.cache, TEST_BEFORE=textwrap.dedent(sabotage)),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.commands.append(Started(process, log))
        return self.commands[-1]

    def server(self, *words: Any, sabotage: str = "") -> Started:
        """Start the server and wait until it knows its sites."""
        where = ["--host", "127.0.0.1", "--port", self.port]
        started = self.start("server", "server", "--keys", self.keys, *where, *words, sabotage=sabotage)
        started.says("server ready")
        return started

    def site(
        self,
        name: str,
        *words: Any,
        keys: Path | None = None,
        key: str = "",
        model: Path | None = None,
        sabotage: str = "",
    ) -> Started:
        """Start a site."""
        return self.start(
            *(name, "site", "--name", name, "--data", self.world.data(name if name in SITES else "a")),
            *("--key", (keys or self.keys) / (key or name) / "key", "--server", f"127.0.0.1:{self.port}"),
            *("--model", model or self.world.model),
            *("--state", f"state-{key or name}", *words),
            sabotage=sabotage,
        )

    def run(
        self, out: Path, *words: Any, resume: bool = False, timeout: int = 120, sites: Any = SITES
    ) -> Started:
        """Start a run, or go on with one."""
        keys = [f"{key}={value}" for key, value in self.world.keys().items() if key != "clients"]
        what = ["--resume", out] if resume else [*keys, "--sites", ",".join(sites), "--out", out]
        limits = ["--wait", 400, "--round-timeout", timeout]
        return self.start("run", "run", *what, *words, *limits)

    def close(self) -> None:
        """End everything."""
        for command in reversed(self.commands):
            command.kill()


@contextmanager
def federation(world: World, folder: Path, cache: Path, others: Collection[str] = ()) -> Iterator[Federation]:
    """Make keys, also for others, start the server and its three sites; end them all."""
    found = Federation(world, folder, cache)
    try:
        assert found.start("certs", "certs", "keys", "--sites", ",".join([*SITES, *others])).wait(START) == 0
        found.server()
        for name in SITES:
            found.site(name)
        yield found
    finally:
        found.close()
