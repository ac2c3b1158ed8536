"""What the charts of a page are drawn from: values that the page's script reads, one class a kind of chart.

A number that is unknown is None here. Numbers are cut to what can be seen, for the page is one file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedscal.core.convert import dump

Number = float | None
_DIGITS = 5


def number(value: float) -> Number:
    """Return a number with as many digits as a chart can show; None for one that is unknown."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def numbers(values: Iterable[float]) -> list[Number]:
    """Return numbers as ``number`` does."""
    return [number(value) for value in values]


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve: a value for each round of its chart, and a band around it if it has one.

    Attributes:
        look: the ``average`` is drawn strongly, what is ``dashed`` shares the colour of its namesake, and a
            ``level`` is one value for all rounds.
    """

    name: str
    values: Sequence[Number]
    look: Literal["plain", "average", "dashed", "level"] = "plain"
    spread: Sequence[Number] = ()


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Curves over the rounds.

    Attributes:
        chosen: the round of the label-free choice, if it is to be marked.
    """

    rounds: Sequence[int]
    series: Sequence[Series]
    unit: str = ""
    chosen: int | None = None


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Amounts of each round, one upon the other."""

    rounds: Sequence[int]
    series: Sequence[Series]
    unit: str


@dataclass(frozen=True, kw_only=True)
class Heat:
    """A value for each client (row) at each moment (column, the number of its round)."""

    rows: Sequence[str]
    columns: Sequence[int]
    values: Sequence[Sequence[Number]]
    limits: tuple[Number, Number]
    diverging: bool = False


@dataclass(frozen=True, kw_only=True)
class Bands:
    """Where many clients lie in each round: the quantiles 5, 25, 50, 75 and 95 %, a value each a round."""

    rounds: Sequence[int]
    values: Sequence[Sequence[Number]]
    unit: str = ""
    chosen: int | None = None


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How many changed by how much: the edges of the bins, and the number in each."""

    edges: Sequence[Number]
    counts: Sequence[int]
    unit: str


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Changes of many, too many to name: ordered, a bar each."""

    names: Sequence[str]
    before: Sequence[Number]
    after: Sequence[Number]
    unit: str


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How often each class is answered, and how often it is true if labels tell."""

    before: Sequence[int]
    after: Sequence[int]
    true: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Classes:
    """How often each class is answered, for each choice of a domain."""

    names: Sequence[str]
    choices: Mapping[str, Counts]


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Images by true class (row) and answer (column)."""

    before: Sequence[Sequence[int]]
    after: Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Confusions:
    """A confusion matrix, for each choice of a domain."""

    names: Sequence[str]
    choices: Mapping[str, Confusion]


@dataclass(frozen=True, kw_only=True)
class Right:
    """Images of each class, and how many of them are answered rightly."""

    images: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Recalls:
    """The share of right answers by class, for each choice of a domain."""

    names: Sequence[str]
    choices: Mapping[str, Right]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Confidence and the share of right answers by bin; empty bins are left out."""

    images: Sequence[int]
    confidence: Sequence[Number]
    right: Sequence[Number]
    error: Number


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Reliability before and after."""

    before: Curve
    after: Curve


@dataclass(frozen=True, kw_only=True)
class Calibrations:
    """A reliability diagram, for each choice of a domain."""

    choices: Mapping[str, Calibration]


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Images as points in the plane before and after; each list has a value for every point.

    Attributes:
        domain: the domain of each point, by its place in ``domains``.
        answer: the delivered model's answer, by its place in ``classes``.
        label: the true class; empty without labels.
    """

    classes: Sequence[str]
    domains: Sequence[str]
    before: Sequence[tuple[Number, Number]]
    after: Sequence[tuple[Number, Number]]
    domain: Sequence[int]
    answer: Sequence[int]
    label: Sequence[int | None] = ()


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A method's result: mean, deviation, and the value of every seed."""

    name: str
    mean: Number
    deviation: Number
    values: Sequence[Number]
    before: Number


@dataclass(frozen=True, kw_only=True)
class Dots:
    """Methods side by side."""

    dots: Sequence[Dot]
    unit: str


Rounds = Lines | Bars | Heat | Bands | Histogram | Strip
Chart = Rounds | Classes | Confusions | Recalls | Calibrations | Scatter | Dots
"""The script has a function for each, of the same name."""


@dataclass(frozen=True)
class Exhibit:
    """A chart with its title and caption; ``name`` is its own in the page."""

    name: str
    title: str
    caption: str
    chart: Chart

    @property
    def views(self) -> Sequence[str]:
        """What the reader may choose to see; the first is shown."""
        if isinstance(self.chart, Confusions):
            return ("after", "before")
        if isinstance(self.chart, Scatter):
            return ("domain", "answer", *(["label"] if self.chart.label else []))
        return ()


def embedded(exhibits: Iterable[Exhibit]) -> str:
    """Return the charts as JSON that can stand in a page: no name can end the element that it stands in."""
    made = {one.name: {"kind": type(one.chart).__name__.lower(), **dump(one.chart)} for one in exhibits}
    text = json.dumps(made, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
