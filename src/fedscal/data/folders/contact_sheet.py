"""A contact sheet: the first images of every class and domain on one page."""

from __future__ import annotations

import io

from PIL import Image, ImageDraw

from fedscal.core.lazy import torch
from fedscal.data import cache
from fedscal.data.benchmark import Benchmark
from fedscal.data.labels import known_labels

_EACH = 6
_GAP = 2
_NAME_WIDTH = 80
_TITLE_HEIGHT = 16


def contact_sheet(benchmark: Benchmark) -> tuple[bytes, str]:
    """Return a PNG with one row per class and one block of columns per domain, and an index of its images.

    The index is tab-separated: row and column on the sheet, domain, class, the image's number in its
    domain and, where the benchmark knows it, its name at its source.
    """
    labels, chosen = range(len(benchmark.classes)), {}
    for domain in benchmark.domains:
        truth = known_labels(benchmark, domain)
        chosen[domain] = [(truth == label).nonzero().flatten()[:_EACH].tolist() for label in labels]
    return _picture(benchmark, chosen), _index(benchmark, chosen)


def _picture(benchmark: Benchmark, chosen: dict[str, list[list[int]]]) -> bytes:
    _, height, width = benchmark.shape
    block = _EACH * (width + _GAP) + 3 * _GAP
    size = (
        _NAME_WIDTH + block * len(chosen),
        _TITLE_HEIGHT + len(benchmark.classes) * (max(height, 12) + _GAP),
    )
    sheet = Image.new("RGB", size, (200, 200, 200))
    pen = ImageDraw.Draw(sheet)
    for position, (domain, rows) in enumerate(chosen.items()):
        pixels, left = cache.images(benchmark, domain), _NAME_WIDTH + position * block
        pen.text((left, 2), domain, fill=0)
        for label, numbers in enumerate(rows):
            top = _TITLE_HEIGHT + label * (max(height, 12) + _GAP)
            pen.text((2, top), benchmark.classes[label], fill=0)
            for column, number in enumerate(numbers):
                image = torch.as_tensor(pixels[torch.tensor([number])][0])  # of one or three channels
                colours = image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
                sheet.paste(Image.fromarray(colours), (left + column * (width + _GAP), top))
    png = io.BytesIO()
    sheet.save(png, format="PNG")
    return png.getvalue()


def _index(benchmark: Benchmark, chosen: dict[str, list[list[int]]]) -> str:
    lines = ["row\tcolumn\tdomain\tclass\timage\tname\n"]
    for position, (domain, rows) in enumerate(chosen.items()):
        names = benchmark.captions(domain) if benchmark.captions else None
        for label, numbers in enumerate(rows):
            for column, number in enumerate(numbers, start=position * _EACH + 1):
                cells = (label + 1, column, domain, benchmark.classes[label], number)
                lines.append("\t".join(map(str, (*cells, names[number] if names else ""))) + "\n")
    return "".join(lines)
