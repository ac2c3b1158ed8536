"""A device that is not the CPU, on a machine that has none: torch's name for it here is ``lazy``.

Tensors there are computed by the CPU, but an operation that mixes them with the CPU's is refused as on a
real device. So tests see whether every tensor is brought where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("lazy")
_INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default)
_EXACTING = (torch.ops.aten.stack.default, torch.ops.aten.cat.default, torch.ops.aten.lerp.Tensor)
"""Operations that do not even take a lone number from the CPU."""
_CROSSING = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class There(Tensor):
    """A tensor on that device; ``held`` are its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> There:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=DEVICE
        )
        made.held = held
        return made

    def tolist(self) -> Any:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub takes the first argument for self
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(function, args, kwargs or {})


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(function, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """torch.tensor makes its tensor below all operations."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch.tensor and kwargs.get("device") == DEVICE:
            return function(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
        return function(*args, **kwargs)


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """Make the device one that computes, for a while."""
    with _Operations(), _Literals():  # type: ignore[no-untyped-call]
        yield DEVICE


def _run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    there = any(isinstance(tensor, There) for tensor in tensors)
    if function not in _CROSSING:
        _refuse_mixture(function, args, tensors)
    asked = kwargs.get("device")
    target = there if asked is None else torch.device(asked) == DEVICE
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    values = tree_map(lambda leaf: leaf.held if isinstance(leaf, There) else leaf, (args, kwargs))
    found = function(*values[0], **values[1])
    if function._schema.name.endswith("_") and isinstance(args[0], There):
        return args[0]  # in place: the values have changed already
    return (
        tree_map(lambda leaf: There(leaf) if isinstance(leaf, Tensor) else leaf, found) if target else found
    )


def _refuse_mixture(function: Any, args: tuple[Any, ...], tensors: Iterable[Tensor]) -> None:
    if function in _INDEXING:  # a tensor may be indexed by rows that are on the CPU, not the other way round
        tensors = [args[0]] if isinstance(args[0], There) else tensors
    counted = [t for t in tensors if t.ndim or isinstance(t, There) or function in _EXACTING]
    sides = {isinstance(tensor, There) for tensor in counted}
    if len(sides) > 1:
        raise RuntimeError(f"{function} mixes tensors of two devices")
