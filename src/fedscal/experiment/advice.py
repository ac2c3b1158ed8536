"""What a folder of images advises: keys that suit what is in it, and why; for a person to read and to change.

A run itself never looks: its keys decide it. ``init`` writes the advice into a recipe, ``pretrain`` takes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedscal.core.errors import some
from fedscal.core.options import Value
from fedscal.data.folders.look import mirror_changes, typical_side
from fedscal.data.folders.tree import Tree
from fedscal.experiment.spec import RunSpec

_USUAL_SIDE = 224
_LEAST_SIDES = {"convnet": 32, "efficientnet-lite0": 96}
"""The smallest views that a network learns from; other networks than these know their size themselves."""
_STEP = 8


@dataclass(frozen=True)
class Advice:
    """A key, its value, and the reason in words for a comment."""

    key: str
    value: Value
    why: str


def advice(tree: Tree, spec: RunSpec) -> list[Advice]:
    """Return what the images of a folder advise for a run of it."""
    return [*_image_size(tree, spec), *_mirror(tree)]


def _image_size(tree: Tree, spec: RunSpec) -> Iterator[Advice]:
    """Advise views as large as the images, if the network would else see them enlarged for nothing.

    A frozen trunk is the exception: it looks at each image once, and what was measured with it, on small
    images too, was measured at its own size (docs/methods.md#fedsite).
    """
    side, usual = typical_side(tree), spec.image_size or _USUAL_SIDE
    if not side or spec.model not in _LEAST_SIDES:
        return
    if spec.trunk == "frozen":
        yield Advice("image_size", usual, f"the size that this network knows; your images have {side} pixels")
        return
    fitting = max(_LEAST_SIDES[spec.model], _STEP * math.ceil(side / _STEP))
    more = "shows nothing more, and" if fitting < usual else "may show more, and"
    yield Advice("image_size", min(usual, fitting), f"your images have {side} pixels; more {more} costs time")


def _mirror(tree: Tree) -> Iterator[Advice]:
    if names := mirror_changes(tree.classes):
        why = f'in a mirror these are no longer what they are called: {some(names, 3)}; else "auto"'
        yield Advice("mirror", "no", why)
