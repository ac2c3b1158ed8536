"""The paper's figures by matplotlib, for a page and as files: unique ids, no date, text as text."""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from fedscal.paper.result import Drawn

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedscal",
    "pdf.fonttype": 42,  # text stays text there too
    "savefig.dpi": 144.0,
    "text.parse_math": False,  # a client may be called $x^2$
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so that the layout is the same everywhere
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
    "legend.frameon": False,
    "image.composite_image": False,
}
LONGEST_LABEL = 22
WIDTH = 7.8  # inches
# Okabe and Ito's palette for colour-blind readers, without its yellow.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f4fa3")
ABSENT = "#d0d6db"
_FILES: Mapping[str, Mapping[str, None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
}
"""The kinds of files, and the metadata that would make two drawings of the same runs differ."""
_WIDE = 20
"""Values that span more than this factor get a logarithmic axis."""


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in our style, whatever the user's matplotlibrc says, and restore theirs."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        # A name in a script that DejaVu lacks is still text in the page: the browser has the glyphs.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def label(name: str) -> str:
    """Return a name that can be drawn: one short line, without characters that XML forbids."""
    clean = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)
    short = clean if len(clean) <= LONGEST_LABEL else clean[: LONGEST_LABEL - 1] + "…"
    # matplotlib leaves names with a leading underscore out of legends; a space in front keeps them in.
    return f" {short}" if short.startswith("_") else short


def canvas(height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure as wide as a page, and its axes row by row."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def legend(axis: Axes) -> None:
    """Put the legend beside the axis, where it hides nothing."""
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def value_axis(axis: Axes, values: Sequence[float]) -> None:
    """Mark the values that were tried, as they are typed, and no others; logarithmic where they span far."""
    if min(values) * _WIDE < max(values):
        axis.set_xscale("log")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(list(values), [f"{value:g}" for value in values])


def over_rounds(
    name: str, title: str, caption: str, curves: Mapping[str, tuple[Sequence[int], Any]], unit: str
) -> Drawn:
    """Draw the mean of each curve over the rounds, with the standard deviation as a band.

    ``curves`` are by name the rounds, and the values as an array (seeds, rounds).
    """
    with drawing():
        figure, (axis,) = canvas(3.4)
        for index, (curve, (rounds, values)) in enumerate(curves.items()):
            colour, dash = COLOURS[index % len(COLOURS)], ("-", "--", ":")[index // len(COLOURS) % 3]
            mean = values.mean(axis=0)
            axis.plot(rounds, mean, dash, color=colour, label=label(curve), linewidth=1.6)
            if len(values) > 1:
                band = values.std(axis=0, ddof=1)
                axis.fill_between(rounds, mean - band, mean + band, color=colour, alpha=0.15, linewidth=0)
        axis.set_xlabel("round")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
        axis.set_ylabel(unit)
        legend(axis)
        return drawn(figure, name, title, caption)


def drawn(figure: Figure, name: str, title: str, caption: str) -> Drawn:
    """Return the figure for a page, and as files of its own."""
    files = {ending: _saved(figure, ending, metadata) for ending, metadata in _FILES.items()}
    return Drawn(name, title, caption, as_element(files["svg"], name, title), files)


def _saved(figure: Figure, ending: str, metadata: Mapping[str, None]) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=ending, metadata=metadata)
    return buffer.getvalue()


def as_element(svg: bytes, name: str, title: str) -> str:
    """Return an svg file as an element of a page, with a title; ids begin with the figure's name."""
    root = ET.fromstring(svg)
    for parent in list(root.iter()):  # style would affect the whole page, metadata is not shown
        for child in [child for child in parent if _local(child.tag) in {"metadata", "style"}]:
            parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(key): _renamed(_local(key), value, name) for key, value in element.items()}
        # The line ends between the elements are a tenth of the file.
        element.tail = None if not (element.tail or "").strip() else element.tail
    for size in ("width", "height"):
        del root.attrib[size]  # the page decides; the viewBox keeps the proportions
    root.attrib |= {"role": "img", "aria-labelledby": f"{name}-title"}
    heading = ET.Element("title", {"id": f"{name}-title"})
    heading.text = title
    root.insert(0, heading)
    return ET.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    """Return a name without its namespace, which HTML does not need."""
    return name.rpartition("}")[2]


def _renamed(key: str, value: str, name: str) -> str:
    """Prefix an id, and every reference to one, with the figure's name: figures share a page."""
    if key == "id":
        return f"{name}-{value}"
    if key == "href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    return re.sub(r"url\(#", f"url(#{name}-", value)
