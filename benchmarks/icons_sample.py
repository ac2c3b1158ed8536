"""A random sample of the icons with their labels, for checking them by eye.

    python -m benchmarks.icons_sample SEED FOLDER [icons-b | icons-c]

Writes one sheet of 60 images a domain, each with its number, its class and where it comes from, and prints
the full names. The same seed draws the same images as long as the archive is the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from fedscal.core import rng
from fedscal.data.icons.benchmark import ARCHIVES, DOMAINS, Archive

EACH, COLUMNS, WIDTH, HEIGHT = 60, 12, 104, 96


def drawn(archive: Archive, domain: str, seed: int) -> list[int]:
    """Return the rows of the sample, in the archive's order."""
    order = torch.randperm(len(archive.index(domain)), generator=rng.stream(seed, "icons-check", domain))
    return sorted(order[:EACH].tolist())


def sheet(archive: Archive, domain: str, rows: list[int]) -> Image.Image:
    """Return the sample as one picture."""
    pixels, entries = archive.tensors(domain)["images"], archive.index(domain)
    page = Image.new("RGB", (COLUMNS * WIDTH, -(-len(rows) // COLUMNS) * HEIGHT), "white")
    pen = ImageDraw.Draw(page)
    for number, row in enumerate(rows):
        left, top = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT
        page.paste(Image.fromarray(pixels[row].permute(1, 2, 0).numpy()), (left + 20, top))
        pen.text((left + 2, top + 64), f"{number} {entries[row]['class']}", fill="red")
        pen.text((left + 2, top + 78), f"{entries[row]['set'][:9]}:{entries[row]['icon']}"[:17], fill="black")
    return page


def main(seed: int, folder: Path, name: str = "icons") -> None:
    """Write the sheets and print the names."""
    (archive,) = (archive for archive in ARCHIVES if archive.name == name)
    folder.mkdir(parents=True, exist_ok=True)
    for domain in DOMAINS:
        rows, entries = drawn(archive, domain, seed), archive.index(domain)
        sheet(archive, domain, rows).save(folder / f"{domain}.png")
        names = [f"{number} {entries[row]['set']}:{entries[row]['icon']}" for number, row in enumerate(rows)]
        print(domain, *names, sep="\n  ")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
