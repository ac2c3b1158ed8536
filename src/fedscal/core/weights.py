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
from fedscal.core.lazy import safetensors_torch, torch
from fedscal.core.types import Groups, Weights

if TYPE_CHECKING:
    from torch import Tensor

_USUAL = ("torch.strided", "cpu")
_RUN = 2**20
"""Bytes of small tensors that are handled as one."""


class OnDisk(Mapping[str, "Tensor"]):
    """A model whose tensors are read from a disk when they are asked for, and not kept."""

    __slots__ = ()

    @property
    @abstractmethod
    def bytes(self) -> int:
        """How many bytes its tensors take."""

    def part(self, name: str, start: int, stop: int) -> Tensor:
        """Return the numbers from ``start`` to ``stop`` of a tensor, flat."""
        return self[name].reshape(-1)[start:stop]

    def run(self, names: Sequence[str]) -> Tensor:
        """Return the numbers of one of the model's ``runs``, flat."""
        return torch.cat([self[name].reshape(-1) for name in names])


def part(model: Weights, name: str, start: int, stop: int) -> Tensor:
    """Return the numbers from ``start`` to ``stop`` of a model's tensor, flat."""
    return model.part(name, start, stop) if isinstance(model, OnDisk) else model[name].reshape(-1)[start:stop]


def runs(model: Weights) -> list[list[str]]:
    """Return the names of tensors that are best handled as one: of one type, together 1 MB at most.

    A model of few numbers has many small tensors, and each costs a call more than its numbers.
    """
    found: dict[torch.dtype, list[list[str]]] = {}
    room: dict[torch.dtype, int] = {}
    for name, tensor in model.items():
        kind, size = tensor.dtype, tensor.numel() * tensor.element_size()
        if size > room.get(kind, -1):
            found.setdefault(kind, []).append([])
            room[kind] = _RUN
        found[kind][-1].append(name)
        room[kind] -= size
    return [names for each in found.values() for names in each]


def run(model: Weights, names: Sequence[str]) -> Tensor:
    """Return the numbers of tensors of one type, flat."""
    if isinstance(model, OnDisk):
        return model.run(names)
    flat = [model[name].reshape(-1) for name in names]
    return torch.cat(flat) if len(flat) > 1 else flat[0]


def snapshot(weights: Weights) -> dict[str, Tensor]:
    """Return a detached, contiguous copy on the CPU."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in weights.items()
    }


def mean(models: Sequence[Weights], shares: Sequence[float] | None = None) -> dict[str, Tensor]:
    """Average models in the given order: w = sum_i s_i w_i, with s_i = 1/n unless given.

    Sums run in float64, so a bit of the result never depends on more than the order. BatchNorm
    statistics are floats and are averaged too; integer buffers (batch counters) take the maximum.
    """
    shares = shares or [1.0 / len(models)] * len(models)
    shapes = {name: tensor.shape for name, tensor in models[0].items()}
    merged: dict[str, Tensor] = {}
    for names in runs(models[0]):
        flat = (run(model, names) for model in models)
        merged |= _parted(_mean_run(flat, shares), {name: shapes[name] for name in names})
    return {name: merged[name] for name in shapes}


def _parted(flat: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Take ``run`` back; each of several tensors has its own memory."""
    if len(shapes) == 1:
        return {name: flat.reshape(shape) for name, shape in shapes.items()}
    parts = torch.split(flat, [shape.numel() for shape in shapes.values()])
    return {n: part.reshape(shape).clone() for (n, shape), part in zip(shapes.items(), parts, strict=True)}


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
    """Return the Euclidean distance ||a - b|| of the parameters; BatchNorm statistics do not count."""
    moved = {name: t for name, t in a.items() if t.is_floating_point() and not is_statistic(name)}
    squares: dict[str, float] = {}
    for names in runs(moved):
        squares |= _squares(moved, b, names)
    return float(sum(squares[name] for name in sorted(squares)) ** 0.5)  # in an order that no model decides


def _squares(a: Weights, b: Weights, names: Sequence[str]) -> dict[str, float]:
    """Return the square of the distance of each of a few tensors."""
    steps = [a[name].to(torch.float64, copy=True) for name in names]
    torch._foreach_sub_(steps, [b[name] for name in names])
    torch._foreach_mul_(steps, steps)
    return dict(zip(names, torch.stack([step.sum() for step in steps]).tolist(), strict=True))


@functools.lru_cache(4096)  # the names of a model, asked again for every reply
def is_statistic(name: str) -> bool:
    """Whether a tensor of this name is a running statistic of a normalisation layer."""
    return name.rpartition(".")[2].startswith("running_")


@functools.lru_cache(4096)
def belongs_to_site(name: str) -> bool:
    """Whether a site may have a tensor of its own of this name: a statistic, or the head's bias.

    What a site has in the head's bias are its class shares; the few clients that train the head leave it.
    """
    return is_statistic(name) or name == "head.bias"


def statistics(model: Weights) -> dict[str, Tensor]:
    """Return what a site may have of its own in a model."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.items() if belongs_to_site(name)}


def with_statistics(model: Weights, other: Weights) -> dict[str, Tensor]:
    """Return a model with what belongs to a site taken from another one, counters included."""
    return {
        name: other[name] if belongs_to_site(name) or not tensor.is_floating_point() else tensor
        for name, tensor in model.items()
    }


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
    if isinstance(weights, OnDisk):
        return weights.bytes
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


def byte_count_of(groups: Groups) -> int:
    """Return how many bytes several groups of tensors take on the wire."""
    return sum(map(byte_count, groups.values()))


def first_not_finite(weights: Weights) -> str | None:
    """Return the name of the first tensor that holds NaN or infinity, if there is one."""
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not _finite(tensor):
            return name
    return None


def _finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite: where their sum is, they are, and that is sooner known."""
    return math.isfinite(tensor.sum(dtype=torch.float32)) or bool(torch.isfinite(tensor).all())


def unlike(tensors: object, example: Weights) -> str | None:
    """Say in what tensors differ from an example in names, shapes or kinds, if in anything."""
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
    """Return the safetensors form; a tensor that stands under two names is written twice."""
    seen: set[int] = set()
    separate: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        tensor = tensor.contiguous()
        place = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return safetensors_torch.save(separate)


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
