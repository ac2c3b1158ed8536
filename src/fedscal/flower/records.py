"""A header and tensors as Flower's records. Needs no torch: a ClientApp starts anew for every message.

All tensors of a message are one array of bytes in safetensors form. Flower carries every array as objects
of its own, each with several requests; a network of forty tensors would need hundreds a message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedscal.core.documents import parse_json
from fedscal.core.errors import ModelRefused

_HEADER, _TENSORS = "header", "tensors"
_MAX_HEADER = 1_000_000


def to_records(header: Mapping[str, Any], payload: bytes) -> RecordDict:
    """Return the records of a message."""
    return RecordDict(
        {
            _HEADER: ConfigRecord({"json": json.dumps(header)}),
            _TENSORS: ArrayRecord({"safetensors": Array(np.frombuffer(payload, np.uint8))}),
        }
    )


def from_records(records: RecordDict, limit: int | None = None) -> tuple[dict[str, Any], bytes]:
    """Take ``to_records`` back; more bytes than ``limit`` are refused before one of them is decoded."""
    if set(records) != {_HEADER, _TENSORS} or set(records.array_records[_TENSORS]) != {"safetensors"}:
        raise ModelRefused("the message holds other records than a header and tensors")
    text, array = records.config_records[_HEADER]["json"], records.array_records[_TENSORS]["safetensors"]
    if not isinstance(text, str) or len(records.config_records[_HEADER]) != 1:
        raise ModelRefused("the message's header is no text")
    size = len(array.data) + len(text)
    if len(text) > _MAX_HEADER or (limit is not None and size > limit):
        raise ModelRefused(f"the message has {size:,} bytes, more than it may")
    header, bytes_ = _parsed(text), array.numpy()
    if not isinstance(header, dict) or bytes_.dtype != np.uint8 or bytes_.ndim != 1:
        raise ModelRefused("the message's header is not an object, or its tensors are not bytes")
    return header, bytes_.tobytes()


def _parsed(text: str) -> Any:
    try:
        return parse_json(text.encode())
    except ValueError as error:
        raise ModelRefused(f"the message's header cannot be read ({error})") from error
