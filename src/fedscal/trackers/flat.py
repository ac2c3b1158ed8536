"""A run's records as flat names and numbers, which is all that trackers know. Pure functions.

The names are those of ``metrics.jsonl`` and ``summary.json``, with a slash between them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fedscal.core.convert import dump
from fedscal.experiment.client_table import column, last_epoch
from fedscal.experiment.metrics import domain_means
from fedscal.experiment.records import RoundRecord, RunSummary

_STRANGE = re.compile(r"[^\w.\- ]")
"""What one tracker or another does not take in a name; a slash parts names."""


def round_numbers(record: RoundRecord) -> dict[str, float]:
    """Return the numbers of a round: accuracies if there are labels, signals, losses, seconds, bytes."""
    means = {
        "loss": domain_means(record.clients, last_epoch(record.clients, "loss")),
        "agreement": domain_means(record.clients, column(record.clients, "agreement")),
        "effective_classes": domain_means(record.clients, column(record.clients, "effective_classes")),
    }
    return _numbers(
        dump(replace(record, clients={}))
        | {name: scores.named for name, scores in means.items()}
        | {name: len(getattr(record, name)) for name in ("participants", "failures", "warnings")}
    )


def summary_numbers(summary: RunSummary) -> dict[str, float]:
    """Return the numbers of a finished run, apart from the seed, which is a key."""
    return _numbers({"summary": dump(replace(summary, seed=None))})


def summary_words(summary: RunSummary) -> dict[str, str]:
    """Return what a finished run says of itself in words: its verdict, hashes, and the worse domains."""
    return {
        name: text
        for name, value in _leaves(dump(summary))
        if (text := "; ".join(value) if isinstance(value, list) else value) and isinstance(text, str)
    }


def clean(name: str) -> str:
    """Return a name that every tracker takes; other characters are written as their numbers.

    >>> clean("camera (b)/left")
    'camera _28b_29_2fleft'
    """
    return _STRANGE.sub(lambda found: f"_{ord(found[0]):x}", name)


def _numbers(table: Mapping[str, object]) -> dict[str, float]:
    found = {name: value for name, value in _leaves(table) if isinstance(value, int | float)}
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def _leaves(table: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{clean(name)}/")
        else:
            yield f"{above}{clean(name)}", value
