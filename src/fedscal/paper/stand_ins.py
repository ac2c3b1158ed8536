"""Trees of drawn images in the shape of the paper's data sets, for whoever does not have those.

A picture is a star whose points, depth and colour say its class, on a ground that is its domain's. It depends
on its name alone, so that a tree can be drawn in part, in any order, and again.
"""

from __future__ import annotations

import colorsys
import io
import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Literal

from PIL import Image, ImageChops, ImageDraw, ImageOps

from fedscal.core import files
from fedscal.core.convert import convert
from fedscal.core.rng import stream_seed
from fedscal.core.text import size
from fedscal.paper.datasets import DATASETS, MARK

_CANVAS = 256
"""Side that a picture is drawn at before it gets its size: it is quick, and still as large a file to read."""
_POINTS, _DEPTHS = (3, 4, 5, 6, 7, 8, 9), (0.35, 0.6, 0.85)
_GOLDEN = 0.618034
"""Hues that are this far apart fill the circle evenly, however many there are."""
_QUALITY = 90
_SAMPLED = 5
Ground = Literal["white", "gradient", "clouds", "both"]
Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Domain:
    """A domain to be drawn: its folder, how many images, and how they look.

    Attributes:
        folder: its name on disk.
        images: how many there are, if all are drawn.
        classes: images of the least and of the largest class.
        sides: the shortest, the usual and the longest side in pixels.
        ground: what is behind the figure.
        outline: the figure is a line.
        grey: there are no colours.
    """

    folder: str
    images: int
    classes: tuple[int, int]
    sides: tuple[int, int, int]
    ground: Ground
    outline: bool = False
    grey: bool = False


@dataclass(frozen=True)
class Picture:
    """One image to be drawn: the domain, its class's number, its own among them, and its file."""

    dataset: str
    domain: Domain
    label: int
    number: int
    path: Path

    def draw(self) -> bytes:
        """Return it as a JPEG."""
        random = Random(
            stream_seed(0, "rehearsal", self.dataset, self.domain.folder, self.label, self.number)
        )
        image = _ground(self.domain.ground, random)
        _star(image, self.label, self.domain.outline, random)
        image = image.resize(self._size(random), Image.Resampling.BILINEAR)
        file = io.BytesIO()
        (image.convert("L") if self.domain.grey else image).save(file, "JPEG", quality=_QUALITY)
        return file.getvalue()

    def _size(self, random: Random) -> tuple[int, int]:
        """Return width and height; the shortest and the longest side each occur in the first class."""
        shortest, usual, longest = self.domain.sides
        if self.label == 0 and self.number < 2:
            return (shortest, shortest) if self.number == 0 else (longest, longest * 3 // 4)
        side = usual * math.exp(random.gauss(0, 0.35))
        turn = math.exp(random.gauss(0, 0.15)) if longest > shortest else 1.0
        width, height = (min(max(round(s), shortest), longest) for s in (side * turn, side / turn))
        return width, height


@dataclass(frozen=True)
class StandIn:
    """A data set to be drawn: where, and which share of each class."""

    dataset: str
    root: Path
    share: float

    def pictures(self) -> Iterator[Picture]:
        """Yield every image, domain by domain; of a class at least one."""
        classes = DATASETS[self.dataset].classes
        drawn = _DRAWN[self.dataset]
        for domain in drawn.domains:
            for label, images in enumerate(class_counts(domain, len(classes), self.dataset)):
                folder = self.root / domain.folder / drawn.inside / classes[label]
                for number in range(max(1, round(self.share * images))):
                    yield Picture(self.dataset, domain, label, number, folder / f"{number + 1:05}.jpg")

    def missing(self) -> list[Picture]:
        """Return the images that are not there yet."""
        return [picture for picture in self.pictures() if not picture.path.exists()]

    def draw(self, missing: Sequence[Picture], jobs: int, advance: Callable[[], None]) -> None:
        """Draw the missing images, ``jobs`` at a time; what is there is left as it is."""
        files.write_bytes(self.root / MARK, b"Drawn by fedscal reproduce --rehearse.\n")
        pool = ThreadPoolExecutor(jobs)
        try:
            for _ in pool.map(_write, missing):
                advance()
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt must not wait for thousands of drawings


def stand_in(dataset: str, folder: Path, share: float) -> StandIn:
    """Return what is drawn for a data set, in its own folder below one for the share."""
    return StandIn(dataset, folder / f"share-{share:g}" / _DRAWN[dataset].tree, share)


def expected_bytes(missing: Sequence[Picture]) -> int:
    """Estimate what images will take on disk, from a few of every domain."""
    by_folder: dict[str, list[Picture]] = {}
    for picture in missing:
        by_folder.setdefault(picture.domain.folder, []).append(picture)
    total = 0.0
    for mine in by_folder.values():
        sample = islice(mine, 0, None, max(1, len(mine) // _SAMPLED))
        total += len(mine) * fmean(len(picture.draw()) for picture in sample)
    return round(total)


def announced(title: str, missing: Sequence[Picture], place: Path) -> str:
    """Say what is going to be drawn, after making sure that there is room for it."""
    needed = expected_bytes(missing)
    files.check_room(place, needed, f"the drawings for {title}")
    return f"to draw for {title}: {len(missing):,} images, about {size(needed)}, in {place}"


def class_counts(domain: Domain, classes: int, dataset: str) -> list[int]:
    """Deal a domain's images to its classes: unevenly, within their bounds, and all of them."""
    least, most = domain.classes
    random = Random(stream_seed(0, "rehearsal classes", dataset, domain.folder))
    counts, weights = [least] * classes, [0.05 + random.random() ** 2 for _ in range(classes)]
    for _ in range(domain.images - least * classes):
        open_ = [label for label in range(classes) if counts[label] < most]
        (chosen,) = random.choices(open_, [weights[label] for label in open_])
        counts[chosen] += 1
    return counts


def _write(picture: Picture) -> None:
    files.write_bytes(picture.path, picture.draw(), lasting=False)


def _ground(kind: Ground, random: Random) -> Image.Image:
    square = (_CANVAS, _CANVAS)
    if kind == "white":
        return Image.new("RGB", square, "white")
    gradient = Image.linear_gradient("L").rotate(90 * random.randrange(4))
    clouds = Image.frombytes("L", (16, 16), random.randbytes(256)).resize(square, Image.Resampling.BICUBIC)
    grey = {"gradient": gradient, "clouds": clouds, "both": ImageChops.multiply(gradient, clouds)}[kind]
    return ImageOps.colorize(grey, _colour(random.random(), 0.4, 0.5), _colour(random.random(), 0.2, 1.0))


def _star(image: Image.Image, label: int, outline: bool, random: Random) -> None:
    """Draw the figure of a class, somewhere, turned and of some size."""
    points, depth = _POINTS[label % len(_POINTS)], _DEPTHS[label // len(_POINTS) % len(_DEPTHS)]
    radius, turn = _CANVAS * random.uniform(0.25, 0.45), random.uniform(0, math.tau)
    x, y = (_CANVAS * random.uniform(0.4, 0.6) for _ in range(2))
    corners = []
    for corner in range(2 * points):
        reach, angle = radius * (depth if corner % 2 else 1.0), turn + math.pi * corner / points
        corners.append((x + reach * math.cos(angle), y + reach * math.sin(angle)))
    colour = _colour(label * _GOLDEN % 1.0, 0.9, 0.75)
    if outline:
        ImageDraw.Draw(image).polygon(corners, outline=colour, width=6)
    else:
        ImageDraw.Draw(image).polygon(corners, fill=colour)


def _colour(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(hue, saturation, value))
    return red, green, blue


@dataclass(frozen=True)
class _Drawn:
    """A data set's tree: its folder, the folder inside a domain that holds the classes, and the domains."""

    tree: str
    inside: str
    domains: tuple[Domain, ...]

    @classmethod
    def of(cls, facts: dict[str, object]) -> _Drawn:
        tree, inside = str(facts.pop("tree")), str(facts.pop("inside", ""))
        return cls(tree, inside, tuple(convert(domain, Domain) for domain in facts.values()))


_FACTS = (resources.files(__package__) / "rehearsal.toml").read_text("utf-8")
_DRAWN = {name: _Drawn.of(facts) for name, facts in tomllib.loads(_FACTS).items()}
