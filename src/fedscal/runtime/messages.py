"""Messages as bytes: a JSON header and safetensors, never pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from fedscal.core.types import Groups, Memory, Package, Reply, Weights
from fedscal.core.weights import flatten, from_bytes, to_bytes, unflatten
from fedscal.runtime.frames import read_frame, write_frame

_MEMORY = "memory:"
REPORT, WEIGHTS, PROFILE = "report:", "weights", "profile"
_SCALARS = ("client", "round", "examples", "epochs", "seconds", "drift")


@dataclass(frozen=True)
class Message:
    """A header of plain values and named groups of tensors."""

    header: Mapping[str, Any]
    groups: Groups = field(default_factory=dict)


def write_message(stream: BinaryIO, message: Message) -> None:
    """Write one message and flush."""
    write_frame(stream, message.header, to_bytes(flatten(message.groups)))


def read_message(stream: BinaryIO) -> Message | None:
    """Read one message; None where the stream ends, even in the middle of one."""
    frame = read_frame(stream)
    return Message(frame[0], unflatten(from_bytes(frame[1], "a message"))) if frame else None


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
    scalars = {name: getattr(reply, name) for name in _SCALARS}
    return {**scalars, "epochs": [dict(epoch) for epoch in reply.epochs]}


def reply_groups(reply: Reply) -> dict[str, Weights]:
    """Return the tensors of a reply: its weights, and each report under a name of its own."""
    return {WEIGHTS: reply.weights, **{REPORT + name: group for name, group in reply.reports.items()}}


def reply_of(header: Mapping[str, Any], groups: Groups) -> Reply:
    """Take ``reply_header`` and ``reply_groups`` back."""
    reports = {n.removeprefix(REPORT): group for n, group in groups.items() if n.startswith(REPORT)}
    scalars = {name: header[name] for name in _SCALARS}
    return Reply(**scalars, weights=groups[WEIGHTS], reports=reports)
