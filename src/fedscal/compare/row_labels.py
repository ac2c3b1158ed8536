"""The table row of a run: runs that differ only in source and seed share a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedscal.core.errors import UsageError
from fedscal.core.options import as_typed
from fedscal.experiment.spec import EXECUTION_KEYS, RunSpec
from fedscal.methods import ADAPTATIONS, METHODS

_APART = frozenset({"benchmark", "source", "seed", "method", "adaptation"}) | EXECUTION_KEYS
"""Keys that are not named in a label: tables are divided by the first three, labels begin with the others."""
USUAL_BASELINE = "fedloa"
"""The default baseline."""
_DAGGER = "\N{DAGGER}"
Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A method, its adaptation, and how it differs from the method's other rows.

    Attributes:
        method: The method's name.
        adaptation: The adaptation's name.
        named: The keys that vary between the method's rows, with their values where they are not the default.
    """

    method: str
    adaptation: str
    named: tuple[tuple[str, str], ...] = ()

    @property
    def usual(self) -> bool:
        """Whether the adaptation is the method's own."""
        return self.method in METHODS and METHODS[self.method].adaptation == self.adaptation

    @property
    def caveat(self) -> str:
        """A warning about its numbers, if any."""
        return METHODS[self.method].caveat if self.method in METHODS else ""

    @property
    def label(self) -> str:
        """The row in a few words.

        >>> Row("fedscal", "shot", (("lambda_server", "0"),)).label
        'FedSCAl, lambda_server=0'
        """
        title = METHODS[self.method].title if self.method in METHODS else self.method
        title += f" {_DAGGER}" if self.caveat else ""
        if not self.usual:
            registered = self.adaptation in ADAPTATIONS
            title += f" + {ADAPTATIONS[self.adaptation].title if registered else self.adaptation}"
        return title + "".join(f", {name}={value}" for name, value in self.named)


def caveats(rows: Iterable[Row]) -> list[str]:
    """Return a sentence for the daggers in the rows' labels, if there are any."""
    by_method = {METHODS[row.method].title: row.caveat for row in rows if row.caveat}
    named = "; ".join(f"{title}: {caveat}" for title, caveat in by_method.items())
    return [f"{_DAGGER} {named}. See docs/methods.md."] if by_method else []


def rows_of(runs: Sequence[Keys]) -> list[Row]:
    """Return the row of each run, given all of its keys."""
    settings = [_values(run) for run in runs]
    variants: dict[tuple[str, str], dict[str, set[str]]] = {}
    for run, values in zip(runs, settings, strict=True):
        family = variants.setdefault(_family(run), {})
        for name, value in values.items():
            family.setdefault(name, set()).add(value)
    return [
        _row(run, {name: value for name, value in values.items() if len(variants[_family(run)][name]) > 1})
        for run, values in zip(runs, settings, strict=True)
    ]


def _family(run: Keys) -> tuple[str, str]:
    # Another benchmark has other defaults, and a table of its own.
    return str(run["benchmark"]), str(run["method"])


def _values(run: Keys) -> dict[str, str]:
    return {name: as_typed(value) for name, value in run.items() if name not in _APART}


def _row(run: Keys, varied: Mapping[str, str]) -> Row:
    defaults = _defaults(run) if varied else {}
    named = tuple((name, value) for name, value in varied.items() if defaults.get(name) != value)
    return Row(str(run["method"]), str(run["adaptation"]), named)


def _defaults(run: Keys) -> dict[str, str]:
    """Return the keys' defaults; none for a run whose parts are not registered here."""
    try:
        chosen = {name: run[name] for name in ("benchmark", "source", "method", "adaptation")}
        return _values(RunSpec.make(**chosen).flat())
    except UsageError:
        return {}
