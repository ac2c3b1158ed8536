"""Messages as bytes: a JSON header and safetensors, never pickle."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from fedscal.types import Groups, Memory, Package, Reply, Weights
from fedscal.weights import flatten, from_bytes, to_bytes, unflatten

_LENGTHS = struct.Struct(">QQ")
_MEMORY = "memory:"
_REPORT = "report:"


@dataclass(frozen=True)
class Message:
    """A header of plain values and named groups of tensors."""

    header: Mapping[str, Any]
    groups: Groups = field(default_factory=dict)


def write_message(stream: BinaryIO, message: Message) -> None:
    """Write one message and flush."""
    header = json.dumps(message.header).encode()
    payload = to_bytes(flatten(message.groups))
    stream.write(_LENGTHS.pack(len(header), len(payload)))
    stream.write(header)
    stream.write(payload)
    stream.flush()


def read_message(stream: BinaryIO) -> Message | None:
    """Read one message; None where the stream ends, even in the middle of one."""
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    header_size, payload_size = _LENGTHS.unpack(lengths)
    header, payload = stream.read(header_size), stream.read(payload_size)
    if len(header) < header_size or len(payload) < payload_size:
        return None
    return Message(json.loads(header), unflatten(from_bytes(payload, "a message")))


def join_memory(groups: Groups, memory: Memory) -> dict[str, Weights]:
    """Put a client's memory beside other groups of tensors."""
    return {**groups, **{_MEMORY + name: group for name, group in memory.items()}}


def split_memory(groups: Groups) -> tuple[dict[str, Weights], dict[str, Weights]]:
    """Take ``join_memory`` back."""
    memory = {n.removeprefix(_MEMORY): group for n, group in groups.items() if n.startswith(_MEMORY)}
    return {n: group for n, group in groups.items() if not n.startswith(_MEMORY)}, memory


def package_header(package: Package) -> dict[str, Any]:
    """Return the scalars of a package; its models travel as groups."""
    return {"round": package.round, "lr": package.lr}


def reply_header(reply: Reply) -> dict[str, Any]:
    """Return the scalars of a reply."""
    return {
        "client": reply.client,
        "round": reply.round,
        "examples": reply.examples,
        "epochs": [dict(epoch) for epoch in reply.epochs],
        "seconds": reply.seconds,
        "drift": reply.drift,
    }


def reply_groups(reply: Reply) -> dict[str, Weights]:
    """Return the tensors of a reply: its weights, and each report under a name of its own."""
    return {"weights": reply.weights, **{_REPORT + name: group for name, group in reply.reports.items()}}


def reply_of(header: Mapping[str, Any], groups: Groups) -> Reply:
    """Take ``reply_header`` and ``reply_groups`` back."""
    reports = {n.removeprefix(_REPORT): group for n, group in groups.items() if n.startswith(_REPORT)}
    return Reply(**header, weights=groups["weights"], reports=reports)
