"""A federation of real processes: SuperLink and three SuperNodes over TLS with registered keys.

What a default run of the tests asks of such a federation is in ``test_flower_outsiders.py``: one is enough.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower_processes import Federation
from flower_world import METHODS, World
from harness import rows, summary
from test_flower_rounds import assert_clean

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_real_machines_change_no_bit_and_nothing_but_the_declared_leaves_a_site(
    machines: Federation, world: World, tmp_path: Path
) -> None:
    outs = {method: tmp_path / method for method in METHODS}
    runs = {method: machines.run(out, f"method={method}") for method, out in outs.items()}  # all at a time
    for method, started in runs.items():
        assert started.wait(400) == 0, started.text
        here = world.reference(method, method=method)
        assert summary(outs[method])["weights_sha256"] == summary(here)["weights_sha256"]
        assert rows(outs[method]) == rows(here)
    logs = ("fedscal-server/superlink.db*", "fedscal-server/*.log", "server-*.log")
    at_server = [path for pattern in logs for path in machines.folder.glob(pattern)]
    assert {"server.log", "run.log"} <= {path.name for path in at_server}
    at_server += [path for out in outs.values() for path in out.rglob("*") if path.is_file()]
    at_server += [started.log for started in runs.values()]
    seen = b"".join(path.read_bytes() for path in at_server if path.name not in ("spec.toml", "report.html"))
    assert_clean(
        seen.replace(str(world.model).encode(), b"")
        .replace(str(tmp_path).encode(), b"")
        .replace(str(machines.folder).encode(), b""),
        world,
    )


def test_the_screen_is_for_people_and_the_noise_in_the_log(machines: Federation, tmp_path: Path) -> None:
    started = machines.run(tmp_path / "run", "rounds=1")
    assert started.wait(400) == 0, started.text
    server, site = machines.commands[1], machines.commands[2]
    server.says("3 of 3 sites connected: a, b, c")
    site.says("round 1: answered after")
    for command in (server, site, started):
        noise = [text for text in ("INFO", "WARNING", "--isolation", "uvicorn") if text in command.text]
        assert not noise, command.text
    assert "waiting for" in started.text
    assert "INFO" in (machines.folder / "state-a" / "site.log").read_text()
    assert "--isolation" in (machines.folder / "fedscal-server" / "server.log").read_text()


def test_a_key_that_nobody_registered_is_refused(machines: Federation) -> None:
    assert machines.start("keys", "keys", "keys", "--sites", "stranger").wait(120) == 0
    stranger = machines.site("stranger", "--retry", 0)
    assert stranger.wait(120) != 0
    assert "does not know this site's key" in stranger.text
