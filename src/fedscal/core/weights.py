"""State-dict algebra: mean, distance, digest, size, and bytes without pickle."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import safetensors

from fedscal.core.errors import ModelRefused
from fedscal.core.fields import printable, quoted
from fedscal.core.layout import (
    FlatModel,
    LaidOut,
    Layout,
    Stretch,
    in_order,
    is_statistic,
    numbers_in,
    numbers_of,
)
from fedscal.core.lazy import safetensors_torch, torch
from fedscal.core.types import Groups, Weights

if TYPE_CHECKING:
    from torch import Tensor

_USUAL = ("torch.strided", "cpu")


class OnDisk(Mapping[str, "Tensor"]):
    """A model whose tensors are read from a disk when they are asked for, and not kept."""

    __slots__ = ()

    @property
    @abstractmethod
    def bytes(self) -> int:
        """How many bytes its tensors take."""

    def part(self, name: str, start: int, stop: int) -> Tensor:
        """Return the numbers from ``start`` to ``stop`` of a tensor, flat, in the order of a layout."""
        return in_order(self[name])[start:stop]


def part(model: Weights, name: str, start: int, stop: int) -> Tensor:
    """Return the numbers from ``start`` to ``stop`` of a model's tensor, flat, in the order of a layout."""
    return model.part(name, start, stop) if isinstance(model, OnDisk) else in_order(model[name])[start:stop]


def snapshot(weights: Weights) -> FlatModel:
    """Return a detached copy on the CPU."""
    return FlatModel.copy_of(weights)


def mean(models: Sequence[Weights], shares: Sequence[float] | None = None) -> FlatModel:
    """Average models in the given order: w = sum_i s_i w_i, with s_i = 1/n unless given.

    Sums run in float64, so a bit of the result never depends on more than the order. BatchNorm
    statistics are floats and are averaged too; integer buffers (batch counters) take the maximum.
    """
    shares = shares or [1.0 / len(models)] * len(models)
    layout = Layout.of(models[0])
    sums = {run: _mean_run((numbers_of(model, run) for model in models), shares) for run in layout.runs}
    return FlatModel(layout, sums)


def _mean_run(tensors: Iterable[Tensor], shares: Sequence[float]) -> Tensor:
    """Average tensors that are alike, one at a time: they may come from a disk."""
    rest = iter(tensors)
    first = next(rest)
    if not first.is_floating_point():
        return functools.reduce(torch.maximum, rest, first).clone()
    total = torch.zeros(first.shape, dtype=torch.float64)
    for tensor, share in zip(itertools.chain([first], rest), shares, strict=True):
        total.add_(tensor, alpha=share)
    return total.to(first.dtype)


def distance(a: Weights, b: Weights) -> float:
    """Return the Euclidean distance ||a - b|| of the parameters; BatchNorm statistics do not count.

    A difference is rounded once, to the type of the numbers or float32, so by 2^-24 of itself at most; all
    that follows is in float64.
    """
    learned = Layout.of(a).stretches.get("", ())
    return float(sum(_square(a, b, stretch) for stretch in learned if stretch.dtype.is_floating_point) ** 0.5)


def _square(a: Weights, b: Weights, stretch: Stretch) -> float:
    """Return the square of the distance of two models in one stretch."""
    numbers = numbers_in(a, stretch)
    exact = torch.promote_types(numbers.dtype, torch.float32)
    steps = (numbers.to(exact) - numbers_in(b, stretch)).to(torch.float64)
    return float(steps.mul_(steps).sum())


@functools.lru_cache(4096)
def belongs_to_site(name: str) -> bool:
    """Whether a site may have a tensor of its own of this name: a statistic, or the head's bias.

    What a site has in the head's bias are its class shares; the few clients that train the head leave it.
    """
    return is_statistic(name) or name == "head.bias"


def statistics(model: Weights) -> dict[str, Tensor]:
    """Return what a site may have of its own in a model."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.items() if belongs_to_site(name)}


def with_statistics(model: Weights, other: Weights) -> FlatModel:
    """Return a model with what belongs to a site taken from another one, counters included."""
    layout = Layout.of(model)
    places = layout.places.items()
    taken = {name: p.run for name, p in places if belongs_to_site(name) or not p.dtype.is_floating_point}
    runs = {run: numbers_of(model, run) for run in layout.runs}
    # Only what changes is copied: most of a large model belongs to no site.
    made = FlatModel(layout, runs | {run: runs[run].clone() for run in set(taken.values())})
    for name in taken:
        made[name].copy_(other[name])
    return made


def digest(weights: Weights) -> str:
    """Return the sha256 of names, types, shapes and bytes, independent of the order of the names."""
    return _digest((name, weights[name]) for name in sorted(weights))


def digest_of(groups: Groups) -> str:
    """Return the digest of groups as if they were one mapping, ``group/name``, a tensor at a time."""
    places = sorted((f"{group}/{name}", group, name) for group in groups for name in groups[group])
    return _digest((path, groups[group][name]) for path, group, name in places)


def _digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    sha = hashlib.sha256()
    for name, tensor in tensors:
        tensor = tensor.detach().cpu().contiguous()
        sha.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def byte_count(weights: Weights) -> int:
    """Return how many bytes the tensors take on the wire."""
    if isinstance(weights, LaidOut | OnDisk):
        return weights.bytes
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


def byte_count_of(groups: Groups) -> int:
    """Return how many bytes several groups of tensors take on the wire."""
    return sum(map(byte_count, groups.values()))


def first_not_finite(weights: Weights) -> str | None:
    """Return the name of the first tensor that holds NaN or infinity, if there is one."""
    if isinstance(weights, FlatModel) and all(_finite(weights.run(run)) for run in weights.layout.runs):
        return None
    return next((name for name, tensor in weights.items() if not _finite(tensor)), None)


def _finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite: where their sum is, they are, and that is sooner known."""
    if not tensor.is_floating_point():
        return True
    return math.isfinite(tensor.sum(dtype=torch.float32)) or bool(torch.isfinite(tensor).all())


def unlike(tensors: object, example: Weights) -> str | None:
    """Say in what tensors differ from an example in names, shapes or kinds, if in anything."""
    if isinstance(tensors, FlatModel) and tensors.layout is Layout.of(example):
        return None
    if not isinstance(tensors, Mapping):
        return f"it holds {quoted(tensors)} in the place of tensors"
    if tensors.keys() != example.keys():
        odd = min(tensors.keys() ^ example.keys(), key=str)
        return f"its tensors have other names: {quoted(odd)} is missing or unknown"
    for name, tensor in tensors.items():
        if not _alike(tensor, example[name]):
            return f"tensor '{name}' is {printable(_kind(tensor))}, not {_kind(example[name])}, as it must be"
    return None


def _alike(tensor: object, example: Tensor) -> bool:
    return isinstance(tensor, torch.Tensor) and (
        (tensor.shape, tensor.dtype, tensor.layout, tensor.device)
        == (example.shape, example.dtype, example.layout, example.device)
    )


def _kind(tensor: object) -> str:
    """Return type, shape, and what is unusual of a tensor: that it is sparse, or has no numbers at all."""
    if not isinstance(tensor, torch.Tensor):
        return quoted(tensor)
    odd = [str(trait) for trait in (tensor.layout, tensor.device) if str(trait) not in _USUAL]
    return " ".join([str(tensor.dtype), str(tuple(tensor.shape)), *odd])


def flatten(groups: Groups) -> dict[str, Tensor]:
    """Join named groups into one mapping, ``group/name``."""
    return {
        f"{group}/{name}": tensor for group, weights in groups.items() for name, tensor in weights.items()
    }


def unflatten(tensors: Weights) -> dict[str, dict[str, Tensor]]:
    """Take ``flatten`` back."""
    groups: dict[str, dict[str, Tensor]] = {}
    for path, tensor in tensors.items():
        group, _, name = path.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return groups


def to_bytes(weights: Weights) -> bytes:
    """Return the safetensors form; what stands under two names is written twice."""
    whole = {name: tensor.contiguous() for name, tensor in weights.items()}
    end = 0
    for name in sorted(whole, key=lambda name: whole[name].data_ptr()):
        tensor = whole[name]
        begin = tensor.data_ptr()
        if begin < end:  # safetensors takes tensors that share memory, but none that share a number
            whole[name] = tensor.clone()
        end = max(end, begin + tensor.nbytes)
    return safetensors_torch.save(whole)


def from_bytes(data: bytes, where: str) -> dict[str, Tensor]:
    """Read the safetensors form; anything else, a pickle included, is refused and never executed."""
    try:
        tensors = safetensors_torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ModelRefused(
            f"{where} is not a whole safetensors file ({error}); it was not loaded."
        ) from error
    broken = first_not_finite(tensors)
    if broken:
        raise ModelRefused(f"{where}: tensor '{broken}' holds NaN or infinity; it was not loaded.")
    return tensors
