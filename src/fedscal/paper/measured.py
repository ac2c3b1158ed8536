"""What the rounds of finished runs tell beyond their accuracies: label gaps, and errors made together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import numpy as np

from fedscal.compare.comparison import Curve, source_tables
from fedscal.experiment.load import load_run
from fedscal.experiment.records import ClientRecord, RoundRecord
from fedscal.paper.tables import Entry

OWN, RECEIVED = "the client's labels", "the server's labels"
TOGETHER, INDEPENDENT = "both wrong", "if independent"
Shares = Mapping[str, float]
"""Percentages of wrong labels: the client's, the server's, both, and both if errors were independent."""


def of_methods(entries: Iterable[Entry], *methods: str) -> list[Entry]:
    """Return the finished runs of some methods."""
    return [entry for entry in entries if entry.cell.spec.method in methods and entry.cell.directory.finished]


def label_gaps(entries: Iterable[Entry]) -> dict[str, Curve]:
    """Return by source Delta pAcc: FedSCAl's pseudo-label accuracy minus FedLoA's, seed by seed."""
    pair = of_methods(entries, "fedloa", "fedscal")
    tables = source_tables([load_run(entry.cell.directory.path) for entry in pair])
    return {table.source: gap for table in tables for gap in table.label_gaps.values()}


def slopes(curve: Curve) -> list[float]:
    """Return the slope of each seed's curve over the rounds, by least squares.

    Round 0 does not count: both methods begin with one model, and a jump from there is no growth.
    """
    rounds, values = curve
    adapted = [place for place, index in enumerate(rounds) if index > 0]
    if len(adapted) < 2:
        return []
    fitted = np.polyfit([rounds[place] for place in adapted], values[:, adapted].T, 1)
    return [float(slope) for slope in fitted[0]]


def shares(row: ClientRecord) -> Shares:
    """Return how often a participant's labels were wrong, in %."""
    own, received = 100 - row.local_accuracy, 100 - row.received_accuracy
    return {OWN: own, RECEIVED: received, TOGETHER: row.both_wrong, INDEPENDENT: own * received / 100}


def round_shares(record: RoundRecord) -> Shares:
    """Return the means of a round's participants; empty if they were not measured."""
    measured = [shares(row) for row in record.clients.values() if not math.isnan(row.both_wrong)]
    return {name: fmean(one[name] for one in measured) for name in measured[0]} if measured else {}


def joint_errors(entries: Iterable[Entry]) -> list[list[tuple[int, Shares]]]:
    """Return for each run of FedSCAl its rounds in which the errors were measured."""
    runs = [load_run(entry.cell.directory.path).rounds for entry in of_methods(entries, "fedscal")]
    measured = ([(record.round, found) for record in run if (found := round_shares(record))] for run in runs)
    return [run for run in measured if run]


def error_curves(runs: Sequence[Sequence[tuple[int, Shares]]]) -> dict[str, Curve]:
    """Return the curves of runs over the rounds that all of them have."""
    common = sorted(set.intersection(*({index for index, _ in run} for run in runs))) if runs else []
    if not common:
        return {}
    names = list(runs[0][0][1])
    tables = [dict(run) for run in runs]
    return {
        name: (common, np.array([[table[index][name] for index in common] for table in tables]))
        for name in names
    }
