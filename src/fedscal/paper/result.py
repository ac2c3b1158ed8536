"""The current state of a table of the paper, for the terminal, as CSV, as JSON and as a page.

It is a reproduction with the real data, the paper's protocol and enough seeds; else it says why it is none.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypedDict

from fedscal.compare.row_labels import caveats, marked
from fedscal.core import files
from fedscal.core.documents import read_json
from fedscal.core.options import Keys, as_typed
from fedscal.core.table import Entered, Table
from fedscal.core.text import UNKNOWN, count, spread
from fedscal.experiment.experiment import find_data
from fedscal.experiment.spec import EXECUTION_KEYS, RunSpec
from fedscal.methods import caveat
from fedscal.models.registry import HUGGING_FACE, TIMM
from fedscal.paper import cost
from fedscal.paper.claims import claims
from fedscal.paper.datasets import Copy
from fedscal.paper.printed import ALL, AVERAGE, exceptions_told, slips
from fedscal.paper.scores import MOMENTS, Score, scores
from fedscal.paper.tables import COST, SEEDS, Block, Entry, datasets_of, distinct_cells, protocol, table
from fedscal.report import write_tables

_CAPTION = (
    "Paper: its best round; averages recomputed from their parts. Ours: last round, mean ± standard "
    "deviation over seeds; empty where nothing was run. Best: in the best round after the source model, "
    "which needs labels to be found. Selected: the average in the round that a label-free signal picks."
)
_HEADING = "NOT A REPRODUCTION"
_REHEARSAL = "rehearsal"
_FREE = EXECUTION_KEYS | {"model", "threads", "device", "precision", "micro_batch"}
"""Keys that say how to compute, not what; the model is checked separately."""
_CHOSEN = {"seed", "source", "method"}
"""Keys that choose a part of a table."""
_VIT_SMALL = {"hidden_size": 384, "num_hidden_layers": 12, "patch_size": 16}
_TIMM_VIT_SMALL = f"{TIMM}vit_small_patch16_224"

FIGURES = "figures"
"""The folder of the figures' files, beside the page."""


@dataclass(frozen=True)
class Drawn:
    """A figure.

    Attributes:
        name: of its files.
        title: what it shows.
        caption: how to read it.
        svg: the element for a page.
        files: the figure as a file of its own, by ending.
    """

    name: str
    title: str
    caption: str
    svg: str
    files: Mapping[str, bytes]

    def paths(self, folder: str) -> dict[str, str]:
        """Return the files' paths beside the page, by ending."""
        return {ending: f"{folder}/{self.name}.{ending}" for ending in self.files}


class Document(TypedDict):
    """The JSON file of a table."""

    table: str
    rehearsal: bool
    reproduction: bool
    not_a_reproduction: list[str]
    seeds: list[int]
    notes: list[str]
    rows: list[dict[str, Entered]]


@dataclass(frozen=True)
class Result:
    """The current state of a table.

    Attributes:
        name: the table, as the user calls it.
        entries: its runs, finished or not.
        copies: the data sets that the user has.
        flaws: why it is not a reproduction; empty if it is one.
        rehearsed: whether it only tries out whether the table could be made.
    """

    name: str
    entries: Sequence[Entry]
    copies: Mapping[str, Copy]
    flaws: Sequence[str]
    rehearsed: bool = False

    @property
    def heading(self) -> str:
        """The warning above every form of the table; empty for a reproduction."""
        words = f"{_REHEARSAL.upper()}, {_HEADING}" if self.rehearsed else _HEADING
        return f"{words}: {'; '.join(self.flaws)}." if self.flaws else ""

    @property
    def marked_name(self) -> str:
        """The name of its files: a rehearsal's say what they are even when they are taken elsewhere."""
        return f"{_REHEARSAL}-{self.name}" if self.rehearsed else self.name

    @property
    def difference(self) -> str:
        """The name of the difference; void on other data or with other settings."""
        return "void difference" if self.flaws else "difference"

    @property
    def unit(self) -> str:
        """What the numbers are."""
        return "seconds and ratios" if self.clocked else "accuracy in %"

    @property
    def clocked(self) -> bool:
        """Whether it is about time and not about accuracy."""
        return table(self.name) == (COST,)

    @cached_property
    def scores(self) -> list[Score]:
        """Every accuracy of the table."""
        blocks = [block for block in table(self.name) if block != COST]
        return [score for block in blocks for score in scores(block, self.entries, self.copies)]

    def run_counts(self) -> tuple[int, int]:
        """Return how many runs it is made from, and how many of them are finished."""
        cells = distinct_cells(self.entries)
        return len(cells), sum(cell.directory.finished for cell in cells)

    @cached_property
    def claims(self) -> list[str]:
        """What became of the paper's claims; nothing where the table is no reproduction."""
        return [] if self.flaws else claims(self.scores, self.entries)

    def notes(self) -> list[str]:
        """Return the sentences below the tables."""
        runs, done = self.run_counts()
        names = dict.fromkeys(block.name for block in table(self.name))
        missing = [data.title for data in datasets_of(table(self.name)) if data.name not in self.copies]
        return [
            f"{done} of {count(runs, 'run')} finished.",
            *([f"Not given by --data, so not run: {', '.join(missing)}."] if missing else []),
            *(slip for name in names for slip in slips(name)),
            *caveats(variant.method for block in table(self.name) for variant in block.variants),
            *(told for name in names for told in exceptions_told(name)),
            *self.claims,
        ]

    def tables(self) -> list[Table]:
        """Return the table in parts that fit a screen: one per source, then one over the sources."""
        if self.clocked:
            return cost.tables(cost.costs(self.entries), self.difference)
        return [
            part
            for block in table(self.name)
            for part in _parts(block, [s for s in self.scores if s.block == block], self.difference)
        ]

    def rows(self) -> list[dict[str, Entered]]:
        """Return every cell as a flat record; unknown values are None."""
        if self.clocked:
            rows = [row.record(self.difference) for row in cost.costs(self.entries)]
        else:
            rows = [_record(score, self.difference) for score in self.scores]
        return [{**row, "table": f"{_REHEARSAL}-{row['table']}"} for row in rows] if self.rehearsed else rows

    def document(self) -> Document:
        """Return all of it for JSON."""
        return {
            "table": self.name,
            "rehearsal": self.rehearsed,
            "reproduction": not self.flaws,
            "not_a_reproduction": list(self.flaws),
            "seeds": sorted({entry.cell.spec.seed for entry in self.entries}),
            "notes": self.notes(),
            "rows": self.rows(),
        }

    def write(self, out: Path, figures: Sequence[Drawn] = ()) -> list[Path]:
        """Write CSV, JSON, a page with these figures, and each of them as files; return what was written."""
        paths = [out / f"{self.marked_name}.{ending}" for ending in ("csv", "json", "html")]
        folder = f"{_REHEARSAL}-{FIGURES}" if self.rehearsed else FIGURES
        for one in figures:
            for ending, path in one.paths(folder).items():
                files.write_bytes(out / path, one.files[ending])
        files.write_bytes(paths[0], self._csv().encode())
        files.write_json(paths[1], self.document())
        write_tables(
            paths[2],
            title=f"{'Rehearsal of ' if self.rehearsed else ''}{self.name}: the paper's numbers and ours",
            warning=self.heading,
            tables=self.tables(),
            caption=cost.CAPTION if self.clocked else f"{self.unit.capitalize()}. {_CAPTION}",
            notes=self.notes(),
            figures=[(one.title, one.caption, one.svg, one.paths(folder)) for one in figures],
        )
        return [*paths, *([out / folder] if figures else [])]

    def _csv(self) -> str:
        text = io.StringIO()
        if self.heading:
            text.write(f"# {self.heading}\n")
        rows = self.rows()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


def _record(score: Score, difference: str) -> dict[str, Entered]:
    columns: dict[str, Entered] = {
        "table": score.block.name,
        "dataset": score.block.dataset,
        "local_adaptation": score.block.adaptation,
        "method": score.method,
        "caveat": caveat(score.block.method(score.method)),
        "source": score.source,
        "target": score.target,
        "printed": score.printed,
        "paper": _rounded(score.paper),
        "ours": _rounded(score.mean()),
        "deviation": _rounded(score.deviation()),
        difference.replace(" ", "_"): _rounded(score.difference()),
        "seeds": len(score.ours.get("last", ())),
    }
    for moment, name in zip(MOMENTS[1:], ("selected", "best_oracle"), strict=True):
        columns[name] = _rounded(score.mean(moment))
        columns[f"{name}_deviation"] = _rounded(score.deviation(moment))
    columns[f"best_{difference.replace(' ', '_')}"] = _rounded(score.difference("best"))
    return columns


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)


def _parts(block: Block, scores: Sequence[Score], difference: str) -> Iterator[Table]:
    """Yield the tables of a block."""
    title = f"{block.name}, {block.adaptation}"
    if not block.averages_only:
        for source in block.sources:
            here = [score for score in scores if score.source == source]
            columns = {score.target: score.target for score in here}
            yield _table(f"{title}, source {source}", here, "target", columns, difference, selected=True)
    averages = [score for score in scores if score.target == AVERAGE]
    if block.averages_only or len(block.sources) > 1:
        columns = {score.source: "all sources" if score.source == ALL else score.source for score in averages}
        yield _table(f"{title}, averages over the targets", averages, "source", columns, difference)


def _table(
    title: str,
    scores: Sequence[Score],
    axis: str,
    columns: Mapping[str, str],
    difference: str,
    selected: bool = False,
) -> Table:
    """Return up to four lines per method: the paper's numbers, ours last and at best, the last's difference.

    The columns are values of the scores' attribute ``axis``, with their headings; ``selected`` adds the
    average in the selected round.
    """
    rows: list[list[str]] = []
    for method in dict.fromkeys(score.method for score in scores):
        cells = {getattr(score, axis): score for score in scores if score.method == method}
        line = [cells[column] for column in columns]
        extra = [_ours(cells[AVERAGE], "selected")] if selected else []
        name = line[0].block.method(method)
        rows += _lines(marked(method, name), line, difference, extra)
    return Table(title, ["method", "", *columns.values(), *(["selected"] if selected else [])], rows)


def _lines(method: str, line: Sequence[Score], difference: str, extra: Sequence[str]) -> Iterator[list[str]]:
    """Yield the lines of a method that are not empty; ours always."""
    blank = [""] * len(extra)
    printed = any(score.paper is not None for score in line)
    if printed:
        paper = [UNKNOWN if score.paper is None else f"{score.paper:.2f}" for score in line]
        yield [method, "paper", *paper, *blank]
    yield ["" if printed else method, "ours", *map(_ours, line), *extra]
    if any(score.ours.get("best") for score in line):
        yield ["", "best", *(_ours(score, "best") for score in line), *blank]
    gaps = [score.difference() for score in line]
    if any(map(math.isfinite, gaps)):
        yield ["", difference, *(f"{gap:+.2f}" if math.isfinite(gap) else "" for gap in gaps), *blank]


def _ours(score: Score, moment: str = "last") -> str:
    values = score.ours.get(moment, ())
    return spread(values) if values else ""


def flaws(entries: Sequence[Entry], copies: Mapping[str, Copy], given: Iterable[str]) -> list[str]:
    """Return why these runs, with the keys that a user gave, are no reproduction; empty if they are one."""
    reasons: dict[str, None] = {}
    for name, copy in copies.items():
        specs = [entry.cell.spec for entry in entries if entry.block.dataset == name]
        if specs:
            reasons |= dict.fromkeys(copy.flaws(find_data(specs[0])))
            reasons |= dict.fromkeys(_other_protocol(specs, protocol(name), set(given) - _FREE))
    seeds = {entry.cell.spec.seed for entry in entries}
    if 0 < len(seeds) < len(SEEDS):
        reasons[f"{len(seeds)} of at least {len(SEEDS)} seeds"] = None
    return list(reasons)


def _other_protocol(specs: Sequence[RunSpec], paper: Keys, given: Iterable[str]) -> Iterator[str]:
    """Name the given keys whose values are not the paper's."""
    if not is_vit_small(specs[0].model, str(paper["model"])):
        yield f"model={specs[0].model} is not a ViT-S/16 with trained weights"
    for spec in {(spec.method, spec.adaptation): spec for spec in specs}.values():
        row = {key: getattr(spec, key) for key in ("benchmark", "source", "method", "adaptation")}
        values, usual = spec.flat(), RunSpec.make(**{**paper, **row}).flat()
        for key in sorted(set(given) & set(values) - _CHOSEN):
            if values[key] != usual[key]:
                yield f"{key}={as_typed(values[key])} instead of {as_typed(usual[key])}"


def is_vit_small(model: str, usual: str) -> bool:
    """Whether a model has the paper's shape and trained weights: the usual name, timm's, or such a folder."""
    name, _, origin = model.partition("@")
    if model == usual or (name.partition(".")[0] == _TIMM_VIT_SMALL and origin):
        return True
    folder = Path(model.removeprefix(HUGGING_FACE))
    try:
        config = read_json(folder / "config.json")
        shaped = {key: config.get(key) for key in _VIT_SMALL} == _VIT_SMALL
    except (OSError, ValueError, AttributeError):
        return False
    return model.startswith(HUGGING_FACE) and shaped and any(folder.glob("*.safetensors"))
