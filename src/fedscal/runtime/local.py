"""The embedded driver: clients run on this machine, here or in worker processes.

Where a client runs cannot change a bit: every random stream is named by (seed, purpose, client,
round), every process computes with the same number of threads, and the server sorts the replies.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from types import TracebackType
from typing import Any, Protocol, TypeVar

from fedscal.core.errors import DataRefused, ModelRefused, OutOfSpace
from fedscal.core.types import ClientId, Failure, Memory, Metrics, Package, Reply, Weights
from fedscal.runtime.messages import (
    Message,
    join_memory,
    package_header,
    read_message,
    reply_of,
    split_memory,
    write_message,
)

_log = logging.getLogger(__name__)
_FATAL = {kind.exit_code: kind for kind in (DataRefused, OutOfSpace)}
"""Troubles of a worker that no other client is spared: they end the run."""
K = TypeVar("K")
T = TypeVar("T")


class Executor(Protocol):
    """Something that can do a client's work: a site in this process, or a worker process."""

    def train(self, client: ClientId, package: Package, memory: Memory) -> tuple[Reply, Memory]:
        """Let a client train."""
        ...

    def profile(self, client: ClientId) -> Weights:
        """Let a client tell of itself."""
        ...

    def evaluate(self, clients: Sequence[ClientId], weights: Weights) -> Mapping[ClientId, Metrics]:
        """Let clients judge a model, each on its own data."""
        ...


class Memories(Protocol):
    """Where the clients' memories are kept between rounds."""

    def get(self, client: ClientId) -> Memory:
        """Return a client's memory; empty before its first participation."""
        ...

    def put(self, client: ClientId, round_: int, memory: Memory) -> None:
        """Keep a client's memory of a round."""
        ...


class WorkerFailed(OutOfSpace):
    """A worker process ended, most likely for want of memory, or said that a client's work failed."""


class WorkerProcess:
    """A process that does clients' work; started at once, and again after it died."""

    def __init__(self, begin: Mapping[str, Any]) -> None:
        self._begin = begin
        self._process: subprocess.Popen[bytes] | None = self._start()

    def train(self, client: ClientId, package: Package, memory: Memory) -> tuple[Reply, Memory]:
        """Send the package and the memory over, wait for the reply."""
        header = {"do": "train", "client": client, **package_header(package)}
        result = self._ask(Message(header, join_memory(package.models, memory)))
        groups, kept = split_memory(result.groups)
        return reply_of(result.header["reply"], groups), kept

    def profile(self, client: ClientId) -> Weights:
        """Ask, wait for the answer."""
        return self._ask(Message({"do": "profile", "client": client})).groups["profile"]

    def evaluate(self, clients: Sequence[ClientId], weights: Weights) -> Mapping[ClientId, Metrics]:
        """Send the model over, wait for the scalars."""
        result = self._ask(Message({"do": "evaluate", "clients": list(clients)}, {"server": weights}))
        metrics: Mapping[ClientId, Metrics] = result.header["metrics"]
        return metrics

    def close(self) -> None:
        """End the process."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, request: Message) -> Message:
        process = self._process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        try:
            write_message(process.stdin, request)  # type: ignore[arg-type]
            result = read_message(process.stdout)  # type: ignore[arg-type]
        except OSError:
            result = None
        if result is None:
            code = process.wait()
            self._process = None
            raise WorkerFailed(f"its worker process ended with code {code}; out of memory?")
        if refused := _FATAL.get(result.header.get("code", 0)):
            raise refused(result.header["error"])
        if "error" in result.header:
            raise WorkerFailed(result.header["error"])
        return result

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedscal.experiment.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin
        write_message(process.stdin, Message(dict(self._begin)))  # type: ignore[arg-type]
        return process


class InProcess:
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

    def __enter__(self) -> InProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for executor in self._executors:
            if isinstance(executor, WorkerProcess):
                executor.close()

    def exchange(self, packages: Mapping[ClientId, Package]) -> Iterator[Reply | Failure]:
        """Yield the clients' answers as they come."""
        for client, answer in self._each(packages, self._train):
            self._answered(client)
            yield answer

    def profile(self) -> dict[ClientId, Weights]:
        """Let every client tell of itself."""
        found = dict(self._each(dict.fromkeys(self.clients), lambda site, client, _: site.profile(client)))
        return {client: found[client] for client in sorted(found)}

    def evaluate(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, Metrics]:
        """Let each client judge its model; clients with the same model share a message."""
        tasks: dict[tuple[ClientId, ...], Weights] = {}
        for weights, clients in _sharing(models):
            part = math.ceil(len(clients) / len(self._executors))
            tasks |= {tuple(clients[i : i + part]): weights for i in range(0, len(clients), part)}
        results: dict[ClientId, Metrics] = {}
        for _, metrics in self._each(tasks, _evaluate):
            results |= metrics
        return {client: results[client] for client in sorted(results)}

    def _train(self, executor: Executor, client: ClientId, package: Package) -> Reply | Failure:
        try:
            reply, memory = executor.train(client, package, self._memories.get(client))
        except (ArithmeticError, RuntimeError, ValueError, MemoryError, WorkerFailed, ModelRefused) as error:
            # One client's trouble is that client's alone; the round goes on without it.
            _log.warning("client %s failed in round %d", client, package.round, exc_info=True)
            return Failure(client, str(error) or type(error).__name__)
        if memory:
            self._memories.put(client, package.round, memory)
        return reply

    def _each(self, tasks: Mapping[K, T], work: Callable[[Executor, K, T], Any]) -> Iterator[tuple[K, Any]]:
        """Do the tasks on the free executors; yield (key, result) as they are done."""

        def borrow(key: K, task: T) -> Any:
            executor = self._free.get()
            try:
                return work(executor, key, task)
            finally:
                self._free.put(executor)

        if len(self._executors) == 1:
            yield from ((key, borrow(key, task)) for key, task in tasks.items())
            return
        with ThreadPoolExecutor(len(self._executors)) as pool:
            futures = {pool.submit(borrow, key, task): key for key, task in tasks.items()}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.__exit__(None, None, None)  # a worker in the middle of a training would hold us up
                raise


def _evaluate(
    executor: Executor, clients: Sequence[ClientId], weights: Weights
) -> Mapping[ClientId, Metrics]:
    """Let clients judge a model; a worker process that died is started again, once."""
    try:
        return executor.evaluate(clients, weights)
    except WorkerFailed:
        _log.warning("evaluation failed and is repeated", exc_info=True)
        return executor.evaluate(clients, weights)


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
