"""What a run says of itself while it goes on, and that nothing depends on it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import fedscal
from fedscal.data.benchmark import Benchmark
from fedscal.experiment.announcer import PROGRESS, Announcer, read_progress
from fedscal.experiment.records import UnderWay


class Onlooker(fedscal.Callback):
    """Reads, at every event that is told to it, what the file says by then."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.seen: list[tuple[str, UnderWay | None]] = []

    def _look(self, event: str) -> None:
        self.seen.append((event, read_progress(self._run)))

    def stage(self, name: str, total: int) -> None:
        self._look("stage")

    def asked(self, round_: int, clients: Any) -> None:
        self._look("asked")

    def client(self, client: str) -> None:
        self._look("client")

    def round(self, record: Any, state: Any) -> None:
        self._look("round")


def test_every_event_of_a_run_is_there_before_the_next_and_nothing_at_the_end(
    tmp_path: Path, toy_benchmark: Benchmark
) -> None:
    run = tmp_path / "run"
    onlooker = Onlooker(run)
    began = time.time()
    fedscal.adapt(fedscal.RunSpec.make(benchmark="toy", participation=1.0, workers=1), run, onlooker)
    assert not (run / PROGRESS).exists()
    assert all(now and now.started >= began for _, now in onlooker.seen)
    stages = [now.stage for event, now in onlooker.seen if event == "stage" and now]
    assert stages[-2:] == ["source model: plain", "fedscal"]
    counted = [
        (now.round, len(now.asked), len(now.answered))
        for event, now in onlooker.seen
        if event == "client" and now
    ]
    assert counted == [(round_, 4, done) for round_ in (1, 2) for done in (1, 2, 3, 4)]
    rounds = [(now.done, now.total, now.round) for event, now in onlooker.seen if event == "round" and now]
    assert rounds == [(0, 2, 0), (1, 2, 1), (2, 2, 2)]


def test_a_resumed_run_knows_the_time_that_was_spent_before(tmp_path: Path, toy_benchmark: Benchmark) -> None:
    run = tmp_path / "run"
    fedscal.adapt(fedscal.RunSpec.make(benchmark="toy", workers=1), run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    onlooker = Onlooker(run)
    fedscal.resume(run, onlooker)
    spent = sum(line["seconds"]["adapt"] + line["seconds"]["evaluate"] for line in lines)
    last = onlooker.seen[-1][1]
    assert last
    assert last.earlier == pytest.approx(spent)


def test_steps_are_written_now_and_then_and_none_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, announcer = [time.monotonic()], Announcer(tmp_path)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    announcer.stage("features of font", 1000)
    written = []
    for _ in range(1000):
        clock[0] += 0.001
        announcer.advance()
        written.append(read_progress(tmp_path))
    counts = sorted({now.done for now in written if now})
    assert counts[0] == 0
    assert 1 < len(counts) <= 3
    announcer.connected(["a"], [])
    last = read_progress(tmp_path)
    assert last
    assert last.done == 1000


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announcer = Announcer(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    announcer.stage("data", 3)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_leaves_nothing_of_it_either(tmp_path: Path, toy_benchmark: Benchmark) -> None:
    class Fails(fedscal.Callback):
        def round(self, record: Any, state: Any) -> None:
            raise RuntimeError("a callback of somebody's")

    with pytest.raises(RuntimeError, match="somebody"):
        fedscal.adapt(fedscal.RunSpec.make(benchmark="toy", workers=1), tmp_path / "run", Fails())
    assert (tmp_path / "run" / "metrics.jsonl").exists()
    assert not (tmp_path / "run" / PROGRESS).exists()


def test_a_directory_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    Announcer(tmp_path / "run").stage("data", 3)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"started": "now"}'])
def test_what_is_no_such_file_tells_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / PROGRESS).write_text(content)
    assert read_progress(tmp_path) is None


def test_answers_of_many_clients_are_written_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("fedscal.experiment.announcer.time.monotonic", lambda: now[0])
    clients = [f"c{number}" for number in range(101)]

    def said() -> int:
        progress = read_progress(tmp_path)
        assert progress
        return len(progress.answered)

    with Announcer(tmp_path) as announcer:
        announcer.asked(1, clients)
        announcer.client("c0")
        assert said() == 0, "it was written a moment ago"
        now[0] += 1
        announcer.client("c1")
        assert said() == 2
        announcer.asked(2, clients[:100])
        announcer.client("c0")
        assert said() == 1, "of few, each is written at once"
