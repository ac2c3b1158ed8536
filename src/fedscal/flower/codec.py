"""A message as it is sent: models without the tensors of the source model, as a frame, as Flower's records.

Server and sites hold the same source model (their handshake proves it). A tensor that equals the
source model's bit for bit is left out and put back by the receiver: the frozen head, and in the
first round the whole model. Of a model to judge that comes with one to train from, what equals that one is
left out too. ``transport`` says how floats travel: ``fp32`` as they are, ``fp16`` and
``bf16`` rounded to half their bytes.

All tensors of a message are one array of bytes in safetensors form. Flower carries every array as objects
of its own, each with several requests; a network of forty tensors would need hundreds a message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Final

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedscal.core.errors import ModelRefused, shown
from fedscal.core.types import Groups, Weights
from fedscal.core.weights import flatten, from_bytes, to_bytes, unflatten
from fedscal.runtime.messages import MODEL, Frame, parse_header

JUDGED: Final = "judged"
"""The model to judge that comes with a request for something else, and its judgement in the response."""
_HEADER, _TENSORS = "header", "tensors"
_MAX_HEADER = 1_000_000
_NUMPY_HEAD = 256
"""Bytes in which the description of an array of bytes has room."""
_NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


def encode(
    header: Mapping[str, object], tensors: Groups, models: Sequence[str], source: Weights, transport: str
) -> Frame:
    """Return a message as it is sent.

    Args:
        header: its plain values.
        tensors: its groups of tensors.
        models: the groups that are state dicts with the source model's names; the others travel whole.
        source: the model that both sides have.
        transport: how floats travel.
    """
    full = {**header, "models": sorted(models), "transport": transport}
    return Frame(full, _payload(tensors, models, source, transport))


def _payload(tensors: Groups, models: Sequence[str], source: Weights, transport: str) -> bytes:
    changed = {
        group: _changed(part, _base(group, tensors, source), source, transport) if group in models else part
        for group, part in tensors.items()
    }
    return to_bytes(flatten(changed))


def _base(group: str, groups: Groups, source: Weights) -> Weights:
    """Return the model that a group is sent as the difference from."""
    return groups.get(MODEL, source) if group == JUDGED else source


@dataclass
class Encoder:
    """Encodes messages of models one after the other; what the last one held is not encoded again.

    Many sites are sent the same models. Only the last payload is kept: they may be large, and each site's
    own.
    """

    source: Weights
    transport: str
    _last: Groups = field(default_factory=dict)
    _payload: bytes = b""

    def __call__(self, header: Mapping[str, object], tensors: Groups) -> Frame:
        """Return a message all of whose groups are models."""
        if not (self._payload and _are_same(tensors, self._last)):
            self._payload = _payload(tensors, list(tensors), self.source, self.transport)
            self._last = tensors
        full = {**header, "models": sorted(tensors), "transport": self.transport}
        return Frame(full, self._payload)


def _are_same(groups: Groups, others: Groups) -> bool:
    return groups.keys() == others.keys() and all(groups[name] is others[name] for name in groups)


def decode(frame: Frame, models: Sequence[str], source: Weights, transport: str) -> dict[str, Weights]:
    """Return the groups of tensors of a message; its models are whole again."""
    groups: dict[str, Weights] = {**unflatten(from_bytes(frame.payload, "a message"))}
    for name in sorted(models, key=JUDGED.__eq__):  # last the one that another is needed for
        base = _base(name, {n: groups[n] for n in models if n in groups}, source)
        groups[name] = _whole(groups.get(name, {}), base, transport)
    return groups


def _changed(model: Weights, base: Weights, source: Weights, transport: str) -> Weights:
    """Return what a model has beside another; what it has of the source model is never rounded."""
    return {
        name: tensor if _same(tensor, source.get(name)) else _narrow(tensor, transport)
        for name, tensor in model.items()
        if not _same(tensor, base.get(name))
    }


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
    return tensor is other or (
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


def to_records(frame: Frame) -> RecordDict:
    """Return the records of a frame."""
    return RecordDict(
        {
            _HEADER: ConfigRecord({"json": json.dumps(frame.header)}),
            _TENSORS: ArrayRecord({"safetensors": _array_of(frame.payload)}),
        }
    )


def _array_of(payload: bytes) -> Array:
    """Return bytes as an array of Flower's, in one copy of just their size: Flower's own way takes more."""
    head = BytesIO()
    described = {"descr": "|u1", "fortran_order": False, "shape": (len(payload),)}
    np.lib.format.write_array_header_1_0(head, described)
    data = b"".join((head.getvalue(), payload))
    return Array(dtype="uint8", shape=(len(payload),), stype="numpy.ndarray", data=data)


def taken_out(message: Message, limit: int | None = None) -> Frame:
    """Return what a message holds, and empty the message.

    Flower's objects refer to each other in circles: they, and the model in them, would stay until Python
    looks for such circles, which it does by the number of objects and not by their bytes.
    """
    try:
        return from_records(message.content, limit)
    finally:
        for record in message.content.array_records.values():
            for array in record.values():
                array.data = b""


def from_records(records: RecordDict, limit: int | None = None) -> Frame:
    """Take ``to_records`` back; more bytes than ``limit`` are refused before one of them is decoded."""
    if set(records) != {_HEADER, _TENSORS} or set(records.array_records[_TENSORS]) != {"safetensors"}:
        raise ModelRefused("the message holds other records than a header and tensors")
    text, array = records.config_records[_HEADER]["json"], records.array_records[_TENSORS]["safetensors"]
    if not isinstance(text, str) or len(records.config_records[_HEADER]) != 1:
        raise ModelRefused("the message's header is no text")
    size = len(array.data) + len(text)
    if len(text) > _MAX_HEADER or (limit is not None and size > limit):
        raise ModelRefused(f"the message has {size:,} bytes, more than it may")
    return Frame(parse_header(text.encode()), _bytes_of(array))


def _bytes_of(array: Array) -> bytes:
    """Return the bytes that an array consists of, copied once; by way of NumPy it would be twice."""
    head = BytesIO(array.data[:_NUMPY_HEAD])
    try:
        version = np.lib.format.read_magic(head)
        shape, _, kind = np.lib.format.read_array_header_1_0(head)
    except (ValueError, UnicodeDecodeError, SyntaxError) as error:
        raise ModelRefused("the message's tensors are not what NumPy writes") from error
    if (version, kind, len(shape)) != ((1, 0), np.dtype(np.uint8), 1):
        raise ModelRefused("the message's tensors are not bytes")
    payload = array.data[head.tell() :]
    if shape != (len(payload),):
        raise ModelRefused("the message's tensors are not whole")
    return payload
