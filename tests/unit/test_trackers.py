"""Trackers: what of a record is handed on, once each, and that no trouble of theirs reaches the run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

import fedscal
import toys
from fedscal.core.convert import dump
from fedscal.core.errors import UsageError
from fedscal.data.benchmark import Benchmark
from fedscal.experiment.answers import Answers, Example
from fedscal.experiment.records import (
    Accuracies,
    ClientRecord,
    Delivery,
    RoundRecord,
    RoundScores,
    RunSummary,
    Scores,
    Seconds,
    Traffic,
)
from fedscal.experiment.run import adapt, resume
from fedscal.experiment.spec import RunSpec
from fedscal.trackers import Result, Start, Tracker, parsed
from fedscal.trackers.flat import clean, round_numbers, summary_numbers, summary_words
from fedscal.trackers.tracker import Ending, notes, small_files

TOY = {"benchmark": "toy", "workers": 1, "pretrain_epochs": 1}


def client(domain: str, loss: float | None = None, agreement: float = math.nan) -> ClientRecord:
    epochs = None if loss is None else ({"loss": 9.0}, {"loss": loss})
    return ClientRecord(domain=domain, images=30, effective_classes=4.0, epochs=epochs, agreement=agreement)


def test_a_round_becomes_flat_numbers() -> None:
    record = RoundRecord(
        round=3,
        lr=0.5,
        participants=["n-0", "n-1", "s-0"],
        accuracy=RoundScores(Scores({"n": 80.0, "s (2)": 60.0})),
        signals={"entropy": 0.25},
        clients={"n-0": client("n", 1.0, agreement=0.5), "n-1": client("n", 3.0), "s-0": client("s (2)")},
        warnings=["careful"],
        failures={"s-0": "the loss is not finite"},
        seconds=Seconds(adapt=1.5, evaluate=0.5),
        bytes=Traffic(10, 20),
        selected_round=2,
    )
    assert round_numbers(record) == {
        "round": 3,
        "lr": 0.5,
        "accuracy/server/n": 80,
        "accuracy/server/s _282_29": 60,
        "accuracy/server/average": 70,
        "signals/entropy": 0.25,
        "loss/n": 2,  # of the last local epoch
        "loss/average": 2,
        "agreement/n": 0.5,
        "agreement/average": 0.5,
        "effective_classes/n": 4,
        "effective_classes/s _282_29": 4,
        "effective_classes/average": 4,
        "participants": 3,
        "warnings": 1,
        "failures": 1,
        "seconds/adapt": 1.5,
        "seconds/evaluate": 0.5,
        "bytes/down": 10,
        "bytes/up": 20,
        "selected_round": 2,
    }


def test_a_summary_becomes_numbers_and_words() -> None:
    summary = RunSummary(
        benchmark="toy",
        source="plain",
        method="fedscal",
        adaptation="shot",
        seed=7,
        rounds=3,
        accuracy=Accuracies(last=Scores({"dim": 90.0})),
        worse_domains=["dim", "dark"],
        seconds=Seconds(adapt=2.0),
        weights_sha256="abc",
        delivery=Delivery(2, "unsure", ["few answers agree"]),
        warnings=[],
        source_accuracy=None,
        spec_sha256="def",
        version="1",
    )
    assert summary_numbers(summary) == {
        "summary/rounds": 3,
        "summary/accuracy/last/dim": 90,
        "summary/accuracy/last/average": 90,
        "summary/seconds/adapt": 2,
        "summary/delivery/round": 2,
    }
    assert summary_words(summary) == {
        "benchmark": "toy",
        "source": "plain",
        "method": "fedscal",
        "adaptation": "shot",
        "worse_domains": "dim; dark",
        "delivery/verdict": "unsure",
        "delivery/reasons": "few answers agree",
        "weights_sha256": "abc",
        "spec_sha256": "def",
        "version": "1",
    }


def test_every_tracker_takes_a_clean_name() -> None:
    assert clean("Zürich b-2.x") == "Zürich b-2.x"
    assert clean("a/b&c\udc80") == "a_2fb_26c_dc80"


class Kept(Tracker):
    """Keeps what it is told, and fails where it is asked to."""

    name: ClassVar[str] = "kept"

    def __init__(self, fails: str = "", also: Sequence[str] = ()) -> None:
        super().__init__(also)
        self.fails, self.told, self.before = fails, list[object](), "nothing"
        self.rounds: list[int] = []
        self.files: list[str] = []

    def _maybe(self, event: str) -> None:
        self.told.append(event)
        if event == self.fails:
            raise ConnectionError("nobody answers\nat all")

    def open(self, start: Start) -> tuple[str, int]:
        self._maybe("open")
        self.keys, self.before = start.keys, start.before.run if start.before else "nothing"
        return "number one", start.before.round if start.before else -1

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        self._maybe("log")
        self.rounds.append(round_)

    def conclude(self, result: Result) -> None:
        self._maybe("conclude")
        self.result = result

    def close(self, files: Sequence[Path], ending: Ending) -> None:
        self._maybe("close")
        self.files, self.ending = [path.name for path in files], ending


def test_what_a_tracker_is_told(toy_benchmark: Benchmark, tmp_path: Path) -> None:
    spec, tracker = RunSpec.make(**TOY), Kept(also=["model/last.*"])
    with tracker:
        run = fedscal.adapt(spec, tracker, out=tmp_path / "run")
        assert "close" not in tracker.told
        (run.path / "report.html").write_text("a page")
    assert tracker.told == ["open", "log", "log", "log", "conclude", "close"]
    assert tracker.keys == spec.flat()
    assert tracker.rounds == [0, 1, 2]
    assert tracker.result.round == 2
    assert tracker.result.words["weights_sha256"] == run.summary().weights_sha256
    assert "source model" in tracker.result.verdict
    assert tracker.files == ["spec.toml", "summary.json", "report.html", "last.json", "last.safetensors"]
    assert tracker.ending == "finished"


def test_a_tracker_leaves_a_resumed_runs_rounds_alone(toy_benchmark: Benchmark, tmp_path: Path) -> None:
    spec, out = RunSpec.make(**TOY), tmp_path / "run"
    with pytest.raises(toys.Stopped), Kept() as first:
        adapt(spec, out, first, toys.StopsAfterRoundOne())
    assert (first.rounds, first.ending) == ([0, 1], "failed")
    second, late = Kept(), Kept()
    late.name = "late"  # type: ignore[misc]
    resume(out, second, late)
    assert (second.before, second.rounds) == ("number one", [2])
    assert late.rounds == [0, 1, 2]
    assert second.files == ["spec.toml", "summary.json"]
    assert {name: one.round for name, one in notes(out).items()} == {"kept": 2, "late": 2}
    after = Kept()
    after.name = "after"  # type: ignore[misc]
    resume(out, after)
    assert (after.rounds, after.ending) == ([0, 1, 2], "finished")


def test_trouble_costs_one_warning_and_no_bit(
    toy_benchmark: Benchmark, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = RunSpec.make(**TOY)
    plain = adapt(spec, tmp_path / "plain")
    for event in ("open", "log", "conclude", "close"):
        tracker = Kept(fails=event)
        followed = adapt(spec, tmp_path / event, tracker)
        assert followed.summary().weights_sha256 == plain.summary().weights_sha256
        said = capsys.readouterr().err
        assert said == "warning: kept does not follow this run any more: nobody answers\n"
        assert tracker.told.count(event) == 1
        assert tracker.told[-1] == event
        assert "ConnectionError" in (followed.path / "events.log").read_text()
        names = [{path.name for path in run.path.iterdir()} for run in (plain, followed)]
        assert names[1] - names[0] <= {"trackers.json"}


def test_notes_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    for text in ("{", '{"mlflow": 3}', "[]"):
        (tmp_path / "trackers.json").write_text(text)
        assert notes(tmp_path) == {}


def test_a_page_that_shows_images_stays_where_it_is(tmp_path: Path) -> None:
    for name in ("spec.toml", "summary.json", "report.html"):
        (tmp_path / name).touch()
    assert [path.name for path in small_files(tmp_path)] == ["spec.toml", "summary.json", "report.html"]
    example = Example(
        kind="changed", domain="a", client="a", name="1.png", before="x", after="y", png="aGVsbG8="
    )
    shown = Answers(classes=["x", "y"], model_sha256="", round=1, domains={}, examples=[example])
    (tmp_path / "answers.json").write_text(json.dumps(dump(shown)))
    assert [path.name for path in small_files(tmp_path)] == ["spec.toml", "summary.json"]


def test_a_large_file_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").touch()
    with (tmp_path / "report.html").open("wb") as file:
        file.truncate(10_000_001)
    assert [path.name for path in small_files(tmp_path)] == ["spec.toml"]


def test_names_of_trackers() -> None:
    assert parsed("mlflow, tensorboard,mlflow") == ["mlflow", "tensorboard"]
    assert parsed("") == []
    with pytest.raises(UsageError, match="tensorbord: no such tracker; did you mean 'tensorboard'"):
        parsed("tensorbord")
