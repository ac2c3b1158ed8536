"""Read a run directory as it is: whole, still growing, or cut off in the middle of a line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedscal.core.documents import read_json, read_toml, unsealed
from fedscal.core.errors import UsageError
from fedscal.experiment.journal import raw_lines

_MOST_BROKEN = 20
"""Lines that are no records, after which a file is taken for something else and read no further."""
_LAST_ROUND = 100_000
FILES = ("spec.toml", "metrics.jsonl", "summary.json", "environment.json")


@dataclass(frozen=True)
class Run:
    """What a run directory tells; every part may be empty.

    Attributes:
        path: The directory.
        spec: The configuration.
        rounds: The metrics lines by round, the latest line of a round counting; round 0 is the source model.
        summary: The final result, if the run has come to its end.
        environment: The versions and the machine.
        notes: What could not be read, in sentences.
    """

    path: Path
    spec: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    environment: Mapping[str, Any]
    notes: Sequence[str] = ()

    @property
    def last_round(self) -> int:
        """Return the number of the last round known."""
        if self.rounds:
            return int(self.rounds[-1]["round"])
        return whole(self.summary.get("rounds")) or 0

    @property
    def finished(self) -> bool:
        """Return whether a summary exists and is not older than the metrics (a run that goes on)."""
        rounds = whole(self.summary.get("rounds"))
        return bool(self.summary) and (rounds is None or self.last_round <= rounds)

    @property
    def clients(self) -> Mapping[str, str]:
        """Return the domain of each client, by domain and then by name, ``a-2`` before ``a-10``."""
        domains = {
            str(client): str(dig(facts, "domain") or "")
            for line in self.rounds
            for client, facts in table(line.get("clients")).items()
        }
        return dict(sorted(domains.items(), key=lambda item: (natural(item[1]), natural(item[0]))))

    def fact(self, key: str) -> str:
        """Return what the run says about itself, such as its method."""
        value = self.summary.get(key, self.spec.get(key))
        return "unknown" if value is None else str(value)


def load_run(path: Path) -> Run:
    """Read a run directory.

    Raises:
        UsageError: If the directory holds nothing of a run.
    """
    if not any((path / name).is_file() for name in FILES[:3]):
        raise UsageError(f"{path} is not a run directory: it holds none of {', '.join(FILES[:3])}.")
    notes: list[str] = []
    return Run(
        path=path,
        spec=_document(path / "spec.toml", notes),
        rounds=_lines(path / "metrics.jsonl", notes),
        summary=_document(path / "summary.json", notes),
        environment=_document(path / "environment.json", notes),
        notes=notes,
    )


def _document(path: Path, notes: list[str]) -> Mapping[str, Any]:
    """Read a TOML or JSON table; a missing or broken one is empty, and noted."""
    if not path.is_file():
        # A missing summary is what makes a run unfinished: the page says that by itself, and better.
        if path.name != "summary.json":
            notes.append(f"{path.name} is missing.")
        return {}
    try:
        value = read_toml(path) if path.suffix == ".toml" else read_json(path)
    except (OSError, ValueError):
        value = None
    if not isinstance(value, Mapping):
        notes.append(f"{path.name} cannot be read and was left out.")
    return table(value)


def _lines(path: Path, notes: list[str]) -> Sequence[Mapping[str, Any]]:
    """Read the metrics; a resumed run repeats rounds, a killed one may end in half a line."""
    if not path.is_file():
        notes.append(f"{path.name} is missing.")
        return ()
    rounds: dict[int, Mapping[str, Any]] = {}
    broken: list[int] = []
    try:
        for place, raw in enumerate(raw_lines(path), start=1):
            if line := _line(raw):
                rounds[line["round"]] = line
            elif raw.strip():
                broken.append(place)
            if len(broken) == _MOST_BROKEN:
                break
    except OSError as error:
        notes.append(f"{path.name} was left out: {error.strerror}.")
    notes.extend(f"{path.name}, line {place}: not a whole record, left out." for place in broken)
    return [rounds[index] for index in sorted(rounds)]


def _line(raw: bytes) -> Mapping[str, Any]:
    try:
        line = unsealed(raw)
    except ValueError:
        return {}
    return line if 0 <= line["round"] <= _LAST_ROUND else {}


def table(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is and anything else as an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> Sequence[Any]:
    """Return a list as it is and anything else as an empty one."""
    return value if isinstance(value, list) else ()


def dig(value: Any, *keys: str) -> Any:
    """Return the value under nested keys, or None where the way ends early."""
    for key in keys:
        value = table(value).get(key)
    return value


def number(value: Any) -> float:
    """Return a finite number as it is and anything else (None, infinite, text) as NaN."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else math.nan


def whole(value: Any) -> int | None:
    """Return an integer as it is and anything else as None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sorting key that puts ``a-2`` before ``a-10``."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple(_by_value(part) if part[0] in "0123456789" else (1, 0, part) for part in parts)


def _by_value(digits: str) -> tuple[int, int, str]:
    """Sort numbers without reading them, for a name may have any length: more digits are more."""
    digits = digits.lstrip("0")
    return 0, len(digits), digits
