"""Requests to clients and their responses; as bytes both are frames of JSON and safetensors, never pickle."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Final, TypedDict, cast

from fedscal.core.documents import LARGEST, parse_json
from fedscal.core.errors import FedscalError, ModelRefused
from fedscal.core.options import Value
from fedscal.core.types import ClientId, Failure, Groups, Memory, Metrics, Package, Reply, Weights
from fedscal.core.weights import flatten, from_bytes, to_bytes, unflatten

MODEL, WEIGHTS, PROFILE, STATISTICS, REPORT = "server", "weights", "profile", "statistics", "report:"
"""Groups of tensors: the model to evaluate, a client's model, its profile, its statistics, its reports."""
RECEIVED = "received"
"""The model that the one to evaluate was trained from, if their errors are compared."""
UNLIKENESS: Final = "unlikeness"
"""The one number that a client responds when it compares its images with those that a model knows."""
FAILED: Final = "refused"
"""The field of a response's header that says why there is none."""
EXPECTED = (ArithmeticError, RuntimeError, ValueError, MemoryError)
"""What a client's data, or the lack of memory, may raise in its training; anything else is a defect."""
_MEMORY = "memory:"
_LENGTHS = struct.Struct(">QQ")
_NO_TENSORS = (8).to_bytes(8, "little") + b"{}      "
"""An empty safetensors file."""


class Orders(TypedDict, total=False):
    """The plain values of a request.

    A training has its round and learning rate. Flower's requests name the run, and the keys of it that its
    sites need.
    """

    round: int
    lr: float
    run: str
    keys: Mapping[str, Value]


class Header(TypedDict):
    """All of a request but its tensors."""

    kind: str
    clients: Sequence[ClientId]
    scalars: Orders


class Trained(TypedDict, total=False):
    """The plain values of a response to a training: those of a reply, under the same names."""

    client: ClientId
    round: int
    examples: int
    epochs: Sequence[Mapping[str, float]]
    seconds: float
    drift: float


class Answers(Trained, total=False):
    """The plain values of a response: of a training, an evaluation, or a comparison of images."""

    metrics: Mapping[ClientId, Metrics]
    unlikeness: float


class _Refusal(TypedDict):
    refused: str
    client: ClientId
    code: int


@dataclass(frozen=True)
class Request:
    """What clients are asked for.

    Attributes:
        kind: train, evaluate, compare, profile or, on this machine only, statistics; Flower adds a
            handshake.
        clients: who is meant; several share one request to evaluate the same model.
        scalars: plain values.
        tensors: models, and a client's memory beside them.
    """

    kind: str
    clients: Sequence[ClientId]
    scalars: Orders = field(default_factory=Orders)
    tensors: Groups = field(default_factory=dict)

    @property
    def client(self) -> ClientId:
        """The only client."""
        (client,) = self.clients
        return client

    @property
    def header(self) -> Header:
        """All but the tensors."""
        return {"kind": self.kind, "clients": list(self.clients), "scalars": self.scalars}

    @classmethod
    def of(cls, header: Header, tensors: Groups) -> Request:
        """Return the request of a header and tensors."""
        return cls(header["kind"], header["clients"], header["scalars"], tensors)


@dataclass(frozen=True)
class Response:
    """What clients respond: plain values and tensors."""

    scalars: Answers
    tensors: Groups = field(default_factory=dict)


def failure(client: ClientId, error: Exception) -> Failure:
    """Return the failure of a request that ended with an error; a defect is named by its kind."""
    known = isinstance(error, (*EXPECTED, FedscalError))
    text = str(error) if known else f"{type(error).__name__}: {error}"
    code = error.exit_code if isinstance(error, FedscalError) else 1
    return Failure(client, text or type(error).__name__, code, error)


def write_message(stream: BinaryIO, message: Request | Response | Failure) -> None:
    """Write a message as a frame and flush."""
    if isinstance(message, Failure):
        refusal: _Refusal = {FAILED: message.reason, "client": message.client, "code": message.code}
        return write_frame(stream, Frame(refusal))
    plain: Mapping[str, object] = message.header if isinstance(message, Request) else message.scalars
    return write_frame(stream, Frame(plain, to_bytes(flatten(message.tensors))))


def read_request(stream: BinaryIO) -> Request | None:
    """Read a request; None where the stream ends."""
    frame = read_frame(stream)
    return Request.of(cast(Header, frame.header), _tensors(frame)) if frame else None


def read_response(stream: BinaryIO) -> Response | Failure | None:
    """Read a response or a failure; None where the stream ends."""
    frame = read_frame(stream)
    if frame and FAILED in frame.header:
        refusal = cast(_Refusal, frame.header)
        return Failure(refusal["client"], refusal[FAILED], refusal["code"])
    return Response(cast(Answers, frame.header), _tensors(frame)) if frame else None


def _tensors(frame: Frame) -> Groups:
    return unflatten(from_bytes(frame.payload, "a message"))


def training_request(client: ClientId, package: Package, memory: Memory) -> Request:
    """Return the request to train on a package with the memory that the client has."""
    scalars: Orders = {"round": package.round, "lr": package.lr}
    return Request("train", [client], scalars, join_memory(package.models, memory))


def package_of(request: Request) -> tuple[Package, Memory]:
    """Take ``training_request`` back."""
    models, memory = split_memory(request.tensors)
    return Package(int(request.scalars["round"]), float(request.scalars["lr"]), models), memory


def training_response(reply: Reply, memory: Memory) -> Response:
    """Return the response of a client that trained: its reply, and its memory for whoever stores it."""
    scalars: Answers = {
        "client": reply.client,
        "round": reply.round,
        "examples": reply.examples,
        "epochs": [dict(epoch) for epoch in reply.epochs],
        "seconds": reply.seconds,
        "drift": reply.drift,
    }
    groups = {WEIGHTS: reply.weights, **{REPORT + name: group for name, group in reply.reports.items()}}
    return Response(scalars, join_memory(groups, memory))


def reply_of(response: Response) -> tuple[Reply, Memory]:
    """Take ``training_response`` back."""
    return read_reply(response.scalars, response.tensors)


def read_reply(scalars: Trained, tensors: Groups) -> tuple[Reply, Memory]:
    """Return the reply of plain values and tensors, and the memory beside it."""
    groups, memory = split_memory(tensors)
    reports = {n.removeprefix(REPORT): group for n, group in groups.items() if n.startswith(REPORT)}
    reply = Reply(
        client=scalars["client"],
        round=scalars["round"],
        weights=groups[WEIGHTS],
        examples=scalars["examples"],
        epochs=scalars["epochs"],
        seconds=scalars["seconds"],
        drift=scalars["drift"],
        reports=reports,
    )
    return reply, memory


def join_memory(groups: Groups, memory: Memory) -> dict[str, Weights]:
    """Put a client's memory beside other groups of tensors."""
    return {**groups, **{_MEMORY + name: group for name, group in memory.items()}}


def split_memory(groups: Groups) -> tuple[dict[str, Weights], dict[str, Weights]]:
    """Take ``join_memory`` back."""
    memory = {n.removeprefix(_MEMORY): group for n, group in groups.items() if n.startswith(_MEMORY)}
    return {n: group for n, group in groups.items() if not n.startswith(_MEMORY)}, memory


@dataclass(frozen=True)
class Frame:
    """A message in the form in which it travels: a JSON object, and tensors as bytes."""

    header: Mapping[str, object]
    payload: bytes = _NO_TENSORS


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


def parse_header(text: bytes) -> dict[str, object]:
    """Return a header that somebody else wrote."""
    try:
        header = parse_json(text)
    except ValueError as error:
        raise ModelRefused(f"the message's header cannot be read ({error})") from error
    if not isinstance(header, dict):
        raise ModelRefused("the message's header is not an object")
    return header
