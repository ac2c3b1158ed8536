"""Look at a folder's images before anything is decoded: how large they are, and what mirroring would do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from fedscal.core.lazy import Image
from fedscal.data.folders import dicom
from fedscal.data.folders.tree import Tree

_LOOKED_AT = 200
_SIGN = re.compile(r"\w|\d{1,2}")
_SIDES = re.compile(
    r"(?<![a-z])(left|right|clockwise|counterclockwise|anticlockwise|links|rechts|gauche|droite|izquierda|derecha)"
    r"(?![a-z])"
)


def typical_side(tree: Tree) -> int:
    """Return the median of the images' shorter sides, of some of all domains; 0 if none can be read."""
    paths = [file.path for files in tree.domains.values() for file in files]
    step = max(1, len(paths) // _LOOKED_AT)
    sides = [side for path in paths[::step] if (side := _shorter_side(path))]
    return int(median(sides)) if sides else 0


def _shorter_side(path: Path) -> int:
    """Return an image's shorter side from its head; 0 of what is no image, which is reported elsewhere."""
    try:
        if path.suffix.lower() in dicom.SUFFIXES:
            return min(dicom.size(path))
        with Image.open(path) as image:
            return min(image.size)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return 0


def mirror_changes(classes: Sequence[str]) -> list[str]:
    """Return the classes that are another class or none in a mirror, by their names.

    Sides and turns count one by one. Single letters and numbers of one or two digits are signs only if most
    classes are: a lone class `x` is no alphabet. Numbers may stand for anything; not to mirror costs little.

    >>> mirror_changes(["left hand", "right_hand", "bright"])
    ['left hand', 'right_hand']
    >>> mirror_changes(["0", "1", "7"]), mirror_changes(["car", "x", "dog"])
    (['0', '1', '7'], [])
    """
    sides = [name for name in classes if _SIDES.search(name.casefold().replace("_", " "))]
    signs = list(_signs(classes))
    return signs if 2 * len(signs) > len(classes) else sides


def _signs(classes: Iterable[str]) -> Iterable[str]:
    return (name for name in classes if _SIGN.fullmatch(name))
