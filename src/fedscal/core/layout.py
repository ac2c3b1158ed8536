"""Models whose numbers lie side by side: a model of few numbers has many tensors, and each costs a call.

A run is what is best handled as one: tensors of one type, together 1 MB at most. Parameters come first, then
means, variances and counters, each in the order of their names, so that what is computed of a run depends on
no model's order. Small kernels of convolutions lie as networks here compute with them, the channels last: to
turn them round takes longer than to copy them. Large ones lie as files have them: to write one needs no copy.
"""

from __future__ import annotations

import functools
import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fedscal.core.lazy import torch
from fedscal.core.types import Weights

if TYPE_CHECKING:
    from torch import Tensor

Run = tuple[str, ...]
"""Names of tensors that are handled as one."""
_MOST = 2**20
"""Bytes of small tensors in a run."""
_Kinds: TypeAlias = "tuple[tuple[str, torch.Size, torch.dtype], ...]"
_KERNEL, _SMALL = 4, 2**18
"""Dimensions of a convolution's kernels: out, channels, height, width; and the numbers of small ones."""
COUNTER = "num_batches_tracked"
"""What BatchNorm calls the number of batches that it has seen."""


@functools.lru_cache(4096)  # the names of a model, asked again for every reply
def statistic(name: str) -> str:
    """Return what a normalisation layer calls a tensor that it does not learn; nothing of all others."""
    last = name.rpartition(".")[2]
    return last if last.startswith("running_") or last == COUNTER else ""


def is_statistic(name: str) -> bool:
    """Whether a tensor of this name is a running statistic of a normalisation layer."""
    return statistic(name).startswith("running_")


@dataclass(frozen=True)
class Stretch:
    """Where tensors of one kind lie side by side: parameters, or one statistic of all layers."""

    names: Run
    run: Run
    start: int
    stop: int
    dtype: torch.dtype


@dataclass(frozen=True)
class Place:
    """Where a tensor is: its run, how many numbers of that come before it, and bytes of the model."""

    run: Run
    first: int
    byte: int
    shape: torch.Size
    dtype: torch.dtype

    @property
    def count(self) -> int:
        """How many numbers it holds."""
        return self.shape.numel()


@dataclass(frozen=True, eq=False)
class Layout:
    """How a model lies: its runs one after the other, and so the tensors of each. Models of a kind share one.

    Attributes:
        runs: the runs.
        stretches: where the numbers of each kind are, by what ``statistic`` calls it.
        places: where each tensor is, in the order of the model.
        bytes: how many there are.
    """

    runs: Sequence[Run]
    stretches: Mapping[str, Sequence[Stretch]]
    places: Mapping[str, Place]
    bytes: int

    @classmethod
    def of(cls, model: Weights) -> Layout:
        """Return the layout of a model."""
        if isinstance(model, LaidOut):
            return model.layout
        return _layout(tuple((name, tensor.shape, tensor.dtype) for name, tensor in model.items()))

    def name_at(self, stretch: Stretch, number: int) -> str:
        """Return the name of the tensor that a number of a stretch belongs to."""
        place = stretch.start + number
        return next(name for name in reversed(stretch.names) if self.places[name].first <= place)

    def count(self, run: Run) -> int:
        """Return how many numbers a run holds."""
        last = self.places[run[-1]]
        return last.first + last.count


@functools.lru_cache(64)
def _layout(kinds: _Kinds) -> Layout:
    runs, byte = _runs(kinds), 0
    shapes = {name: (shape, dtype) for name, shape, dtype in kinds}
    places: dict[str, Place] = {}
    stretches: dict[str, list[Stretch]] = {}
    for run in runs:
        first = 0
        for kind, side_by_side in itertools.groupby(run, statistic):
            names, start = tuple(side_by_side), first
            for name in names:
                places[name] = place = Place(run, first, byte, *shapes[name])
                first += place.count
                byte += place.count * place.dtype.itemsize
            stretches.setdefault(kind, []).append(Stretch(names, run, start, first, place.dtype))
    return Layout(runs, stretches, {name: places[name] for name in shapes}, byte)


def _runs(kinds: _Kinds) -> list[Run]:
    found: dict[torch.dtype, list[list[str]]] = {}
    room: dict[torch.dtype, int] = {}
    for name, shape, dtype in sorted(kinds, key=lambda kind: (statistic(kind[0]), kind[0])):
        size = shape.numel() * dtype.itemsize
        if size > room.get(dtype, -1):
            found.setdefault(dtype, []).append([])
            room[dtype] = _MOST
        found[dtype][-1].append(name)
        room[dtype] -= size
    return [tuple(names) for each in found.values() for names in each]


class LaidOut(Mapping[str, "Tensor"]):
    """A model that is laid out in runs."""

    __slots__ = ()

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """How it lies."""

    @abstractmethod
    def run(self, run: Run) -> Tensor:
        """Return the numbers of a run, flat."""

    @property
    def bytes(self) -> int:
        """How many bytes its tensors take."""
        return self.layout.bytes

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.places)

    def __len__(self) -> int:
        return len(self.layout.places)


class FlatModel(LaidOut):
    """A model in memory, each run in one piece; its tensors are made when they are asked for."""

    __slots__ = ("_layout", "_runs", "_tensors")

    def __init__(self, layout: Layout, runs: Mapping[Run, Tensor]) -> None:
        self._layout, self._runs = layout, runs
        self._tensors: dict[str, Tensor] = {}

    @classmethod
    def copy_of(cls, model: Weights) -> FlatModel:
        """Return a detached copy on the CPU."""
        layout = Layout.of(model)
        with torch.no_grad():
            return cls(layout, {run: _copied(model, run) for run in layout.runs})

    @property
    def layout(self) -> Layout:
        """How it lies."""
        return self._layout

    def run(self, run: Run) -> Tensor:
        """Return the numbers of a run, flat: the model's own."""
        return self._runs[run]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._tensors:
            place = self._layout.places[name]
            flat = self._runs[place.run]
            self._tensors[name] = in_shape(flat[place.first : place.first + place.count], place.shape)
        return self._tensors[name]


def numbers_of(model: Weights, run: Run) -> Tensor:
    """Return the numbers of a run of a model, flat."""
    if isinstance(model, LaidOut) and run in model.layout.runs:
        return model.run(run)
    return _flat([model[name] for name in run])


def numbers_in(model: Weights, stretch: Stretch) -> Tensor:
    """Return the numbers of a stretch of a model, flat."""
    if isinstance(model, LaidOut) and stretch.run in model.layout.runs:
        return model.run(stretch.run)[stretch.start : stretch.stop]
    return _flat([model[name] for name in stretch.names])


def in_order(tensor: Tensor) -> Tensor:
    """Return a tensor's numbers, flat, in the order in which they lie."""
    return _turned(tensor).reshape(-1)


def in_shape(numbers: Tensor, shape: torch.Size) -> Tensor:
    """Return the tensor of this shape whose numbers lie so; ``in_order`` turned round."""
    if not _turns(shape):
        return numbers.view(shape)
    out, channels, height, width = shape
    return numbers.view(out, height, width, channels).permute(0, 3, 1, 2)


def _turned(tensor: Tensor) -> Tensor:
    return tensor.permute(0, 2, 3, 1) if _turns(tensor.shape) else tensor


def _turns(shape: torch.Size) -> bool:
    """Whether tensors of a shape lie with their channels last, whatever their type: models are compared."""
    return len(shape) == _KERNEL and shape.numel() <= _SMALL


def _flat(tensors: list[Tensor]) -> Tensor:
    return in_order(tensors[0]) if len(tensors) == 1 else _joined(tensors)


def _copied(model: Weights, run: Run) -> Tensor:
    """Return the numbers of a run in new memory on the CPU; a large tensor is copied once."""
    if len(run) == 1:
        only = _turned(model[run[0]].detach())
        return only.cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
    return _joined([model[name] for name in run]).cpu()


def _joined(tensors: list[Tensor]) -> Tensor:
    """Return the numbers of several tensors, flat, by one call for all."""
    flat: Tensor = torch._C._nn.flatten_dense_tensors([_turned(tensor) for tensor in tensors])
    return flat
