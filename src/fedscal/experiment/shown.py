"""A run directory as a person sees it in Python: what was run, how far it came, what came of it."""

from __future__ import annotations

import math
from pathlib import Path

from fedscal.core.errors import FedscalError
from fedscal.core.table import Table
from fedscal.core.text import percent, signed
from fedscal.experiment.load import Run, load_run
from fedscal.experiment.outcome import domain_rows, warnings

_HEADER = ("domain", "source model", "adapted", "change")


def run_table(path: Path) -> Table:
    """Return what a run directory holds; one that holds no run says so, for showing a value never fails."""
    try:
        run = load_run(path)
    except FedscalError:
        return Table(f"{path}: no run yet", (), [])
    rows = _rows(run)
    return Table(_title(run), _HEADER if rows else (), rows, _notes(run))


def _title(run: Run) -> str:
    method, source = run.fact("method"), run.fact("source") or "a given model"
    state = "finished" if run.finished else "not finished"
    return f"{run.path}: {method} from {source}, {state} after round {run.last_round}"


def _rows(run: Run) -> list[list[str]]:
    """Return the domains with labels; without any there is no accuracy to tell."""
    known = [row for row in (domain_rows(run) if run.rounds else ()) if not math.isnan(row.after)]
    return [[row.name, percent(row.before), percent(row.after), signed(row.delta)] for row in known]


def _notes(run: Run) -> list[str]:
    delivery = run.summary.delivery if run.summary else None
    verdict = [f"verdict: {'; '.join([delivery.verdict, *delivery.reasons])}"] if delivery else []
    return [*verdict, *(f"warning: {text}" for text in warnings(run)), *run.notes]
