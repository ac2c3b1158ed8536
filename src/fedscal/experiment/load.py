"""Read a run directory as it is: whole, still growing, or damaged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from fedscal.core import files
from fedscal.core.convert import Misfit, convert, in_short
from fedscal.core.documents import read_json, read_toml
from fedscal.core.errors import UsageError
from fedscal.core.options import Value
from fedscal.experiment.answers import ANSWERS, Answers
from fedscal.experiment.audits import AUDIT, Audit
from fedscal.experiment.client_table import domains_of
from fedscal.experiment.journal import Journal
from fedscal.experiment.records import Environment, RoundRecord, RunSummary

_OPTIONAL = ("summary.json", AUDIT, ANSWERS)
"""What is missing without a fault: a run may be unfinished, which the page says better, or not audited."""
FILES = ("spec.toml", "metrics.jsonl", "summary.json")
T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """What a run directory tells; every part may be missing.

    Attributes:
        path: The directory.
        spec: The configuration.
        rounds: The rounds; round 0 is the source model.
        summary: The final result, if the run has come to its end.
        environment: The versions and the machine.
        audit: What labelled images said about it, if it was audited.
        answers: What its models answer to the images, if it was asked; of the model that it has now.
        notes: What could not be read, in sentences.
    """

    path: Path
    spec: Mapping[str, Value]
    rounds: Sequence[RoundRecord]
    summary: RunSummary | None
    environment: Environment | None
    audit: Audit | None = None
    answers: Answers | None = None
    notes: Sequence[str] = ()

    @property
    def last_round(self) -> int:
        """Return the number of the last round known."""
        if self.rounds:
            return self.rounds[-1].round
        return self.summary.rounds if self.summary else 0

    @property
    def finished(self) -> bool:
        """Return whether a summary exists and is not older than the metrics (a run that goes on)."""
        return self.summary is not None and self.last_round <= self.summary.rounds

    @cached_property
    def clients(self) -> Mapping[str, str]:
        """The domain of each client, by domain and then by name, ``a-2`` before ``a-10``."""
        known = {
            client: domain for line in self.rounds for client, domain in domains_of(line.clients).items()
        }
        return dict(sorted(known.items(), key=lambda item: (natural(item[1]), natural(item[0]))))

    def fact(self, key: str) -> str:
        """Return what the run says about itself, such as its method."""
        value = getattr(self.summary, key, None)
        value = self.spec.get(key) if value is None else value
        return "unknown" if value is None else str(value)


def load_run(path: Path, growing: bool = False) -> Run:
    """Read a run directory; ``growing``: a process is writing there, and a line that is cut off is no damage.

    Raises:
        UsageError: If the directory holds nothing of a run.
    """
    if not any((path / name).is_file() for name in FILES):
        lacking = f"is not a run directory: it holds none of {', '.join(FILES)}."
        raise UsageError(files.fault(path, "run directory", lacking))
    notes: list[str] = []
    summary = _document(path / "summary.json", RunSummary, notes)
    return Run(
        path=path,
        spec=_document(path / "spec.toml", dict[str, Value], notes) or {},
        rounds=Journal(path / "metrics.jsonl").salvage(notes, growing),
        summary=summary,
        environment=_document(path / "environment.json", Environment, notes),
        audit=_document(path / AUDIT, Audit, notes, whole=True),
        answers=_of_its_model(_document(path / ANSWERS, Answers, notes, whole=True), summary, notes),
        notes=notes,
    )


def _of_its_model(answers: Answers | None, summary: RunSummary | None, notes: list[str]) -> Answers | None:
    """Return the answers, unless another model gave them: the run went on, or was done again, after them."""
    if answers is None or (summary and summary.weights_sha256 == answers.model_sha256):
        return answers
    notes.append(
        f"{ANSWERS} is not of this run's model and was left out; fedscal report --no-images asks anew."
    )
    return None


def _document(path: Path, kind: type[T], notes: list[str], whole: bool = False) -> T | None:
    """Read a TOML or JSON table; note what is missing or cannot be read; ``whole``: all of it or nothing."""
    if not path.is_file():
        if path.name not in _OPTIONAL:
            notes.append(f"{path.name} is missing.")
        return None
    faults: list[Misfit] = []
    try:
        value = read_toml(path) if path.suffix == ".toml" else read_json(path)
        made = convert(value, kind, faults=None if whole else faults)
    except (OSError, ValueError):
        notes.append(f"{path.name} cannot be read and was left out.")
        return None
    if faults:
        notes.append(f"{path.name}, left out: {in_short(faults)}.")
    return made


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sorting key that puts ``a-2`` before ``a-10``."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple(_by_value(part) if part[0] in "0123456789" else (1, 0, part) for part in parts)


def _by_value(digits: str) -> tuple[int, int, str]:
    """Sort numbers without reading them, for a name may have any length: more digits are more."""
    digits = digits.lstrip("0")
    return 0, len(digits), digits
