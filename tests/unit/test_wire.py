"""Messages as bytes, and the driver that runs clients on this machine."""

from __future__ import annotations

import io
import logging
import struct
import sys
from pathlib import Path

import pytest
import torch

from fedscal.core import weights
from fedscal.core.errors import DataRefused, ModelRefused
from fedscal.core.types import ClientId, Failure, Package, Reply
from fedscal.runtime.local import LocalDriver, WorkerFailed, WorkerProcess, worker_count
from fedscal.runtime.messages import (
    Request,
    Response,
    failure,
    join_memory,
    package_of,
    read_frame,
    read_request,
    read_response,
    reply_of,
    split_memory,
    training_request,
    training_response,
    write_message,
)
from toys import Kept, model, reply

REQUEST = Request(
    "train", ["a"], {"lr": 0.1, "run": "é"}, {"server": model(1.0), "memory:previous": model(2.0)}
)


def encoded(*requests: Request) -> bytes:
    stream = io.BytesIO()
    for request in requests:
        write_message(stream, request)
    return stream.getvalue()


def test_requests_come_back_one_after_the_other() -> None:
    stream = io.BytesIO(encoded(REQUEST, Request("profile", ["b"])))
    first, second = read_request(stream), read_request(stream)
    assert first is not None
    assert first.header == REQUEST.header
    assert first.tensors.keys() == REQUEST.tensors.keys()
    assert weights.digest(weights.flatten(first.tensors)) == weights.digest(weights.flatten(REQUEST.tensors))
    assert second == Request("profile", ["b"], {}, {})
    assert read_request(stream) is None


def through_bytes(response: Response | Failure) -> Response | Failure | None:
    stream = io.BytesIO()
    write_message(stream, response)
    stream.seek(0)
    return read_response(stream)


def test_a_failure_stays_a_failure_and_its_exception_stays_here() -> None:
    failed = failure("a", DataRefused("other images"))
    back = through_bytes(failed)
    assert back == Failure("a", "other images", DataRefused.exit_code)
    assert isinstance(failed.error, DataRefused)
    assert isinstance(back, Failure)
    assert back.error is None
    assert through_bytes(Response({"metrics": {}})) == Response({"metrics": {}})


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no luck"), "no luck"),
        (ArithmeticError(), "ArithmeticError"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
    ids=str,
)
def test_a_defect_is_named_by_its_kind(error: Exception, reason: str) -> None:
    assert failure("a", error).reason == reason


@pytest.mark.parametrize(
    "missing", [1, 50, 400, -1], ids=["last byte", "payload", "header", "all but one byte"]
)
def test_a_stream_that_ends_in_a_message_has_no_message(missing: int) -> None:
    data = encoded(REQUEST)
    assert len(data) > 400
    assert read_request(io.BytesIO(data[:1] if missing < 0 else data[:-missing])) is None


def test_a_payload_that_is_no_safetensors_is_refused() -> None:
    header = b'{"kind": "x", "clients": [], "scalars": {}}'
    data = struct.pack(">QQ", len(header), 12) + header + b"\x80\x04pickle????"
    with pytest.raises(ModelRefused, match="not a whole safetensors file"):
        read_request(io.BytesIO(data))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 99, "nested more than 32 deep"),
        (b'{"a": ' + b"9" * 99 + b"}", "63 bits"),
        (b"7", "not an object"),
    ],
)
def test_a_header_is_read_within_bounds(text: bytes, reason: str) -> None:
    whole = b"[" * 99 + b"]" * 99 if text.startswith(b"[") else text
    with pytest.raises(ModelRefused, match=reason):
        read_frame(io.BytesIO(struct.pack(">QQ", len(whole), 0) + whole))


def test_a_header_of_any_length_is_not_read() -> None:
    with pytest.raises(ModelRefused, match="more than it may"):
        read_frame(io.BytesIO(struct.pack(">QQ", 2**60, 0)))


def test_memory_travels_beside_the_models_and_is_parted_again() -> None:
    models, memory = {"server": model(1.0)}, {"previous": model(2.0)}
    joined = join_memory(models, memory)
    assert split_memory(joined) == (models, memory)
    assert split_memory(models) == (models, {})
    package = Package(3, 0.5, models)
    assert package_of(training_request("a", package, memory)) == (package, memory)


def test_a_response_makes_the_reply_again() -> None:
    reports = {"start": {"blend": torch.ones(2)}, "local_classifier": {"bias": torch.zeros(3)}}
    memory = {"previous": model(2.0)}
    base = Reply("a", 3, model(1.0), 7, ({"loss": 1.0}, {"loss": 0.5}), 2.5, 0.25, reports)
    sent = training_response(base, memory)
    back, kept = reply_of(sent)
    again = training_response(back, kept)
    assert again.scalars == sent.scalars
    assert weights.digest(weights.flatten(again.tensors)) == weights.digest(weights.flatten(sent.tensors))
    assert kept.keys() == memory.keys()
    assert back.reports.keys() == reports.keys()
    assert set(sent.scalars) == {"client", "round", "examples", "epochs", "seconds", "drift"}


class Worker:
    """An executor that counts a client's participations in its memory."""

    def __init__(self) -> None:
        self.asked: list[tuple[ClientId, ...]] = []

    def handle(self, request: Request) -> Response | Failure:
        if request.kind == "evaluate":
            self.asked.append(tuple(request.clients))
            value = request.tensors["server"]["w"][0].item()
            return Response({"metrics": {client: {"value": value} for client in request.clients}})
        errors = {
            "broken": RuntimeError("out of memory"),
            "diverged": ArithmeticError(),
            "bug": TypeError("x"),
        }
        if request.client in errors:
            return failure(request.client, errors[request.client])
        package, memory = package_of(request)
        turns = memory["turns"]["count"] + 1 if memory else torch.tensor(1)
        return training_response(
            reply(request.client, model(float(turns)), package.round), {"turns": {"count": turns}}
        )


def drive(
    clients: list[ClientId], count: int = 1, rounds: int = 1
) -> tuple[dict[ClientId, Reply | Failure], list[str]]:
    told: list[str] = []
    memories = Kept()
    with LocalDriver(clients, [Worker() for _ in range(count)], memories, told.append) as driver:
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


def test_a_defect_in_this_process_ends_the_run() -> None:
    with pytest.raises(TypeError, match="x"):
        drive(["a", "bug"])


class Refusing:
    """A worker process that cannot use its images, or is gone."""

    def __init__(self, code: int) -> None:
        self._code, self.asked = code, 0

    def handle(self, request: Request) -> Response | Failure:
        self.asked += 1
        return Failure("", "reason", self._code)


def test_what_every_client_would_fail_by_ends_the_run() -> None:
    driver = LocalDriver(["a"], [Refusing(DataRefused.exit_code)], Kept())
    with pytest.raises(DataRefused, match="reason"):
        list(driver.exchange({"a": Package(1, 0.1, {})}))


def test_an_evaluation_is_repeated_once_and_then_ends_the_run() -> None:
    worker = Refusing(1)
    with pytest.raises(WorkerFailed, match="reason"):
        LocalDriver(["a"], [worker], Kept()).evaluate({"a": model(1.0)})
    assert worker.asked == 2


def worker_running(
    code: str, folder: Path, monkeypatch: pytest.MonkeyPatch, spec: object = None
) -> WorkerProcess:
    """Return a worker whose interpreter executes something else."""
    fake = folder / "python"
    fake.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}'\n")
    fake.chmod(0o755)
    monkeypatch.setattr("fedscal.core.module_command.sys.executable", str(fake))
    return WorkerProcess({"spec": spec})


def test_a_worker_that_died_before_it_was_told_anything_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more_than_a_pipe_holds = "x" * 2**20
    worker = worker_running("import os; os._exit(3)", tmp_path, monkeypatch, more_than_a_pipe_holds)
    assert worker.handle(Request("profile", ["a"])) == Failure("a", "its worker process ended with code 3")
    worker.close()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ('raise ImportError("no module fedbnm")', "ended with code 1: ImportError: no module fedbnm"),
        ("import os; os._exit(3)", "ended with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "ended with code -9; out of memory?"),
    ],
)
def test_a_worker_that_died_says_its_own_last_line(
    code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = worker_running(code, tmp_path, monkeypatch)
    assert worker.handle(Request("profile", ["a"])) == Failure("a", f"its worker process {reason}")
    worker.close()
    assert ("Traceback" in capfd.readouterr().err) == ("raise" in code)


def test_a_worker_that_answers_nan_has_failed_and_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.BytesIO()
    write_message(stream, Response({}, {"weights": {"w": torch.tensor([torch.nan])}}))
    (tmp_path / "response").write_bytes(stream.getvalue())
    code = f"""import sys, time
data = open("{tmp_path}/response", "rb").read()
for _ in range(2): sys.stdout.buffer.write(data); sys.stdout.flush()
time.sleep(60)"""
    worker = worker_running(code, tmp_path, monkeypatch)
    first, second = (worker.handle(Request("profile", ["a"])) for _ in range(2))
    worker.close()
    assert isinstance(first, Failure)
    assert "holds NaN" in first.reason
    assert first == second


@pytest.mark.parametrize("executors", [1, 2])
def test_every_client_judges_its_own_model_and_equal_ones_share_a_message(executors: int) -> None:
    workers = [Worker() for _ in range(executors)]
    shared, own = model(1.0), model(2.0)
    driver = LocalDriver(["c", "b", "a", "d"], workers, Kept())
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
