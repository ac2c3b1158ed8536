"""One request or answer as bytes on a stream: the lengths, a JSON header, a payload. Needs no torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

_LENGTHS = struct.Struct(">QQ")


def write_frame(stream: BinaryIO, header: Mapping[str, Any], payload: bytes) -> None:
    """Write a header and a payload, and flush."""
    text = json.dumps(header).encode()
    stream.write(_LENGTHS.pack(len(text), len(payload)))
    stream.write(text)
    stream.write(payload)
    stream.flush()


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Read a header and a payload; None where the stream ends, even in the middle of one."""
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    header_size, payload_size = _LENGTHS.unpack(lengths)
    header, payload = stream.read(header_size), stream.read(payload_size)
    if len(header) < header_size or len(payload) < payload_size:
        return None
    return json.loads(header), payload
