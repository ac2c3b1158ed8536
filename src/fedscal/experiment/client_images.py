"""The clients' images, read when a client is asked for: memory does not grow with the clients that exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from fedscal.client.training import ClientData
from fedscal.core.types import ClientId, Images, Views
from fedscal.data.pixels import take

if TYPE_CHECKING:
    from torch import Tensor

_KEPT = 4_000_000
"""Bytes of domains that stay in memory beside the one that is used."""


class ClientImages(Mapping[ClientId, ClientData]):
    """Which images each client trains on.

    Domains that were read stay until they are too many bytes: a benchmark of a few domains is read once, and
    of ten thousand sites only the last ones are in memory. Images that are mapped stay where they are.
    """

    def __init__(
        self, rows: Mapping[ClientId, tuple[str, Tensor]], read: Callable[[str], Images], views: Views
    ) -> None:
        """Take the domain of each client and its rows there, and what returns a domain's images."""
        self._rows, self._read, self._views = rows, read, views
        self._kept: dict[str, Images] = {}
        self._bytes = 0

    def __getitem__(self, client: ClientId) -> ClientData:
        domain, rows = self._rows[client]
        return ClientData(take(self._domain(domain), rows), self._views)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _domain(self, domain: str) -> Images:
        if domain not in self._kept:
            while self._bytes > _KEPT:
                self._bytes -= _in_memory(self._kept.pop(next(iter(self._kept))))
            self._kept[domain] = self._read(domain)
            self._bytes += _in_memory(self._kept[domain])
        return self._kept[domain]


def _in_memory(images: Images) -> int:
    """Return the bytes of images in memory; those of a mapped file are not."""
    return getattr(images, "nbytes", 0)
