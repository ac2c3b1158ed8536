"""Flower's Grid as a driver of the round loop: the clients are machines far away."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from fedscal.drivers.flower import outgoing, parcel
from fedscal.drivers.flower.post import Answer, Letter
from fedscal.drivers.flower.roster import Roster, check_stamp
from fedscal.drivers.wire import package_header, reply_of
from fedscal.errors import FedscalError, TooFewClients
from fedscal.types import ClientId, Failure, Groups, Metrics, Package, Reply, Weights

_log = logging.getLogger(__name__)
_JUDGED = ("images", "entropy", "infomax", "snd", "effective_classes")
"""The scalars that every site must be able to tell of a model."""
_BROKEN = (FedscalError, KeyError, TypeError, ValueError, AttributeError, RuntimeError)
"""What reading an answer may raise if it was not made by this package."""


@dataclass
class OverFlower:
    """A driver over the sites of a roster.

    Attributes:
        clients: the sites that the run names.
        roster: which of them are there.
        source: the model that server and sites have in common.
        run: the name under which a site keeps this run's memory.
        keys: the keys of the run that its sites need.
        transport: how floats travel.
        timeout: seconds until a site that does not answer is given up.
        patience: seconds to wait for a site when none of a round's is there.
        judged: what each site said last of a model; stands in for a site that cannot be reached.
    """

    clients: Sequence[ClientId]
    roster: Roster
    source: Weights
    run: str
    keys: Mapping[str, Any]
    transport: str
    timeout: float
    patience: float
    judged: dict[ClientId, Metrics] = field(default_factory=dict)
    answered: Callable[[ClientId], None] = lambda client: None
    _own: dict[ClientId, tuple[Weights, Metrics]] = field(default_factory=dict)

    def __enter__(self) -> OverFlower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The grid is Flower's to close."""

    def exchange(self, packages: Mapping[ClientId, Package]) -> Iterator[Reply | Failure]:
        """Yield the sites' answers as they come."""
        self.roster.await_any(packages, self.patience)
        self._own.clear()
        requests = {c: (package_header(p), p.models) for c, p in packages.items()}
        for client, answer in self._ask("train", requests):
            self.answered(client)
            if isinstance(answer, str):
                yield Failure(client, answer)
                continue
            try:
                reply = self._reply(answer)
                self._own[client] = (reply.weights, _metrics(answer))
            except _BROKEN as error:
                yield Failure(client, f"its answer is no reply ({error})")
            else:
                yield reply

    def profile(self) -> dict[ClientId, Weights]:
        """Let every site tell of itself."""
        found: dict[ClientId, Weights] = {}
        for client, answer in self._ask("profile", {client: ({}, {}) for client in self.clients}):
            if isinstance(answer, str):
                raise TooFewClients(f"{client} told nothing of itself: {answer}")
            _, others = parcel.unpack([], answer.payload, {}, self.transport)
            found[client] = others[outgoing.PROFILE]
        return {client: found[client] for client in sorted(found)}

    def evaluate(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, Metrics]:
        """Let each site judge its model; for one that is not reached its last numbers stand, marked stale."""
        told = {c: self._own[c][1] for c, m in models.items() if c in self._own and self._own[c][0] is m}
        requests: dict[ClientId, tuple[Mapping[str, Any], Groups]] = {
            client: ({}, {"server": model}) for client, model in models.items() if client not in told
        }
        for client, answer in self._ask("evaluate", requests):
            try:
                if isinstance(answer, str):
                    raise TooFewClients(answer)
                self.judged[client] = told[client] = _metrics(answer)
            except _BROKEN as error:
                told[client] = self._stale(client, str(error))
        return {client: told[client] for client in sorted(told)}

    def _stale(self, client: ClientId, reason: str) -> Metrics:
        _log.warning("%s did not judge a model: %s", client, reason)
        if client not in self.judged:
            raise TooFewClients(f"{client} did not judge the source model: {reason}")
        return {**self.judged[client], "stale": 1.0}

    def _ask(
        self, do: str, requests: Mapping[ClientId, tuple[Mapping[str, Any], Groups]]
    ) -> Iterator[tuple[ClientId, Answer | str]]:
        """Send requests to the sites that are there; the others are answered for."""
        if requests:
            self.roster.meet()
        letters = {}
        for client, (header, models) in requests.items():
            if client not in self.roster.sites:
                yield client, self.roster.absence(client)
                continue
            names, payload = parcel.pack(models, {}, self.source, self.transport)
            full = {**header, "do": do, "client": client, "run": self.run, "keys": dict(self.keys)}
            node = self.roster.sites[client].node
            letters[client] = Letter(node, parcel.described(full, names, self.transport), payload)
        for client, answer in self.roster.post.ask(letters, self.timeout):
            yield client, answer if isinstance(answer, str) else self._genuine(client, answer)

    def _genuine(self, client: ClientId, answer: Answer) -> Answer | str:
        """Return the answer if it is the site's own and the site is still what its handshake said."""
        try:
            check_stamp(client, answer.header, self.roster.stamp)
        except FedscalError as error:
            return str(error)
        return answer if answer.header.get("client") == client else "answered in another's name"

    def _reply(self, answer: Answer) -> Reply:
        header = answer.header
        models, reports = parcel.unpack(["weights"], answer.payload, self.source, self.transport)
        scalars = {
            "client": str(header["client"]),
            "round": int(header["round"]),
            "examples": int(header["examples"]),
            "epochs": [{str(n): float(v) for n, v in epoch.items()} for epoch in header["epochs"]],
            "seconds": float(header["seconds"]),
            "drift": float(header["drift"]),
        }
        return reply_of(scalars, {**models, **reports})


def _metrics(answer: Answer) -> Metrics:
    found = {str(name): value for name, value in answer.header["metrics"].items()}
    if not all(isinstance(v, int | float) and math.isfinite(v) for v in found.values()):
        raise ValueError("a number that it tells of a model is NaN or infinity")
    absent = [name for name in _JUDGED if name not in found]
    if absent:
        raise ValueError(f"it does not tell the {absent[0]} of a model")
    return found
