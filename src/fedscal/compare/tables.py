"""The tables of a grid of runs: one per source, and one over all sources with statistical tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from fedscal.compare import comparison
from fedscal.compare.comparison import SourceTable, leaderboards
from fedscal.compare.execute import Cell
from fedscal.compare.row_labels import USUAL_BASELINE, Row, caveats, rows_of
from fedscal.compare.significance import holm, sign_flip_p, smallest_p
from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.errors import UsageError, nearest
from fedscal.core.table import Table
from fedscal.core.text import count, signed
from fedscal.experiment.load import load_run

_OVERALL = (
    "method",
    "average, last round",
    "against",
    "difference",
    "better / worse / equal",
    "p",
    "Holm's p",
)
_NONE = "\N{EN DASH}"
_EQUAL = 1e-9
_FEW = 6
"""With fewer pairs p stays above 5 %, even if all of them agree."""
Groups = Mapping[Row, Sequence[Cell]]


def _with_rows(cells: Sequence[Cell]) -> list[tuple[Row, Cell]]:
    return list(zip(rows_of([cell.spec.flat() for cell in cells]), cells, strict=True))


def by_row(cells: Sequence[Cell]) -> Groups:
    """Return the cells by the row they belong to, in the order of the grid."""
    groups: dict[Row, list[Cell]] = {}
    for row, cell in _with_rows(cells):
        groups.setdefault(row, []).append(cell)
    return groups


def by_source(cells: Sequence[Cell]) -> Sequence[SourceTable]:
    """Return a table for each source, of the runs that are finished and have labels."""
    finished = [(row, cell) for row, cell in _with_rows(cells) if cell.directory.finished]
    named = {cell.directory.path: row for row, cell in finished}
    runs = [replace(load_run(cell.directory.path), spec=cell.spec.flat()) for _, cell in finished]
    compared, _ = comparison.usable(runs)
    return comparison.source_tables(compared, [named[run.path] for run in compared])


def _average(cell: Cell) -> float | None:
    """Return a run's average accuracy in the last round; None without a result or labels."""
    if not cell.directory.finished:
        return None
    accuracy = cell.directory.summary().accuracy
    return accuracy.last.average if accuracy.labelled else None


@dataclass(frozen=True)
class Baseline:
    """What rows are compared with: one row, and its equivalents with other adaptations."""

    anchor: Row
    likes: Sequence[Row]

    def of(self, row: Row, groups: Groups) -> Row:
        """Return the row's baseline: of its own adaptation if there is one, else of the anchor's."""

        def nearness(like: Row) -> tuple[bool, bool, int, int]:
            same, anchors = like.adaptation == row.adaptation, like.adaptation == self.anchor.adaptation
            return same, anchors, _agreement(like, row, groups), -len(like.named)

        return max(self.likes, key=nearness)


def _agreement(like: Row, row: Row, groups: Groups) -> int:
    """Count the settings that two methods share: lr=0.1 is compared with lr=0.1, not lr=0.03."""
    if like.method == row.method:  # else each row would be its own baseline
        return 0
    theirs = groups[like][0].spec.flat()
    return sum(theirs.get(name) == value for name, value in groups[row][0].spec.flat().items())


def find_baseline(cells: Sequence[Cell], name: str = "") -> Baseline | None:
    """Return the baseline of this name, a method or a row's label; by default FedLoA if it is there."""
    rows = list(by_row(cells))
    methods = {row.method for row in rows}
    name = name or (USUAL_BASELINE if USUAL_BASELINE in methods else "")
    if not name:
        return None
    if name in methods:
        likes = [row for row in rows if row.method == name]
        return Baseline(min(likes, key=lambda row: (not row.usual, len(row.named))), likes)
    labelled = {row.label: row for row in rows}
    if name not in labelled:
        hint = nearest(name, methods | set(labelled))
        raise UsageError(f"--baseline {name}: neither a method nor a row of this comparison{hint}")
    anchor = labelled[name]
    return Baseline(anchor, [row for row in rows if (row.method, row.named) == (anchor.method, anchor.named)])


@dataclass(frozen=True)
class Contrast:
    """A row compared with its baseline.

    The unit is a run, by its average over the target domains: the domains of one run share source model,
    rounds and draws, so they are not independent observations.
    """

    row: Row
    against: Row
    averages: Sequence[float]
    differences: Sequence[float]

    @property
    def p(self) -> float | None:
        """The p of the mean difference, if there are at least two pairs."""
        return sign_flip_p(self.differences) if len(self.differences) > 1 else None

    def cells(self, corrected: float | None) -> list[str]:
        """Return the row's text, with the p that was corrected for all rows."""
        mean = f"{fmean(self.averages):.1f}" if self.averages else _NONE
        if self.row == self.against:
            return [self.row.label, mean, "baseline", *[_NONE] * 4]
        better = sum(value > _EQUAL for value in self.differences)
        worse = sum(value < -_EQUAL for value in self.differences)
        pairs = len(self.differences)
        outcome = f"{better} / {worse} / {pairs - better - worse} of {pairs}"
        change = signed(fmean(self.differences)) if pairs else _NONE
        chances = [_NONE if p is None else f"{p:.2g}" for p in (self.p, corrected)]
        return [self.row.label, mean, self.against.label, change, outcome, *chances]


def contrasts(cells: Sequence[Cell], baseline: Baseline) -> list[Contrast]:
    """Pair every row's finished runs with its baseline's of equal source and seed."""
    groups = by_row(cells)
    averages = {row: _averages(mine) for row, mine in groups.items()}
    rows = []
    for row, mine in averages.items():
        against = baseline.of(row, groups)
        theirs = averages[against] if against != row else {}
        differences = [mine[pair] - theirs[pair] for pair in mine if pair in theirs]
        rows.append(Contrast(row, against, list(mine.values()), differences))
    return rows


def _averages(cells: Sequence[Cell]) -> dict[tuple[str, str, int], float]:
    return {
        (cell.spec.benchmark, cell.spec.source, cell.spec.seed): average
        for cell in cells
        if (average := _average(cell)) is not None
    }


def overall_table(cells: Sequence[Cell], baseline: Baseline | None) -> Table | None:
    """Return the table over all sources; None if there is nothing to compare."""
    compared = contrasts(cells, baseline) if baseline else []
    if all(contrast.row == contrast.against for contrast in compared):
        return None
    p_values = {contrast.row: p for contrast in compared if (p := contrast.p) is not None}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    rows = [contrast.cells(corrected.get(contrast.row)) for contrast in compared]
    notes = [*_notes(compared), *_missing(cells), *caveats(contrast.row.method for contrast in compared)]
    return Table("All sources", _OVERALL, rows, notes)


def _notes(compared: Sequence[Contrast]) -> Iterator[str]:
    yield (
        "Means over sources and seeds; runs of equal source and seed are paired. p: two-sided sign-flip test "
        "on the mean difference; Holm's p: corrected for all rows of this table."
    )
    counts = {len(contrast.differences) for contrast in compared}
    for pairs in sorted(pairs for pairs in counts if 1 < pairs < _FEW):
        yield f"With {pairs} paired runs p cannot be below {smallest_p(pairs):g}."


def _missing(cells: Sequence[Cell]) -> Iterator[str]:
    groups = by_row(cells).items()
    missing = [(row, cell.spec) for row, mine in groups for cell in mine if not cell.directory.finished]
    if missing:
        row, spec = missing[0]
        first = f"{row.label} from {spec.source}, seed {spec.seed}"
        yield f"Left out of the pairs, without a result: {count(len(missing), 'run')}, the first {first}."


def all_tables(cells: Sequence[Cell], overall: Table | None) -> list[Table]:
    """Return all tables of a comparison, in order."""
    sources = by_source(cells)
    tables = [source.table() for source in sources]
    return [*leaderboards(sources), *tables, *([overall] if overall else [])]


def to_markdown(cells: Sequence[Cell], command: str, tables: Sequence[Table]) -> str:
    """Return all tables as Markdown, with the command that made them."""
    seeds = ", ".join(map(str, sorted({cell.spec.seed for cell in cells})))
    text = [
        f"`{command}`\n",
        f"Accuracy in %, mean ± standard deviation over seeds {seeds}. "
        "A setting that varies is named where it is not the default.\n",
        *(table.markdown() for table in tables),
    ]
    return "\n".join(text)


def summaries(cells: Sequence[Cell]) -> list[dict[str, object]]:
    """Return the finished runs' summaries, each with the label of its row, in the order of the grid."""
    return [
        {"row": row.label, **dump(cell.directory.summary())}
        for row, cell in _with_rows(cells)
        if cell.directory.finished
    ]


def write_results(cells: Sequence[Cell], out: Path, command: str, tables: Sequence[Table]) -> Path:
    """Write ``comparison.md`` and ``comparison.json`` beside the runs."""
    files.write_json(out / "comparison.json", summaries(cells))
    path = out / "comparison.md"
    files.write_bytes(path, to_markdown(cells, command, tables).encode())
    return path
