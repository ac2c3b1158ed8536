"""The local driver: clients run on this machine, in this process or in worker processes.

Where a client runs cannot change a bit: every random stream is named by (seed, purpose, client,
round), every process computes with the same number of threads, and the server sorts the replies.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, TypeVar

from fedscal.core.errors import DataRefused, ModelRefused, OutOfSpace, shown
from fedscal.core.module_command import module_command
from fedscal.core.types import ClientId, Failure, Groups, Judged, Metrics, Package, Reply, Weights
from fedscal.runtime.messages import (
    EXPECTED,
    MODEL,
    PROFILE,
    RECEIVED,
    STATISTICS,
    UNLIKENESS,
    Frame,
    Request,
    Response,
    failure,
    read_response,
    reply_of,
    training_request,
    write_frame,
    write_message,
)
from fedscal.runtime.protocols import Executor, Memories

_log = logging.getLogger(__name__)
_FATAL = {kind.exit_code: kind for kind in (DataRefused, OutOfSpace)}
"""Failures of a worker that every other client would share: they end the run."""
_STDERR_SECONDS = 5.0
"""How long the rest of a dead worker's output is waited for."""
K = TypeVar("K")
T = TypeVar("T")


class WorkerFailed(OutOfSpace):
    """A worker process ended, or could not do what the run cannot go on without."""


class WorkerProcess:
    """A process that serves clients; started at once, and again after it died."""

    def __init__(self, begin: Mapping[str, Any]) -> None:
        self._begin = begin
        self._process: subprocess.Popen[bytes] | None = self._start()

    def handle(self, request: Request) -> Response | Failure:
        """Send a request over, wait for the response."""
        process = self._process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        try:
            write_message(process.stdin, request)  # type: ignore[arg-type]
            response = read_response(process.stdout)  # type: ignore[arg-type]
        except (OSError, ValueError):  # it died, or was ended by another thread
            response = None
        except ModelRefused as error:  # a response that holds NaN
            return failure(", ".join(request.clients), error)
        if response is None:
            self._process = None
            return Failure(", ".join(request.clients), self._exit_reason(process.wait()))
        return response

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    assert stream
                    stream.close()

    def _exit_reason(self, code: int) -> str:
        self._stderr.join(_STDERR_SECONDS)
        killed = code == -signal.SIGKILL
        hint = "; out of memory?" if killed else f": {shown(self._stderr.last)}" if self._stderr.last else ""
        return f"its worker process ended with code {code}{hint}"

    def _start(self) -> subprocess.Popen[bytes]:
        argv, pipe = module_command("fedscal.experiment.worker"), subprocess.PIPE
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
        assert process.stdin
        assert process.stderr
        self._stderr = _Stderr(process.stderr)
        with contextlib.suppress(OSError):  # it is dead already: the first request finds out why
            write_frame(process.stdin, Frame(self._begin))  # type: ignore[arg-type]
        return process


class _Stderr(threading.Thread):
    """Passes on what a process writes to stderr, and remembers the last line: an exception's message."""

    def __init__(self, stream: Iterable[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream, self.last = stream, ""
        self.start()

    def run(self) -> None:
        """Read to the end."""
        for line in self._stream:
            with contextlib.suppress(OSError):
                os.write(2, line)
            self.last = line.decode(errors="replace").strip() or self.last


class LocalDriver:
    """A driver over one or several executors on this machine."""

    def __init__(
        self,
        clients: Sequence[ClientId],
        executors: Sequence[Executor],
        memories: Memories,
        answered: Callable[[ClientId], None] = lambda client: None,
    ) -> None:
        self.clients = clients
        self._answered = answered
        self._executors = executors
        self._memories = memories
        self._free: queue.Queue[Executor] = queue.Queue()
        for executor in executors:
            self._free.put(executor)

    def __enter__(self) -> LocalDriver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for executor in self._executors:
            if isinstance(executor, WorkerProcess):
                executor.close()

    def exchange(self, packages: Mapping[ClientId, Package]) -> Iterator[Reply | Failure]:
        """Yield the clients' answers as they come."""
        for client, answer in self._each(packages.items(), self._train):
            self._answered(client)
            yield answer

    def profile(self) -> dict[ClientId, Weights]:
        """Collect the profile of every client."""
        profiles = dict(self._each(((client, None) for client in self.clients), _profile))
        return {client: profiles[client] for client in sorted(profiles)}

    def compare(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, float]:
        """Let each client compare its images with those that its model knows."""
        found = dict(self._each(models.items(), _compare))
        return {client: found[client] for client in sorted(found)}

    def statistics(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, Weights]:
        """Collect every client's own statistics for the model that it uses."""
        found = dict(self._each(models.items(), _statistics))
        return {client: found[client] for client in sorted(found)}

    def evaluate(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, Metrics]:
        """Let each client evaluate its model; clients with the same model share a request."""
        tasks: dict[tuple[ClientId, ...], Groups] = {}
        for weights, clients in _sharing(models):
            part = math.ceil(len(clients) / len(self._executors))
            tasks |= {tuple(clients[i : i + part]): {MODEL: weights} for i in range(0, len(clients), part)}
        return self._judged(tasks.items())

    def judge(self, models: Mapping[ClientId, Weights], then: Judged) -> None:
        """Let each client evaluate its model, and say at once what it found."""
        started = time.perf_counter()
        judged = self.evaluate(models)
        then(judged, time.perf_counter() - started)

    def evaluate_own(
        self, replies: Sequence[Reply], received: Mapping[ClientId, Weights]
    ) -> dict[ClientId, Metrics]:
        """Let each client evaluate the model that it has sent, beside the one that it received."""

        def models(reply: Reply) -> Groups:
            before = received.get(reply.client)
            return {MODEL: reply.weights} if before is None else {MODEL: reply.weights, RECEIVED: before}

        return self._judged(((reply.client,), models(reply)) for reply in replies)

    def _judged(self, tasks: Iterable[tuple[tuple[ClientId, ...], Groups]]) -> dict[ClientId, Metrics]:
        results: dict[ClientId, Metrics] = {}
        for _, metrics in self._each(tasks, _evaluate):
            results |= metrics
        return {client: results[client] for client in sorted(results)}

    def _train(self, executor: Executor, client: ClientId, package: Package) -> Reply | Failure:
        try:
            memory = self._memories.get(client, package.round)
        except ModelRefused as error:
            response: Response | Failure = failure(client, error)
        else:
            response = executor.handle(training_request(client, package, memory))
        if isinstance(response, Failure):
            _raise_fatal(response)
            # The failure of one client is that client's alone; the round goes on without it.
            trace = response.error and (type(response.error), response.error, response.error.__traceback__)
            _log.warning("client %s failed in round %d", client, package.round, exc_info=trace)
            return Failure(client, response.reason)
        reply, memory = reply_of(response)
        if memory:
            self._memories.put(client, package.round, memory)
        return reply

    def _each(
        self, tasks: Iterable[tuple[K, T]], work: Callable[[Executor, K, T], Any]
    ) -> Iterator[tuple[K, Any]]:
        """Do the tasks on the free executors; yield (key, result) as they are done."""

        def borrow(key: K, task: T) -> Any:
            executor = self._free.get()
            try:
                return work(executor, key, task)
            finally:
                self._free.put(executor)

        if len(self._executors) == 1:
            yield from ((key, borrow(key, task)) for key, task in tasks)
            return
        with ThreadPoolExecutor(len(self._executors)) as pool:
            # A few ahead of the executors: a future holds its result until it is let go of.
            to_come, running = iter(tasks), dict[Future[Any], K]()
            try:
                while True:
                    some = itertools.islice(to_come, 2 * len(self._executors) - len(running))
                    running |= {pool.submit(borrow, key, task): key for key, task in some}
                    if not running:
                        break
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        yield running.pop(future), future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.__exit__(None, None, None)  # a worker in the middle of a training would hold us up
                raise


def _raise_fatal(failed: Failure) -> None:
    """Raise what ends the run: a defect in this process, or what every other client would fail by."""
    if failed.error and not isinstance(failed.error, (*EXPECTED, ModelRefused)):
        raise failed.error
    if failed.code in _FATAL:
        raise _FATAL[failed.code](failed.reason)


def _required(executor: Executor, request: Request) -> Response:
    """Return the response to a request that the run cannot go on without."""
    response = executor.handle(request)
    if isinstance(response, Failure):
        _raise_fatal(response)
        raise response.error or WorkerFailed(response.reason)
    return response


def _profile(executor: Executor, client: ClientId, _: None) -> Weights:
    return _required(executor, Request("profile", [client])).tensors[PROFILE]


def _compare(executor: Executor, client: ClientId, model: Weights) -> float:
    request = Request("compare", [client], tensors={MODEL: model})
    return float(_required(executor, request).scalars[UNLIKENESS])


def _statistics(executor: Executor, client: ClientId, model: Weights) -> Weights:
    request = Request("statistics", [client], tensors={MODEL: model})
    return _required(executor, request).tensors[STATISTICS]


def _evaluate(executor: Executor, clients: Sequence[ClientId], models: Groups) -> Mapping[ClientId, Metrics]:
    """Let clients evaluate a model; a worker process that died is started again, once."""
    request = Request("evaluate", clients, tensors=models)
    try:
        response = _required(executor, request)
    except WorkerFailed:
        _log.warning("evaluation failed and is repeated", exc_info=True)
        response = _required(executor, request)
    metrics: Mapping[ClientId, Metrics] = response.scalars["metrics"]
    return metrics


def _sharing(models: Mapping[ClientId, Weights]) -> list[tuple[Weights, list[ClientId]]]:
    """Group the clients that have the very same model."""
    groups: dict[int, tuple[Weights, list[ClientId]]] = {}
    for client in sorted(models):
        groups.setdefault(id(models[client]), (models[client], []))[1].append(client)
    return list(groups.values())


def worker_count(asked: int, threads: int, tasks: int) -> int:
    """Return how many processes to use: as asked, or as many as the cores and the tasks allow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(asked or cores // threads, tasks))
