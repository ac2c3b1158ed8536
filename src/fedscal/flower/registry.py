"""The sites of a run: Flower's nodes and the clients that they speak for, proved by a handshake."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedscal.core.errors import DataRefused, FedscalError, ModelRefused, TooFewClients, UsageError, shown
from fedscal.core.fields import printable
from fedscal.core.options import Value
from fedscal.core.types import ClientId, Failure
from fedscal.flower.codec import decode, encode
from fedscal.flower.headers import SiteAnswers
from fedscal.flower.schema import handshake
from fedscal.flower.transport import GridTransport, TimedOut, describe_error, succeeded
from fedscal.runtime.messages import Frame, Request

_log = logging.getLogger(__name__)
_HANDSHAKE = 120.0
"""Seconds for a handshake: a site may decode its images for it."""
_HANDSHAKES = 2
"""Handshakes that a node may leave unanswered until the rounds go on without it; a restart begins anew."""
_POLL = 1.0


@dataclass(frozen=True)
class RegisteredSite:
    """A site as its handshake describes it."""

    node: int
    domain: str
    images: int


@dataclass
class Registry:
    """The sites of a run, and at which node each is reached.

    Attributes:
        grid: Flower's connection to the nodes.
        transport: carries the handshakes.
        expected: the sites that the run names.
        stamp: version, classes and source model that every site must have.
        keys: the options of the run, for which a site counts its images.
        warn: takes warnings about nodes that are left out.
        changed: is told who is connected and who is missing, whenever a site comes or goes.
    """

    grid: Grid
    transport: GridTransport
    expected: Collection[ClientId]
    stamp: Mapping[str, str]
    keys: Mapping[str, Value]
    warn: Callable[[str], None] = _log.warning
    changed: Callable[[Sequence[ClientId], Sequence[ClientId]], None] = lambda there, missing: None
    sites: dict[ClientId, RegisteredSite] = field(default_factory=dict)
    refused: dict[ClientId, FedscalError] = field(default_factory=dict)
    _strangers: set[int] = field(default_factory=set)
    _unanswered: Counter[tuple[int, str]] = field(default_factory=Counter)
    _told: Sequence[ClientId] = ()

    @property
    def missing(self) -> list[ClientId]:
        """The expected sites that are not connected."""
        return sorted(set(self.expected) - self.sites.keys())

    def update(self) -> None:
        """Remove the nodes that are gone and shake hands with the new ones."""
        nodes = {info.node_id: info for info in self.grid.get_nodes()}
        self.sites = {client: site for client, site in self.sites.items() if site.node in nodes}
        known = {site.node for site in self.sites.values()} | self._strangers
        frame = encode(Request("hello", [], {"keys": dict(self.keys)}).header, {}, [], {}, "fp32")
        new = {
            str(node): node
            for node, info in nodes.items()
            if node not in known and self._unanswered[_start(info)] < _HANDSHAKES
        }
        for name, response in self.transport.exchange(
            new, lambda name: frame, _HANDSHAKE, lambda name, answer: succeeded(answer)
        ):
            info = nodes[int(name)]
            if isinstance(response, Failure):
                self._unanswered[_start(info)] += isinstance(response, TimedOut)
                self.warn(f"{info.name or f'node {name}'}: {response.reason}")
            else:
                self._admit(info.node_id, info.name, response)
        self._tell()

    def _tell(self) -> None:
        there = sorted(self.sites)
        if there != list(self._told):
            self._told = there
            self.changed(there, self.missing)

    def _admit(self, node: int, registered: str, response: Frame) -> None:
        client = response.header.get("client")
        if not isinstance(client, str) or client not in self.expected:
            self._strangers.add(node)
            self.warn(f"a site that this run does not name was left out: {registered or shown(client)}")
            return
        try:
            self._check(client, registered, response.header)
            self.sites[client] = _site(node, client, response)
            self.refused.pop(client, None)
        except FedscalError as error:
            self.refused[client] = error

    def _check(self, client: ClientId, registered: str, header: Mapping[str, object]) -> None:
        if registered and registered != client:
            raise UsageError(
                f"the key that is registered as {registered} spoke for {client}: give it its own."
            )
        if client in self.sites:
            raise UsageError(
                f"two sites say that they are {client}: end one of them, or give it another name."
            )
        check_stamp(client, header, self.stamp)

    def wait_for_all(self, seconds: float) -> None:
        """Wait until every expected site is connected."""
        self.wait_for(len(self.expected), seconds)

    def wait_for(self, least: int, seconds: float) -> None:
        """Wait for all sites, and be content with the least number of them when the time is over.

        What a person must mend is an error at once.
        """
        end = time.monotonic() + seconds
        while True:
            self._unanswered.clear()  # nothing else is waited for: a site that is slow is asked again
            self.update()
            if self.refused:
                raise self.refused[min(self.refused)]
            if not self.missing:
                return
            if time.monotonic() > end:
                self._refuse_fewer(least, seconds)
                return
            time.sleep(_POLL)

    def _refuse_fewer(self, least: int, seconds: float) -> None:
        there = sorted(self.sites)
        if len(there) < least:
            advice = f"; --at-least {len(there)} starts with {', '.join(there)}" if there else ""
            raise TooFewClients(f"{', '.join(self.missing)} did not come within {seconds:g} s{advice}.")

    def wait_for_any(self, clients: Collection[ClientId], seconds: float) -> None:
        """Wait until one of the clients is connected: without any there is no round."""
        end = time.monotonic() + seconds
        self.update()
        while not self.sites.keys() & set(clients) and time.monotonic() < end:
            time.sleep(_POLL)
            self.update()


def _start(info: NodeInfo) -> tuple[int, str]:
    """Identify one start of a node."""
    return info.node_id, info.last_activated_at


def _site(node: int, client: ClientId, response: Frame) -> RegisteredSite:
    """Return the site that a handshake describes, if all of it is on the list."""
    try:
        handshake(client).check(response.header, decode(response, [], {}, "fp32"))
    except Exception as error:  # whatever it is, it is this handshake's failure
        raise ModelRefused(f"the handshake of {client} was refused: {describe_error(error)}") from error
    told = cast(SiteAnswers, response.header)
    return RegisteredSite(node, told["domain"], told["images"])


def check_stamp(client: ClientId, header: Mapping[str, object], wanted: Mapping[str, str]) -> None:
    """Refuse a site that is not of the same federation, and say in what it differs."""
    version = header.get("version")
    if version != wanted["version"]:
        theirs = printable(version, 64) if isinstance(version, str) else shown(version)
        raise UsageError(
            f"{client} runs fedscal {theirs} and the server {wanted['version']}: "
            "install the same version on both."
        )
    if header.get("classes_sha256") != wanted["classes_sha256"]:
        raise DataRefused(
            f"{client} has another class list than the server: give both the same source model."
        )
    if header.get("model_sha256") != wanted["model_sha256"]:
        raise ModelRefused(f"{client} has another source model than the server: give both the same.")
