"""Parts of a deployed federation are killed at random moments: ``make test-kills``.

Who operates it does what docs/deploy.md says: a server or a site whose command ended is started again,
a run that ended without a result is resumed. Nothing else is touched, and nothing may be left behind.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower_processes import Federation, Started
from flower_world import SITES, World
from harness import Zygote, rows, summary, until

pytestmark = [pytest.mark.kills, pytest.mark.timeout(4 * 3600)]

KILLS = int(os.environ.get("FEDSCAL_KILLS", "200"))
SEED = int(os.environ.get("FEDSCAL_KILLS_SEED", "0"))
PAUSE = (2.0, 24.0)
"""Seconds between two kills: 200 in an hour, with what it takes to come back."""
PARTS = {
    "server": "fedscal flower server",
    "superlink": "flower.superlink",
    "front": "flower.front",
    "executor of the server": "executor server",
    "run at the server": "flwr-serverapp",
    "run": "fedscal flower run",
    "site": "fedscal flower site",
    "supernode": "flower.supernode",
    "executor of a site": "executor site",
}
ROUNDS = 4


def processes(folder: Path) -> dict[int, str]:
    """Return the processes that were started in a folder or name it, by number."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            here = Path(os.readlink(entry / "cwd")).is_relative_to(folder) or str(folder) in words
        except OSError:
            continue
        if here and words and int(entry.name) != os.getpid():
            found[int(entry.name)] = words
    return found


@dataclass
class Operator:
    """Keeps a federation going: what ended is started again, as the documentation says."""

    machines: Federation
    server: Started
    sites: dict[str, Started]
    run: Started | None = None
    out: Path = Path()
    finished: list[Path] = field(default_factory=list)
    resumed: Counter[str] = field(default_factory=Counter)
    _again: float = 0.0

    def look(self) -> None:
        """Start again what is not there."""
        if self.server.process.poll() is not None:
            self.server = self.machines.server()
        for name, site in self.sites.items():
            if site.process.poll() is not None:
                self.sites[name] = self.machines.site(name, "--retry", 5)
        if self.run is None or (self.run.process.poll() is not None and time.monotonic() > self._again):
            self._again = time.monotonic() + 10  # nobody types faster
            self._next_run()

    def _next_run(self) -> None:
        if self.run is not None and (self.out / "summary.json").exists():
            self.finished.append(self.out)
            self.run = None
        if self.run is None:
            self.out = self.machines.folder / f"run-{len(self.finished)}"
            self.run = self.machines.run(self.out, "method=fedmoon", f"rounds={ROUNDS}", timeout=120)
        elif (self.out / "spec.toml").exists():
            self.resumed[self.out.name] += 1
            self.run = self.machines.run(self.out, resume=True, timeout=120)
        else:  # it was killed before it had written anything
            self.run = self.machines.run(self.out, "method=fedmoon", f"rounds={ROUNDS}", timeout=120)

    def work(self, seconds: float) -> None:
        """Keep it going for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(0.5)

    def finish(self) -> None:
        """Keep it going until the present run is over."""
        runs = len(self.finished)

        def over() -> bool:
            self.look()
            return len(self.finished) > runs

        until(over, 900)


@pytest.fixture
def operator(world: World, fedscal: Zygote, tmp_path: Path) -> Iterator[Operator]:
    """A federation whose parts may be killed."""
    machines = Federation(world, tmp_path, fedscal.cache)
    try:
        assert machines.start("keys", "keys", "keys", "--sites", ",".join(SITES)).wait(120) == 0
        server = machines.server()
        yield Operator(machines, server, {name: machines.site(name, "--retry", 5) for name in SITES})
    finally:
        machines.close()


def kill_one(folder: Path, draw: random.Random) -> str:
    """Kill one process of a part drawn at random; return the part, or nothing if it is not there."""
    part = draw.choice(sorted(PARTS))
    found = [number for number, words in sorted(processes(folder).items()) if PARTS[part] in words]
    if not found:
        return ""
    try:
        os.kill(draw.choice(found), signal.SIGKILL)
    except ProcessLookupError:
        return ""
    return part


def test_every_run_ends_with_the_same_bits_or_names_who_was_missing(
    operator: Operator, world: World, tmp_path: Path
) -> None:
    here = world.reference(f"fedmoon-{ROUNDS}", method="fedmoon", rounds=ROUNDS)
    draw, killed = random.Random(SEED), Counter[str]()
    began = time.monotonic()
    while killed.total() < KILLS:
        operator.work(draw.uniform(*PAUSE))
        part = kill_one(tmp_path, draw)
        if part:
            killed[part] += 1
            print(f"{time.monotonic() - began:.0f} s: {killed.total()} killed, the last a {part}", flush=True)
    operator.finish()
    same = 0
    for out in operator.finished:
        lines = rows(out)
        assert [line["round"] for line in lines] == list(range(ROUNDS + 1))
        missed = [line for line in lines if line["failures"]]
        if not missed and not any("stale" in row for line in lines for row in line["clients"].values()):
            assert summary(out)["weights_sha256"] == summary(here)["weights_sha256"]
            assert lines == rows(here)
            same += 1
        for line in missed:
            assert set(line["failures"]) <= set(SITES)
            assert all(line["failures"].values())
    print(
        f"{dict(killed)}; runs {len(operator.finished)}, same bits {same}, resumed {operator.resumed.total()}"
    )
    for command in operator.machines.commands:
        if command.process.poll() is None:
            command.process.terminate()
    until(lambda: not processes(tmp_path), 60)
    assert processes(tmp_path) == {}
