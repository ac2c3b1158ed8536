"""Messages as bytes, and the driver that runs clients on this machine."""

from __future__ import annotations

import io
import logging
import struct
from collections.abc import Sequence

import pytest
import torch

from fedscal.core import weights
from fedscal.core.errors import ModelRefused
from fedscal.core.types import ClientId, Failure, Memory, Metrics, Package, Reply, Weights
from fedscal.runtime.local import InProcess, worker_count
from fedscal.runtime.messages import (
    Message,
    join_memory,
    read_message,
    reply_groups,
    reply_header,
    reply_of,
    split_memory,
    write_message,
)
from toys import Kept, model, reply

MESSAGE = Message(
    {"do": "train", "lr": 0.1, "name": "é"}, {"server": model(1.0), "memory:previous": model(2.0)}
)


def encoded(*messages: Message) -> bytes:
    stream = io.BytesIO()
    for message in messages:
        write_message(stream, message)
    return stream.getvalue()


def test_messages_come_back_one_after_the_other() -> None:
    stream = io.BytesIO(encoded(MESSAGE, Message({"last": True})))
    first, second = read_message(stream), read_message(stream)
    assert first is not None
    assert first.header == MESSAGE.header
    assert first.groups.keys() == MESSAGE.groups.keys()
    assert weights.digest(weights.flatten(first.groups)) == weights.digest(weights.flatten(MESSAGE.groups))
    assert second == Message({"last": True}, {})
    assert read_message(stream) is None


@pytest.mark.parametrize(
    "missing", [1, 50, 400, -1], ids=["last byte", "payload", "header", "all but one byte"]
)
def test_a_stream_that_ends_in_a_message_has_no_message(missing: int) -> None:
    data = encoded(MESSAGE)
    assert len(data) > 400
    assert read_message(io.BytesIO(data[:1] if missing < 0 else data[:-missing])) is None


def test_a_payload_that_is_no_safetensors_is_refused() -> None:
    data = struct.pack(">QQ", 2, 12) + b"{}" + b"\x80\x04pickle????"
    with pytest.raises(ModelRefused):
        read_message(io.BytesIO(data))


def test_memory_travels_beside_the_models_and_is_parted_again() -> None:
    models, memory = {"server": model(1.0)}, {"previous": model(2.0)}
    joined = join_memory(models, memory)
    assert split_memory(joined) == (models, memory)
    assert split_memory(models) == (models, {})


def test_a_replys_header_and_weights_make_the_reply_again() -> None:
    told = {"start": {"blend": torch.ones(2)}, "local_classifier": {"bias": torch.zeros(3)}}
    base = Reply("a", 3, model(1.0), 7, ({"loss": 1.0}, {"loss": 0.5}), 2.5, 0.25, told)
    back = reply_of(reply_header(base), reply_groups(base))
    assert reply_header(back) == reply_header(base)
    assert weights.digest(weights.flatten(reply_groups(back))) == weights.digest(
        weights.flatten(reply_groups(base))
    )
    assert back.reports.keys() == told.keys()
    assert set(reply_header(base)) == {"client", "round", "examples", "epochs", "seconds", "drift"}


class Worker:
    """An executor that counts a client's participations in its memory."""

    def train(self, client: ClientId, package: Package, memory: Memory) -> tuple[Reply, Memory]:
        if client == "broken":
            raise RuntimeError("out of memory")
        if client == "diverged":
            raise ArithmeticError
        turns = memory["turns"]["count"] + 1 if memory else torch.tensor(1)
        return reply(client, model(float(turns)), package.round), {"turns": {"count": turns}}

    def __init__(self) -> None:
        self.asked: list[tuple[ClientId, ...]] = []

    def evaluate(self, clients: Sequence[ClientId], weights: Weights) -> dict[ClientId, Metrics]:
        self.asked.append(tuple(clients))
        return {client: {"value": weights["w"][0].item()} for client in clients}


def drive(
    clients: list[ClientId], count: int = 1, rounds: int = 1
) -> tuple[dict[ClientId, Reply | Failure], list[str]]:
    told: list[str] = []
    memories = Kept()
    with InProcess(clients, [Worker() for _ in range(count)], memories, told.append) as driver:
        for index in range(1, rounds + 1):
            answers = driver.exchange({c: Package(index, 0.1, {"server": model(0.0)}) for c in clients})
            found = {answer.client: answer for answer in answers}
    return found, told


@pytest.mark.parametrize("executors", [1, 3])
def test_memories_go_round_and_every_answer_is_announced(executors: int) -> None:
    found, told = drive(["a", "b", "c", "d"], executors, rounds=3)
    assert all(isinstance(one, Reply) and one.weights["w"][0].item() == 3 for one in found.values())
    assert sorted(told) == sorted(["a", "b", "c", "d"] * 3)


@pytest.mark.parametrize("executors", [1, 2])
def test_one_clients_trouble_is_that_clients_alone(executors: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found, _ = drive(["a", "broken", "diverged"], executors)
    assert isinstance(found["a"], Reply)
    assert found["broken"] == Failure("broken", "out of memory")
    assert found["diverged"] == Failure("diverged", "ArithmeticError")
    assert "client broken failed in round 1" in caplog.text


@pytest.mark.parametrize("executors", [1, 2])
def test_every_client_judges_its_own_model_and_equal_ones_share_a_message(executors: int) -> None:
    workers = [Worker() for _ in range(executors)]
    shared, own = model(1.0), model(2.0)
    driver = InProcess(["c", "b", "a", "d"], workers, Kept())
    found = driver.evaluate({"c": shared, "b": own, "a": shared, "d": shared})
    assert [(client, row["value"]) for client, row in found.items()] == [
        ("a", 1),
        ("b", 2),
        ("c", 1),
        ("d", 1),
    ]
    asked = sorted(clients for worker in workers for clients in worker.asked)
    assert asked == ([("a", "c", "d"), ("b",)] if executors == 1 else [("a", "c"), ("b",), ("d",)])


@pytest.mark.parametrize(
    ("asked", "threads", "tasks", "expected"), [(3, 1, 9, 3), (3, 1, 2, 2), (1, 8, 9, 1), (0, 10**6, 9, 1)]
)
def test_the_number_of_workers(asked: int, threads: int, tasks: int, expected: int) -> None:
    assert worker_count(asked, threads, tasks) == expected
