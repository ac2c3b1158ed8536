"""The table row of a run: runs that differ only in source and seed share a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedscal.core.errors import UsageError
from fedscal.core.options import Keys, as_typed
from fedscal.experiment.spec import EXECUTION_KEYS, RunSpec
from fedscal.methods import ADAPTATIONS, METHODS, caveat

_APART = frozenset({"benchmark", "source", "seed", "method", "adaptation"}) | EXECUTION_KEYS
"""Keys that are not named in a label: tables are divided by the first three, labels begin with the others."""
USUAL_BASELINE = "fedloa"
"""The default baseline."""
_DAGGER = "\N{DAGGER}"


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
    def label(self) -> str:
        """The row in a few words.

        >>> Row("fedscal", "shot", (("lambda_server", "0"),)).label
        'FedSCAl, lambda_server=0'
        """
        title = METHODS[self.method].title if self.method in METHODS else self.method
        title = marked(title, self.method)
        if not self.usual:
            registered = self.adaptation in ADAPTATIONS
            title += f" + {ADAPTATIONS[self.adaptation].title if registered else self.adaptation}"
        return title + "".join(f", {name}={value}" for name, value in self.named)


def marked(title: str, method: str) -> str:
    """Return a row's title, with a dagger if there is a warning about the method's numbers."""
    return f"{title} {_DAGGER}" if caveat(method) else title


def caveats(methods: Iterable[str]) -> list[str]:
    """Return a sentence for the daggers of these methods, if there are any."""
    by_title = {METHODS[name].title: warning for name in methods if (warning := caveat(name))}
    named = "; ".join(f"{title}: {warning}" for title, warning in by_title.items())
    return [f"{_DAGGER} {named}. See docs/methods.md."] if by_title else []


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
