"""Whom to thank: the authors and licences of every set, as a text that goes with the images."""

from __future__ import annotations

from collections.abc import Sequence

from fedscal.data.icons.lock import Package

_HEAD = """# Notice

The images of the icons benchmark are made from the packages below: rasterised at 64 px, cropped to their
ink and centred; sketches are enlarged from 28 px. The drawings belong to their authors, and each is under
the licence of its set. fedscal ships none of them.

| set | package | version | author | licence |
|---|---|---|---|---|
"""


def notice(packages: Sequence[Package]) -> str:
    """Return the notice as Markdown."""
    rows = [
        f"| {package.title} | {package.name} | {package.version} | {package.author} | {package.licence} |\n"
        for package in packages
    ]
    return _HEAD + "".join(rows)
