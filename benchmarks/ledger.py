"""The runs behind docs/results.md, one line each, so that a table can be added to on another machine.

    python -m benchmarks.ledger add FOLDER...    # folders of finished runs, as `fedscal compare --out` leaves
    python -m benchmarks.ledger show [WORD...]   # a table of the runs whose lines have all of these words
                                                 # (^WORD: that do not have this one)
    python -m benchmarks.ledger against WORD... -- WORD...   # the rows that these are of, against another one

The lines are in docs/data/runs.csv. ``keys`` are what the run was given beside the first columns, where that
is not the default; accuracies are in %, ``came`` of the model that the rounds began from (with the sites'
statistics, where these are the site's), ``average`` and ``domains`` of the last round, ``worst`` the least
gain of a domain between the two.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.delivery import runs
from fedscal.compare.significance import sign_flip_p
from fedscal.core.options import as_typed
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import EXECUTION_KEYS, RunSpec

LEDGER = Path(__file__).parents[1] / "docs/data/runs.csv"
_COLUMNS = ("benchmark", "source", "method", "adaptation", "seed")
_NO_MATTER = EXECUTION_KEYS | {"judge_clients", "judge_every"}
"""Keys that move no number of a line: all clients judge the first and the last round, whatever these say."""


@dataclass(frozen=True, order=True)
class Line:
    """A finished run."""

    benchmark: str
    method: str
    adaptation: str
    keys: str
    source: str
    seed: int
    came: float
    average: float
    worst: float
    domains: str
    sha256: str

    @property
    def row(self) -> str:
        """What this run has in common with those of other sources and seeds."""
        return " ".join((self.benchmark, self.method, self.adaptation, self.keys)).strip()

    @property
    def by_domain(self) -> dict[str, float]:
        """The accuracy in the last round, by domain."""
        pairs = (word.rsplit(":", 1) for word in self.domains.split())
        return {name: float(value) for name, value in pairs}

    @property
    def text(self) -> str:
        """The line as words."""
        return " ".join(str(value) for value in asdict(self).values())


def changed_keys(spec: RunSpec) -> str:
    """Return the keys of a run that are not the default of its benchmark, method and adaptation."""
    usual = RunSpec.make(**{name: getattr(spec, name) for name in _COLUMNS}).flat()
    given = spec.flat()
    names = [name for name in given if name not in _NO_MATTER and given[name] != usual.get(name)]
    return " ".join(f"{name}={as_typed(given[name])}" for name in sorted(names))


def line_of(run: RunDirectory) -> Line:
    """Return a finished run as a line."""
    spec, summary = run.spec(), run.summary()
    before, after = summary.accuracy.source_only, summary.accuracy.last
    return Line(
        **{name: getattr(spec, name) for name in _COLUMNS},
        keys=changed_keys(spec),
        came=round(before.average, 2),
        average=round(after.average, 2),
        worst=round(min(after.of(name) - before.of(name) for name in after.domains), 2),
        domains=" ".join(f"{name}:{value:.1f}" for name, value in sorted(after.domains.items())),
        sha256=(summary.weights_sha256 or "")[:12],
    )


def read() -> list[Line]:
    """Return the lines of the ledger."""
    if not LEDGER.exists():
        return []
    kinds = {"seed": int, "came": float, "average": float, "worst": float}
    with LEDGER.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [Line(**{name: kinds.get(name, str)(value) for name, value in row.items()}) for row in rows]


def add(folders: Sequence[Path]) -> None:
    """Write the finished runs of folders into the ledger; a run that was there already is replaced."""
    known = {(line.row, line.source, line.seed): line for line in read()}
    for run in runs(folders):
        line = line_of(run)
        known[line.row, line.source, line.seed] = line
    with LEDGER.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Line)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(line) for line in sorted(known.values()))
    print(f"{LEDGER}: {len(known)} runs")


def show(words: Sequence[str]) -> None:
    """Print a row for each setting: mean and deviation over seeds by source, and the mean over sources."""
    chosen = _chosen(words)
    sources = list(dict.fromkeys(line.source for line in chosen))
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in chosen:
        cells[line.row][line.source].append(line.average)
    print(f"| row | {' | '.join(sources)} | mean | runs |\n|---|{'---:|' * (len(sources) + 2)}")
    for row, found in cells.items():
        by_source = [_spread(found.get(source, [])) for source in sources]
        mean = fmean(fmean(values) for values in found.values()) if len(found) == len(sources) else None
        total = sum(map(len, found.values()))
        print(f"| {row} | {' | '.join(by_source)} | {'' if mean is None else f'{mean:.1f}'} | {total} |")


def against(words: Sequence[str], others: Sequence[str]) -> None:
    """Print for rows how much better they are than another row, run by run and domain by domain.

    Runs of equal source and seed are paired; a pair of domains is a target domain of such a pair.
    """
    base = {(line.source, line.seed): line for line in _chosen(others)}
    if len({line.row for line in base.values()}) != 1:
        raise SystemExit(f"{' '.join(others)}: these words must be those of one row, see show")
    print("| row | difference | better | p | pairs of domains below | worst |\n|---|---:|---:|---:|---:|---|")
    rows: dict[str, list[tuple[Line, Line]]] = defaultdict(list)
    for line in _chosen(words):
        if (line.source, line.seed) in base:
            rows[line.row].append((line, base[line.source, line.seed]))
    for row, pairs in rows.items():
        gains = [line.average - other.average for line, other in pairs]
        domains = [
            (value - other.by_domain[name], f"{name} from {line.source}")
            for line, other in pairs
            for name, value in line.by_domain.items()
        ]
        worst, where = min(domains)
        better, below = sum(gain > 0 for gain in gains), sum(gain < 0 for gain, _ in domains)
        print(
            f"| {row} | {fmean(gains):+.1f} | {better} of {len(gains)} | {sign_flip_p(gains):.2g} "
            f"| {below} of {len(domains)} | {where} {worst:+.1f} |"
        )


def _chosen(words: Sequence[str]) -> list[Line]:
    """Return the lines that have all of these words; one that begins with ^ must not be there."""
    return [line for line in read() if all(_fits(line, word) for word in words)]


def _fits(line: Line, word: str) -> bool:
    return (word.removeprefix("^") in line.text) != word.startswith("^")


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


if __name__ == "__main__":
    command, *given = sys.argv[1:] or ["show"]
    if command == "add":
        add([Path(word) for word in given])
    elif command == "against":
        cut = given.index("--")
        against(given[:cut], given[cut + 1 :])
    else:
        show(given)
