"""A matplotlib figure as an svg element of an HTML page: unique ids, no date, no namespaces, text as text."""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedscal",
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


def to_svg(figure: Figure, name: str, title: str) -> str:
    """Return the figure as an ``<svg>`` element with a title; ids begin with the figure's name."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", dpi=144, metadata={"Date": None})
    root = ET.fromstring(buffer.getvalue())
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
