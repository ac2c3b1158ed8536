"""A message as bytes on a stream: the lengths, a JSON header, a payload. Needs no torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from fedscal.core.documents import LARGEST, parse_json
from fedscal.core.errors import ModelRefused

_LENGTHS = struct.Struct(">QQ")


@dataclass(frozen=True)
class Frame:
    """A message in the form in which it travels: a JSON object, and tensors as bytes."""

    header: Mapping[str, Any]
    payload: bytes = b""


def write_frame(stream: BinaryIO, frame: Frame) -> None:
    """Write a frame, and flush."""
    text = json.dumps(frame.header).encode()
    stream.write(_LENGTHS.pack(len(text), len(frame.payload)))
    stream.write(text)
    stream.write(frame.payload)
    stream.flush()


def read_frame(stream: BinaryIO) -> Frame | None:
    """Read a frame; None where the stream ends, even in the middle of one."""
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    header_size, payload_size = _LENGTHS.unpack(lengths)
    if header_size > LARGEST:
        raise ModelRefused(f"a message's header has {header_size:,} bytes, more than it may")
    header, payload = stream.read(header_size), stream.read(payload_size)
    if len(header) < header_size or len(payload) < payload_size:
        return None
    return Frame(parse_header(header), payload)


def parse_header(text: bytes) -> dict[str, Any]:
    """Return a header that somebody else wrote."""
    try:
        header = parse_json(text)
    except ValueError as error:
        raise ModelRefused(f"the message's header cannot be read ({error})") from error
    if not isinstance(header, dict):
        raise ModelRefused("the message's header is not an object")
    return header
