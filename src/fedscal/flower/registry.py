"""Who is there: nodes of Flower and the clients that they speak for, proved by a handshake."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.serverapp import Grid

from fedscal.core.errors import DataRefused, FedscalError, ModelRefused, TooFewClients, UsageError, shown
from fedscal.core.fields import printable
from fedscal.core.types import ClientId
from fedscal.flower.delta_codec import pack, unpack
from fedscal.flower.schema import greeting
from fedscal.flower.transport import Answer, Letter, Post, said

_log = logging.getLogger(__name__)
_HELLO = 120.0
"""Seconds for a handshake: a site may decode its images for it."""
_LOOK = 1.0


@dataclass(frozen=True)
class Site:
    """What a site said of itself."""

    node: int
    domain: str
    images: int


@dataclass
class Roster:
    """The sites of a run, and at which node each is reached.

    Attributes:
        grid: Flower's connection to the nodes.
        post: carries the handshakes.
        expected: the sites that the run names.
        stamp: version, classes and source model that every site must have.
        keys: the keys of the run, for which a site counts its images.
        warn: who is told of strangers.
    """

    grid: Grid
    post: Post
    expected: Collection[ClientId]
    stamp: Mapping[str, str]
    keys: Mapping[str, Any]
    warn: Callable[[str], None] = _log.warning
    sites: dict[ClientId, Site] = field(default_factory=dict)
    refused: dict[ClientId, FedscalError] = field(default_factory=dict)
    _strangers: set[int] = field(default_factory=set)

    @property
    def missing(self) -> list[ClientId]:
        """The expected sites that are not there."""
        return sorted(set(self.expected) - self.sites.keys())

    def meet(self) -> None:
        """Forget the nodes that are gone and shake hands with the new ones."""
        nodes = {info.node_id: info.name for info in self.grid.get_nodes()}
        self.sites = {client: site for client, site in self.sites.items() if site.node in nodes}
        known = {site.node for site in self.sites.values()} | self._strangers
        hello = {"do": "hello", "keys": dict(self.keys)}
        nothing = pack({}, {}, {}, "fp32")[1]
        letters = {str(node): Letter(node, hello, nothing) for node in nodes if node not in known}
        for name, answer in self.post.ask(letters, _HELLO, lambda name, answer: answer):
            node = int(name)
            if isinstance(answer, Answer):
                self._admit(node, nodes[node], answer)
            else:
                self.warn(f"{nodes[node] or f'node {node}'}: {answer}")

    def _admit(self, node: int, registered: str, answer: Answer) -> None:
        client = answer.header.get("client")
        if not isinstance(client, str) or client not in self.expected:
            self._strangers.add(node)
            self.warn(f"a site that this run does not name was left out: {registered or shown(client)}")
            return
        try:
            self._check(client, registered, answer.header)
            self.sites[client] = _site(node, client, answer)
            self.refused.pop(client, None)
        except FedscalError as error:
            self.refused[client] = error

    def _check(self, client: ClientId, registered: str, header: Mapping[str, Any]) -> None:
        if registered and registered != client:
            raise UsageError(
                f"the key that is registered as {registered} spoke for {client}: give it its own."
            )
        if client in self.sites:
            raise UsageError(
                f"two sites say that they are {client}: end one of them, or give it another name."
            )
        check_stamp(client, header, self.stamp)

    def gather(self, seconds: float) -> None:
        """Wait until every expected site is there; what a person must mend is an error at once."""
        end = time.monotonic() + seconds
        while True:
            self.meet()
            if self.refused:
                raise self.refused[min(self.refused)]
            if not self.missing:
                return
            if time.monotonic() > end:
                raise TooFewClients(f"{', '.join(self.missing)} did not come within {seconds:g} s.")
            time.sleep(_LOOK)

    def await_any(self, clients: Collection[ClientId], seconds: float) -> None:
        """Wait until one of the clients is there: a round that nobody can answer is no round."""
        end = time.monotonic() + seconds
        self.meet()
        while not self.sites.keys() & set(clients) and time.monotonic() < end:
            time.sleep(_LOOK)
            self.meet()

    def absence(self, client: ClientId) -> str:
        """Say why a client cannot be reached."""
        return str(self.refused.get(client, "is not connected"))


def _site(node: int, client: ClientId, answer: Answer) -> Site:
    """Return what a site says of itself, if it is on the list."""
    try:
        greeting(client).check(answer.header, unpack([], answer.payload, {}, "fp32")[1])
    except Exception as error:  # whatever it is, it is this handshake's failure
        raise ModelRefused(f"the handshake of {client} was refused: {said(error)}") from error
    return Site(node, answer.header["domain"], answer.header["images"])


def check_stamp(client: ClientId, header: Mapping[str, Any], wanted: Mapping[str, str]) -> None:
    """Refuse a site that is not of the same federation, and say in what it differs."""
    if header.get("version") != wanted["version"]:
        raise UsageError(
            f"{client} runs fedscal {_version(header)} and the server {wanted['version']}: "
            "install the same version on both."
        )
    if header.get("classes_sha256") != wanted["classes_sha256"]:
        raise DataRefused(
            f"{client} has another class list than the server: give both the same source model."
        )
    if header.get("model_sha256") != wanted["model_sha256"]:
        raise ModelRefused(f"{client} has another source model than the server: give both the same.")


def _version(header: Mapping[str, Any]) -> str:
    known = header.get("version")
    return printable(known, 64) if isinstance(known, str) else shown(known)
