"""What real machines do to a federation: a site and the server killed in the middle of a round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flower_processes import Federation
from flower_world import World
from harness import rows, summary

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def read_lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_killed_site_is_named_the_round_goes_on_and_it_comes_back(machines: Federation) -> None:
    out = machines.folder / "killed-site"
    started = machines.run(out, "method=fedmoon", "rounds=4", timeout=300)
    started.says("round 0", 300)
    site = next(command for command in machines.commands if command.log.name.startswith("b-"))
    site.kill()
    machines.site("b", "--retry", 5)
    started.says("round 1", 400)
    assert started.wait(400) == 0, started.text
    lines = rows(out)
    seconds = read_lines(out)[1]["seconds"]["adapt"]
    assert seconds < 90  # at most 60 s until the heartbeat lapses, and the round itself
    assert list(lines[1]["failures"]) == ["b"]
    assert {client for client, row in lines[1]["clients"].items() if "epochs" in row} == {"a", "c"}
    assert any("epochs" in line["clients"]["b"] for line in lines[2:])


def test_a_killed_server_resumes_to_the_same_bits(machines: Federation, world: World) -> None:
    from fedscal.flower.control import RETURN  # Flower's server with its database, seconds for all others

    out = machines.folder / "killed-server"
    started = machines.run(out, "method=fedmoon", "rounds=3")
    started.says("round 1", 300)
    server = next(command for command in machines.commands if command.log.name.startswith("server-"))
    server.kill()  # SuperLink and ServerApp at once, in the middle of round 3
    assert started.wait(RETURN + 60) != 0, "it waits so long for the server to come back"
    assert not (out / "summary.json").exists()
    machines.server()
    again = machines.run(out, resume=True)
    assert again.wait(400) == 0, again.text
    here = world.reference("fedmoon-3", method="fedmoon", rounds=3)
    assert summary(out)["weights_sha256"] == summary(here)["weights_sha256"]
    assert rows(out) == rows(here)
