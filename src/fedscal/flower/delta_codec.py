"""Models as they travel: what both sides have already stays at home, the rest may be rounded.

Server and sites hold the same source model (their handshake proves it). A tensor that equals the
source model's bit for bit is left out and put back by the receiver: the frozen head, and in the
first round the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedscal.core.errors import ModelRefused, shown
from fedscal.core.types import Groups, Weights
from fedscal.core.weights import flatten, from_bytes, to_bytes, unflatten

Transport = str
"""``fp32``: as it is; ``fp16`` and ``bf16``: floats rounded to half their bytes."""
_NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


def pack(models: Groups, others: Groups, source: Weights, transport: Transport) -> tuple[list[str], bytes]:
    """Return the names of the models and the bytes to send.

    Args:
        models: state dicts with the source model's names.
        others: small groups that travel whole, as they are.
        source: the model that both sides have.
        transport: how floats travel.
    """
    changed = {
        group: {name: _narrow(t, transport) for name, t in model.items() if not _same(t, source.get(name))}
        for group, model in models.items()
    }
    return sorted(models), to_bytes(flatten({**changed, **others}))


def unpack(
    names: Sequence[str], payload: bytes, source: Weights, transport: Transport
) -> tuple[dict[str, Weights], dict[str, Weights]]:
    """Take ``pack`` back: models that are whole again, and the other groups."""
    groups = unflatten(from_bytes(payload, "a message"))
    models = {name: _whole(groups.get(name, {}), source, transport) for name in names}
    return models, {name: group for name, group in groups.items() if name not in models}


def rounded(model: Weights, transport: Transport) -> dict[str, Tensor]:
    """Return a model as the other side will have it."""
    return {name: _widen(_narrow(t, transport), t.dtype, transport) for name, t in model.items()}


def _whole(sent: Weights, source: Weights, transport: Transport) -> Weights:
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


def _narrow(tensor: Tensor, transport: Transport) -> Tensor:
    return tensor.to(_NARROW[transport]) if _narrows(tensor.dtype, transport) else tensor


def _widen(tensor: Tensor, dtype: torch.dtype, transport: Transport) -> Tensor:
    """Take ``_narrow`` back; a tensor of a wrong kind stays wrong, to be found by whoever screens it."""
    return tensor.to(dtype) if _narrows(dtype, transport) and tensor.dtype == _NARROW[transport] else tensor


def _narrows(dtype: torch.dtype, transport: Transport) -> bool:
    return dtype == torch.float32 and transport in _NARROW


def described(header: Mapping[str, Any], names: list[str], transport: Transport) -> dict[str, Any]:
    """Return a header that says how to read the payload."""
    return {**header, "models": names, "transport": transport}
