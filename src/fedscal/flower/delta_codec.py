"""The delta codec: a message's models without the tensors of the source model, the rest perhaps rounded.

Server and sites hold the same source model (their handshake proves it). A tensor that equals the
source model's bit for bit is left out and put back by the receiver: the frozen head, and in the
first round the whole model. ``transport`` says how floats travel: ``fp32`` as they are, ``fp16`` and
``bf16`` rounded to half their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedscal.core.errors import ModelRefused, shown
from fedscal.core.types import Groups, Weights
from fedscal.core.weights import flatten, from_bytes, to_bytes, unflatten
from fedscal.runtime.messages import Frame

_NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


def encode(
    header: Mapping[str, Any], tensors: Groups, models: Sequence[str], source: Weights, transport: str
) -> Frame:
    """Return a message as it is sent.

    Args:
        header: its plain values.
        tensors: its groups of tensors.
        models: the groups that are state dicts with the source model's names; the others travel whole.
        source: the model that both sides have.
        transport: how floats travel.
    """
    changed = {
        group: _changed(part, source, transport) if group in models else part
        for group, part in tensors.items()
    }
    full = {**header, "models": sorted(models), "transport": transport}
    return Frame(full, to_bytes(flatten(changed)))


def decode(frame: Frame, models: Sequence[str], source: Weights, transport: str) -> dict[str, Weights]:
    """Return the groups of tensors of a message; its models are whole again."""
    groups: dict[str, Weights] = {**unflatten(from_bytes(frame.payload, "a message"))}
    return groups | {name: _whole(groups.get(name, {}), source, transport) for name in models}


def _changed(model: Weights, source: Weights, transport: str) -> Weights:
    return {name: _narrow(t, transport) for name, t in model.items() if not _same(t, source.get(name))}


def rounded(model: Weights, transport: str) -> dict[str, Tensor]:
    """Return a model as the other side will have it."""
    return {name: _widen(_narrow(t, transport), t.dtype, transport) for name, t in model.items()}


def _whole(sent: Weights, source: Weights, transport: str) -> Weights:
    strange = sorted(sent.keys() - source.keys())
    if strange:
        raise ModelRefused(f"a message holds tensors that the model has not: {shown(strange[0])}")
    return {
        name: _widen(sent[name], tensor.dtype, transport) if name in sent else tensor
        for name, tensor in source.items()
    }


def _same(tensor: Tensor, other: Tensor | None) -> bool:
    """Whether two tensors have the same bits; -0.0 and 0.0 have not."""
    return (
        other is not None
        and tensor.dtype == other.dtype
        and tensor.shape == other.shape
        and torch.equal(_bits(tensor), _bits(other))
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _narrow(tensor: Tensor, transport: str) -> Tensor:
    return tensor.to(_NARROW[transport]) if _narrows(tensor.dtype, transport) else tensor


def _widen(tensor: Tensor, dtype: torch.dtype, transport: str) -> Tensor:
    """Take ``_narrow`` back; a tensor of a wrong kind stays wrong, for the check that follows."""
    return tensor.to(dtype) if _narrows(dtype, transport) and tensor.dtype == _NARROW[transport] else tensor


def _narrows(dtype: torch.dtype, transport: str) -> bool:
    return dtype == torch.float32 and transport in _NARROW
