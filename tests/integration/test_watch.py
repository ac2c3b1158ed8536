"""``fedscal watch`` beside a real run: from before it begins, through a kill and --resume, to its end."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from harness import TINY, Child, Gate, Zygote, contents, until

pytest.importorskip("jinja2")


class Watch:
    """The command, and what its page would say."""

    def __init__(self, fedscal: Zygote, run: Path, *words: str) -> None:
        self.process: Child = fedscal.start("watch", run, *words)
        until(lambda: self.process.out.endswith("/\n") or not self.process.running())
        self.url = urlsplit(self.process.out.strip())

    def says(self, headline: str) -> str:
        """Wait until the strip has a headline; return the strip."""
        until(lambda: f"<strong>{headline}" in self.strip())
        return self.strip()

    def strip(self) -> str:
        asked = http.client.HTTPConnection(self.url.netloc, timeout=30)
        asked.request("GET", f"{self.url.path}state")
        strip: str = json.loads(asked.getresponse().read())["strip"]
        asked.close()
        return strip

    def end(self) -> None:
        """Press Ctrl-C."""
        self.process.send(signal.SIGINT)
        ended = self.process.wait()
        assert ended.code == 128 + signal.SIGINT
        assert ended.err.splitlines() == [
            "Open this address on this machine. Ctrl-C ends the view, not the run.",
            "interrupted. The run goes on without this view.",
        ]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{43}/\n", ended.out)


def test_a_run_is_followed_through_a_kill_and_a_resume_to_its_end(fedscal: Zygote, tmp_path: Path) -> None:
    run, words = tmp_path / "run", ["--quiet", "--no-report"]
    watch = Watch(fedscal, run)
    watch.says("No run here yet")
    gate = Gate(tmp_path / "gate")
    hold = gate.before("fedscal.server.rounds", "screen", passing=1)
    first = fedscal.start("run", *TINY, "workers=1", *words, "--out", run, before=hold)
    strip = watch.says("Round 2 of")
    assert "Round 1: average " in strip
    assert "working</span>" in strip
    assert "left, about" in strip
    first.send(signal.SIGKILL)
    first.wait()
    assert f"fedscal run --resume {run}" in watch.says("Stopped after round 1 of")
    second = fedscal.start("run", "--resume", run, *words, before=hold)
    watch.says("Round 2 of")
    gate.open()
    assert second.wait().code == 0
    before = contents(run)
    watch.says("Finished after")
    watch.end()
    assert contents(run) == before


def test_a_port_that_is_taken_is_one_sentence(fedscal: Zygote, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = fedscal("watch", tmp_path, "--port", str(port))
    assert ended.code == 2
    assert f"port {port} of this machine cannot be used" in ended.error


def test_a_file_is_no_run(fedscal: Zygote, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = fedscal("watch", tmp_path / "file")
    assert ended.code == 2
    assert "is not a directory" in ended.error
    assert ended.out == ""
