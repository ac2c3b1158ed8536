"""What a driver of the round loop works with: who serves clients, and where their memories are."""

from __future__ import annotations

from typing import Protocol

from fedscal.core.types import ClientId, Failure, Memory
from fedscal.runtime.messages import Request, Response


class Executor(Protocol):
    """Serves requests to clients: the client service in this process, or a worker process."""

    def handle(self, request: Request) -> Response | Failure:
        """Carry out a request."""
        ...


class Memories(Protocol):
    """Stores the clients' memories between rounds."""

    def get(self, client: ClientId, before: int) -> Memory:
        """Return the memory that a client had before a round; empty before its first participation."""
        ...

    def put(self, client: ClientId, round_: int, memory: Memory) -> None:
        """Store a client's memory of a round."""
        ...
