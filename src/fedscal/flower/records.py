"""The codec of Flower's records: a frame as a RecordDict. Needs no torch.

All tensors of a message are one array of bytes in safetensors form. Flower carries every array as objects
of its own, each with several requests; a network of forty tensors would need hundreds a message.
"""

from __future__ import annotations

import json

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedscal.core.errors import ModelRefused
from fedscal.runtime.messages import Frame, parse_header

_HEADER, _TENSORS = "header", "tensors"
_MAX_HEADER = 1_000_000


def to_records(frame: Frame) -> RecordDict:
    """Return the records of a frame."""
    return RecordDict(
        {
            _HEADER: ConfigRecord({"json": json.dumps(frame.header)}),
            _TENSORS: ArrayRecord({"safetensors": Array(np.frombuffer(frame.payload, np.uint8))}),
        }
    )


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
    tensors = array.numpy()
    if tensors.dtype != np.uint8 or tensors.ndim != 1:
        raise ModelRefused("the message's tensors are not bytes")
    return Frame(parse_header(text.encode()), tensors.tobytes())
