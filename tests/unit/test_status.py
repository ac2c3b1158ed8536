"""How a run stands, in words: what it does now, who takes part, how long it will take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_report import make_lines, summarise, write_run

from fedscal.experiment.load import load_run
from fedscal.experiment.records import UnderWay
from fedscal.report.status import Person, Seen, Status, status

NOW = 10_000.0


def seen(
    path: Path, rounds: int | None, *, held: bool = False, of: int = 6, ended: bool = False, **now: Any
) -> Status:
    """Write the first rounds of a run, two seconds each, and look at it at 10,000."""
    lines = make_lines(rounds=of)[: (rounds or 0) + 1]
    if rounds is not None:
        write_run(path, lines, summarise(lines) if ended else None, rounds=of)
    under_way = UnderWay(**{"started": NOW - 60, "since": NOW - 1, **now}) if now else None
    return status(Seen(path, held, load_run(path) if rounds is not None else None, under_way), NOW)


def test_a_place_without_a_run(tmp_path: Path) -> None:
    found = seen(tmp_path / "run", None)
    assert (found.phase, found.headline) == ("waiting", "No run here yet")
    assert str(tmp_path / "run") in found.notes[0]


def test_a_federation_that_waits_names_who_is_missing_first(tmp_path: Path) -> None:
    found = seen(tmp_path, None, held=True, stage="waiting for a, b, c", connected=("b",), missing=("a", "c"))
    assert (found.phase, found.headline) == ("preparing", "Getting ready: waiting for a, b, c")
    assert found.people == [Person("a", "missing"), Person("c", "missing"), Person("b", "connected")]
    assert found.facts == {"elapsed": "1 min 0 s"}


def test_source_training_is_a_stage_with_steps(tmp_path: Path) -> None:
    found = seen(tmp_path / "run", None, held=True, stage="source model: font", done=3, total=12)
    assert (found.done, found.total) == (3, 12)


def test_a_round_under_way(tmp_path: Path) -> None:
    found = seen(
        tmp_path / "run",
        2,
        held=True,
        total=6,
        round=3,
        asked=("font-0", "font-1", "font-10", "mnist-0"),
        answered=("font-1",),
        earlier=5.0,
    )
    assert (found.phase, found.headline, found.done, found.total) == ("running", "Round 3 of 6", 2, 6)
    # Three rounds of two seconds after the present one, which has taken one of its two.
    assert found.facts == {"elapsed": "1 min 5 s", "a round": "2.0 s", "left, about": "7.0 s"}
    assert [(one.name, one.state) for one in found.people] == [
        ("font-0", "working"),
        ("font-1", "answered"),
        ("font-10", "working"),
        ("mnist-0", "working"),
    ]
    assert found.notes == ["Round 2: average 74.2 %, 4 clients took part."]


@pytest.mark.parametrize(
    ("rounds", "now", "said"),
    [
        (0, {"round": 0, "total": 6}, "Judging the source model"),
        (0, {"round": 1, "total": 6}, "Round 1 of 6"),
        (
            0,
            {"round": 1, "total": 6, "asked": ("a",), "answered": ("a",)},
            "Round 1 of 6: judging the model",
        ),
        (6, {"round": 6, "total": 6}, "All rounds are done; writing down the result"),
        (2, {}, "Round 3 of 6"),
    ],
    ids=["source", "first", "judged", "last", "older fedscal"],
)
def test_what_is_being_done(tmp_path: Path, rounds: int, now: dict[str, Any], said: str) -> None:
    found = seen(tmp_path / "run", rounds, held=True, **now)
    assert (found.phase, found.headline) == ("running", said)


def test_a_round_that_takes_longer_than_the_others_leaves_the_rest(tmp_path: Path) -> None:
    found = seen(tmp_path / "run", 2, held=True, total=6, round=3, since=NOW - 1000)
    assert found.facts["left, about"] == "6.0 s"


def test_failures_of_the_last_round_are_named(tmp_path: Path) -> None:
    lines = make_lines()
    lines[-1]["failures"] = {"font-0": "its machine is gone"}
    run = load_run(write_run(tmp_path / "run", lines, None, rounds=9))
    found = status(Seen(run.path, True, run, None), NOW)
    assert found.notes[0].endswith("4 clients took part; failed: font-0 (its machine is gone).")


def test_a_site_that_went_away_after_its_answer_is_missing(tmp_path: Path) -> None:
    found = seen(
        tmp_path / "run",
        1,
        held=True,
        round=2,
        total=6,
        asked=("a", "b"),
        answered=("a",),
        connected=("b",),
        missing=("a",),
    )
    assert found.people == [Person("a", "missing"), Person("b", "working")]


def test_the_end(tmp_path: Path) -> None:
    found = seen(tmp_path / "run", 6, ended=True)
    assert (found.phase, found.headline) == ("finished", "Finished after 6 rounds")
    assert found.facts == {"all rounds": "14.0 s", "a round": "2.0 s"}
    # Its process still holds the directory for a moment, and has nothing more to say.
    assert seen(tmp_path / "run", 6, ended=True, held=True).phase == "finished"


@pytest.mark.parametrize(
    ("clients", "command"),
    [("", "fedscal run"), ("flower:a+b", "fedscal flower run")],
    ids=["local", "flower"],
)
def test_a_stop_names_the_command_that_goes_on(tmp_path: Path, clients: str, command: str) -> None:
    run = load_run(write_run(tmp_path / "my run", make_lines()[:3], None, rounds=4, clients=clients))
    found = status(Seen(run.path, False, run, None), NOW)
    assert (found.phase, found.headline) == ("stopped", "Stopped after round 2 of 4")
    assert found.notes[-1] == f"Go on with it: {command} --resume '{run.path}'"


def test_a_run_that_was_removed(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "run", make_lines(), None))
    assert status(Seen(run.path, False, run, None, gone=True), NOW).phase == "gone"
    again = UnderWay(started=NOW, since=NOW, stage="data")
    assert status(Seen(run.path, True, run, again, gone=True), NOW).phase == "preparing"
