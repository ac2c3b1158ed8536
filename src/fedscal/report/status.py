"""How a run stands at this moment, in words: for whoever watches it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal

from fedscal.core.errors import some
from fedscal.core.text import UNKNOWN, count, duration
from fedscal.core.types import ClientId
from fedscal.data.remote import PREFIX
from fedscal.experiment.load import Run, natural
from fedscal.experiment.metrics import in_short, total_seconds
from fedscal.experiment.records import RoundRecord, UnderWay

Phase = Literal["waiting", "preparing", "running", "finished", "stopped", "gone"]
State = Literal["answered", "working", "connected", "missing"]
_RECENT = 5
"""Rounds whose mean says how long the next one takes: a machine may have become slower or faster."""
_NAMED = 3
_MOST_PEOPLE = 60


@dataclass(frozen=True)
class Seen:
    """What a look at a run directory found.

    Attributes:
        held: whether a process works there.
        run: what the directory tells, or told last; None: there never was a run.
        now: what the process says of itself.
        gone: whether there was a run that is there no more.
    """

    path: Path
    held: bool
    run: Run | None
    now: UnderWay | None
    gone: bool = False


@dataclass(frozen=True)
class Person:
    """A client or a site in the present round."""

    name: ClientId
    state: State


@dataclass(frozen=True)
class Status:
    """What a person wants to know at a glance.

    Attributes:
        phase: the state in one word.
        headline: the same in a sentence.
        done: steps that are done.
        total: all steps; 0: nobody knows, or nothing is being done.
        facts: times by name.
        people: who takes part now.
        notes: further sentences.
    """

    phase: Phase
    headline: str
    done: int = 0
    total: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)
    people: Sequence[Person] = ()
    notes: Sequence[str] = ()


def status(seen: Seen, clock: float) -> Status:
    """Return how a run stands at a moment, in seconds since 1970."""
    run, now = seen.run, seen.now
    if seen.gone and not seen.held:
        notes = [f"{seen.path} holds it no more; what it told last is below."]
        return Status("gone", "The run was removed", notes=notes)
    if seen.held and now and now.round is None:
        return _preparing(now, clock)
    if seen.held and not (run and run.finished and not now):
        return _running(run, now, clock)
    if run is None:
        notes = [f"Waiting for one to begin in {seen.path}; it will be shown here."]
        return Status("waiting", "No run here yet", notes=notes)
    return _finished(run) if run.finished else _stopped(run)


def _preparing(now: UnderWay, clock: float) -> Status:
    return Status(
        "preparing",
        f"Getting ready: {now.stage}" if now.stage else "Getting ready",
        now.done,
        now.total,
        _known({"elapsed": clock - now.started}),
        _people(now),
    )


def _running(run: Run | None, now: UnderWay | None, clock: float) -> Status:
    """Describe a run whose rounds have begun; an older fedscal says nothing of the present one."""
    rounds = run.rounds if run else ()
    done, total = run.last_round if run else 0, (now.total if now else _planned(run)) or 0
    times = {"elapsed": now.earlier + clock - now.started if now else math.nan}
    pace = _pace(rounds)
    spent = clock - now.since if now and now.round and now.round > done else 0.0
    merged = max(done, (now.round or 1) - 1) if now else done  # over machines, one may be yet to be judged
    times |= {"a round": pace, "left, about": _left(pace, spent, total - merged)}
    notes = _last_round(rounds)
    return Status("running", _present(now, done, total), done, total, _known(times), _people(now), notes)


def _present(now: UnderWay | None, done: int, total: int) -> str:
    """Say what is being done: a round goes from asking through answers to the judgement of the new model."""
    present = now.round if now and now.round is not None else done + 1
    if present == 0:
        return "Judging the source model"
    if done >= total > 0:
        return "All rounds are done; writing down the result"
    judged = now and now.asked and len(now.answered) >= len(now.asked)
    of = f" of {total}" if total else ""
    return f"Round {present}{of}" + (": judging the model" if judged else "")


def _left(pace: float, spent: float, rounds: int) -> float:
    """Return the seconds of the rounds that are left, of which one has taken some already."""
    return max(pace - spent, 0.0) + pace * (rounds - 1) if rounds > 0 else math.nan


def _pace(rounds: Sequence[RoundRecord]) -> float:
    recent = [record.seconds for record in rounds if record.round > 0][-_RECENT:]
    return fmean(one.adapt + one.evaluate for one in recent) if recent else math.nan


def _people(now: UnderWay | None) -> list[Person]:
    """Return the sites of a federation, or on one machine those that are asked; the missing ones first."""
    if now is None:
        return []
    people = [Person(name, _state(name, now)) for name in {*now.asked, *now.connected, *now.missing}]
    people.sort(key=lambda person: (person.state != "missing", natural(person.name)))
    return people[:_MOST_PEOPLE]


def _state(name: ClientId, now: UnderWay) -> State:
    if name in now.missing:
        return "missing"
    if name in now.answered:
        return "answered"
    return "working" if name in now.asked else "connected"


def _last_round(rounds: Sequence[RoundRecord]) -> list[str]:
    """Say in a sentence what the last round on record brought."""
    if not rounds:
        return []
    record = rounds[-1]
    took_part = f", {count(len(record.participants), 'client')} took part" if record.round else ""
    failed = [f"{client} ({why})" for client, why in record.failures.items()]
    lost = f"; failed: {some(failed, _NAMED)}" if failed else ""
    return [f"Round {record.round}: {in_short(record)}{took_part}{lost}."]


def _finished(run: Run) -> Status:
    done = run.last_round
    facts = _known({"all rounds": _spent(run), "a round": _pace(run.rounds)})
    return Status("finished", f"Finished after {count(done, 'round')}", done, done, facts)


def _stopped(run: Run) -> Status:
    done, planned = run.last_round, _planned(run)
    of = f" of {planned}" if planned else ""
    headline = f"Stopped after round {done}{of}" if run.rounds else "Stopped before the first round"
    command = "fedscal flower run" if str(run.spec.get("clients")).startswith(PREFIX) else "fedscal run"
    notes = [*_last_round(run.rounds), f"Go on with it: {command} --resume {shlex.quote(str(run.path))}"]
    return Status("stopped", headline, done, planned, _known({"all rounds": _spent(run)}), (), notes)


def _spent(run: Run) -> float:
    total = total_seconds(run.rounds)
    return total.adapt + total.evaluate


def _planned(run: Run | None) -> int:
    planned = run.spec.get("rounds") if run else 0
    return planned if isinstance(planned, int) else 0


def _known(times: Mapping[str, float]) -> dict[str, str]:
    written = {name: duration(seconds) for name, seconds in times.items()}
    return {name: text for name, text in written.items() if text != UNKNOWN}
