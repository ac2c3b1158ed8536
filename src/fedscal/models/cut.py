"""Where a backbone is cut: the blocks below the cut stay as they came, those above it are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedscal.core.errors import ModelRefused, UsageError, first_line

_RELATIVE, _ABSOLUTE = 1e-4, 1e-5
"""Kernels may add in another order for the parts than for the whole."""


@runtime_checkable
class Divisible(Protocol):
    """A backbone that can be cut between its blocks."""

    def take_apart(self) -> Sequence[nn.Module]:
        """Return modules that make the same features one after another; the whole is not used after that."""


def cut(backbone: nn.Module, thaw: int, name: str, example: Tensor) -> tuple[nn.Module, nn.Module]:
    """Return the part of a backbone that stays frozen, and its last ``thaw`` blocks, pooling included.

    Args:
        backbone: from images to features; it is taken apart.
        thaw: how many blocks; with 0 the backbone is left whole.
        name: the model's name, for sentences.
        example: two images, on which the two parts must give what the whole gives.
    """
    if not thaw:
        return backbone, nn.Identity()
    backbone.eval()
    with torch.no_grad():
        whole = backbone(example)
        blocks = _blocks(backbone, thaw, name)
        trunk, top = nn.Sequential(*blocks[:-thaw]), nn.Sequential(*blocks[-thaw:])
        _check_same(trunk, top, example, whole, f"thaw={thaw}: model={name}")
    return trunk, top


def _blocks(backbone: nn.Module, thaw: int, name: str) -> Sequence[nn.Module]:
    blocks: Sequence[nn.Module] = ()
    if isinstance(backbone, Divisible):
        blocks = backbone.take_apart()
    elif isinstance(backbone, nn.Sequential):
        blocks = grouped(list(backbone))
    if not blocks:
        raise UsageError(
            f"thaw={thaw}: model={name} does not say where it can be cut; thaw=0 leaves it frozen, "
            "trunk=trained trains all of it. One of your own may be an nn.Sequential or have take_apart()."
        )
    if thaw >= len(blocks):
        count = "one block" if len(blocks) == 1 else f"{len(blocks)} blocks"
        raise UsageError(f"thaw={thaw}: model={name} has {count}; trunk=trained trains the whole network.")
    return blocks


def grouped(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Join layers into blocks: one begins at every layer with a matrix of weights.

    Norms, activations, pooling and the like belong to the block before them.

    >>> [len(block) for block in grouped([nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)])]
    [3, 1]
    """
    starts = [place for place, layer in enumerate(layers) if any(p.ndim > 1 for p in layer.parameters())]
    ends = [*starts[1:], len(layers)]
    return [nn.Sequential(*layers[begin:end]) for begin, end in zip([0, *starts[1:]], ends, strict=True)]


def _check_same(trunk: nn.Module, top: nn.Module, example: Tensor, whole: Tensor, named: str) -> None:
    """Refuse parts that are not the backbone: a library may change what it does between blocks."""
    try:
        parts = top.eval()(trunk.eval()(example))
    except Exception as error:
        raise ModelRefused(f"{named} cannot be cut between its blocks: {first_line(error)}") from error
    if parts.shape != whole.shape or not torch.allclose(parts, whole, _RELATIVE, _ABSOLUTE):
        raise ModelRefused(f"{named} cannot be cut between its blocks: its parts do not make its features.")
