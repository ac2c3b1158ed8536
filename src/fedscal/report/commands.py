"""What to type next, for a page on which it can be copied."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from fedscal.compare.row_labels import USUAL_BASELINE
from fedscal.experiment.load import Run
from fedscal.methods import METHODS
from fedscal.report.verdict import Verdict


@dataclass(frozen=True)
class Command:
    """What to type, and what for."""

    text: str
    purpose: str


def commands(run: Run, verdict: Verdict) -> list[Command]:
    """Return what to do next: the verdict's advice, or how to go on with a run on a benchmark."""
    if verdict.commands:
        return [Command(*map(str.strip, line.partition("  # ")[::2])) for line in verdict.commands]
    path = shlex.quote(str(run.path))
    if not run.finished:
        return [Command(f"fedscal run --resume {path}", "go on with it, if it was stopped")]
    method = run.fact("method")
    if run.last_round == 0 or method not in METHODS or not run.spec:
        return []
    other = method if method != USUAL_BASELINE else "fedscal"
    spec = shlex.quote(str(run.path / "spec.toml"))
    line = f"fedscal compare {spec} methods={USUAL_BASELINE},{other} seeds=0,1,2"
    return [Command(line, "is it the method, or luck? Two methods, three seeds each")]


def images_command(run: Run) -> Command:
    """Return what adds images to the page."""
    return Command(f"fedscal report {shlex.quote(str(run.path))} --images", "adds images worth a look")
