"""What a page may run and load: its own inline scripts, named by their hashes, and nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources

_LIBRARIES = ("d3.min.js", "plot.umd.min.js")
_CHARTS = ("drawing.js", "round_charts.js", "answer_charts.js", "charts.js")
"""Both in the order in which they need each other."""


@cache
def _text(*path: str) -> str:
    return resources.files("fedscal.report").joinpath(*path).read_text("utf-8")


def style() -> str:
    """Return the style sheet of every page."""
    return _text("assets", "style.css")


def scripts(charts: bool) -> list[str]:
    """Return the scripts of a page: tables and buttons, and what draws if there are charts."""
    names = ("element.js", *(_CHARTS if charts else ()), "page.js")
    return [*([_libraries()] if charts else []), *(_text("assets", name) for name in names)]


@cache
def _libraries() -> str:
    """Return the libraries that draw, with their licences, which must go with every copy."""
    folder = resources.files("fedscal.report") / "vendor"
    notices = sorted(path.name for path in folder.iterdir() if path.name.endswith(".LICENSE"))
    texts = [f"{name.removesuffix('.LICENSE')}:\n{_text('vendor', name).strip()}" for name in notices]
    said = "\n\n".join(texts).replace("*/", "* /")
    return "\n".join([f"/*\n{said}\n*/", *(_text("vendor", name) for name in _LIBRARIES)])


def policy(inline: Sequence[str], connect: str = "") -> str:
    """Return the content security policy: these scripts alone, images in the page alone.

    Args:
        inline: the scripts of the page, exactly as they stand in it.
        connect: what the page may ask over the network, such as ``'self'``; nothing if empty.
    """
    hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in inline)
    parts = ["default-src 'none'", f"script-src {hashes}"]
    parts += ["style-src 'unsafe-inline'", "img-src data:", "base-uri 'none'", "form-action 'none'"]
    return "; ".join([*parts, *([f"connect-src {connect}"] if connect else [])])


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
