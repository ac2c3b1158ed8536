"""A contact sheet: the first images of every class and domain on one page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw

from fedscal.core.lazy import torch
from fedscal.data import cache
from fedscal.data.benchmark import Benchmark
from fedscal.data.labels import labels
from fedscal.data.picture import picture

_EACH = 6
_LARGEST = 96
"""Pixels of the longer side of a picture: a sheet of many sites has to fit on a screen."""
_UNLABELLED_ROWS = 4
_GAP = 2
_NAME_WIDTH = 80
_TITLE_HEIGHT = 16


def contact_sheet(benchmark: Benchmark) -> tuple[bytes, str]:
    """Return a PNG with one row per class and one block of columns per domain, and an index of its images.

    The first images of a domain without labels are shown below, in rows of no class. The index is
    tab-separated: row and column on the sheet, domain, class, the image's number in its domain and, where the
    benchmark knows it, its name at its source.
    """
    chosen = {domain: _chosen(benchmark, domain) for domain in benchmark.domains}
    rows = max(map(len, chosen.values()))
    names = [*benchmark.classes, *[""] * (rows - len(benchmark.classes))]
    return _picture(benchmark, names, chosen), _index(benchmark, names, chosen)


def _chosen(benchmark: Benchmark, domain: str) -> list[list[int]]:
    """Return the images of each row: of every class, or of none if there are no labels."""
    classes, truth = range(len(benchmark.classes)), labels(benchmark, domain)
    if truth is not None:
        return [(truth == label).nonzero().flatten()[:_EACH].tolist() for label in classes]
    shown = list(range(min(cache.image_count(benchmark, domain), _UNLABELLED_ROWS * _EACH)))
    return [[] for _ in classes] + [shown[at : at + _EACH] for at in range(0, len(shown), _EACH)]


def _picture(benchmark: Benchmark, names: Sequence[str], chosen: Mapping[str, list[list[int]]]) -> bytes:
    _, *sides = benchmark.shape
    height, width = (max(1, round(side * min(1, _LARGEST / max(sides)))) for side in sides)
    block = _EACH * (width + _GAP) + 3 * _GAP
    size = (
        _NAME_WIDTH + block * len(chosen),
        _TITLE_HEIGHT + len(names) * (max(height, 12) + _GAP),
    )
    sheet = Image.new("RGB", size, (200, 200, 200))
    pen = ImageDraw.Draw(sheet)
    for position, (domain, rows) in enumerate(chosen.items()):
        pixels, left = cache.images(benchmark, domain), _NAME_WIDTH + position * block
        pen.text((left, 2), domain, fill=0)
        for label, numbers in enumerate(rows):
            top = _TITLE_HEIGHT + label * (max(height, 12) + _GAP)
            pen.text((2, top), names[label], fill=0)
            for column, number in enumerate(numbers):
                image = torch.as_tensor(pixels[torch.tensor([number])][0])
                # A folder's images are decoded somewhat larger than their views.
                sheet.paste(picture(image).resize((width, height)), (left + column * (width + _GAP), top))
    png = io.BytesIO()
    sheet.save(png, format="PNG")
    return png.getvalue()


def _index(benchmark: Benchmark, names: Sequence[str], chosen: Mapping[str, list[list[int]]]) -> str:
    lines = ["row\tcolumn\tdomain\tclass\timage\tname\n"]
    for position, (domain, rows) in enumerate(chosen.items()):
        captions = benchmark.captions(domain) if benchmark.captions else None
        for label, numbers in enumerate(rows):
            for column, number in enumerate(numbers, start=position * _EACH + 1):
                cells = (label + 1, column, domain, names[label], number)
                lines.append("\t".join(map(str, (*cells, captions[number] if captions else ""))) + "\n")
    return "".join(lines)
