"""Random streams: one per (seed, purpose, scope), so that no draw can move another.

A stream is a function of its name alone. Skipping the strong view, running clients in another
order or in other processes, or resuming half-way leaves every other stream as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from fedscal.core.lazy import torch


def stream_seed(seed: int, purpose: str, *scope: str | int) -> int:
    """Return the 63-bit seed of the stream with this name."""
    name = "\x1f".join([str(seed), purpose, *(str(part) for part in scope)])
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def stream(seed: int, purpose: str, *scope: str | int) -> torch.Generator:
    """Return a fresh generator at the start of the stream with this name."""
    return torch.Generator().manual_seed(stream_seed(seed, purpose, *scope))


@contextmanager
def global_stream(seed: int, purpose: str, *scope: str | int) -> Iterator[None]:
    """Let torch's global generators be at the start of the stream with this name, and put them back after."""
    start = stream_seed(seed, purpose, *scope)
    if torch.accelerator.is_available():
        with torch.random.fork_rng():
            torch.manual_seed(start)
            yield
        return
    # fork_rng and manual_seed look after every device that there might be, which takes a small client long.
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(start)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


@dataclass(frozen=True)
class Streams:
    """The streams of one client in one round."""

    seed: int
    client: str
    round: int

    def __call__(self, purpose: str) -> torch.Generator:
        """Return a fresh generator at the start of this client's stream for ``purpose``."""
        return stream(self.seed, purpose, self.client, self.round)

    def for_layers(self) -> AbstractContextManager[None]:
        """Give layers that draw from torch's global generator (dropout) their own stream."""
        return global_stream(self.seed, "layers", self.client, self.round)


@contextmanager
def compute_threads(count: int) -> Iterator[None]:
    """Compute with ``count`` threads: sums, and so the last bits, depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
