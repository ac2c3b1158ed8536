"""Flower's Grid as a driver of the round loop: the clients are machines far away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from fedscal.core.errors import TooFewClients
from fedscal.core.types import ClientId, Failure, Groups, Metrics, Package, Reply, Weights
from fedscal.flower import delta_codec as parcel
from fedscal.flower.registry import Roster, check_stamp
from fedscal.flower.schema import Form, Forms, NotAllowed
from fedscal.flower.transport import Answer, Letter
from fedscal.runtime.messages import PROFILE, WEIGHTS, package_header, reply_of

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass
class OverFlower:
    """A driver over the sites of a roster.

    Attributes:
        clients: the sites that the run names.
        roster: which of them are there.
        forms: what the sites' answers may hold.
        run: the name under which a site keeps this run's memory.
        keys: the keys of the run that its sites need.
        transport: how floats travel.
        timeout: seconds until a site that does not answer is given up.
        patience: seconds to wait for a site when none of a round's is there.
        judged: what each site said last of a model; stands in for a site that cannot be reached.
    """

    clients: Sequence[ClientId]
    roster: Roster
    forms: Forms
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

        def read(client: ClientId, answer: Answer) -> tuple[Reply, Metrics]:
            form = self.forms.training(client, self._images(client), packages[client], self.transport)
            groups = self._opened(client, answer, form, [WEIGHTS])
            return reply_of(answer.header, groups), self._metrics(client, answer)

        for client, found in self._ask("train", requests, read):
            self.answered(client)
            if isinstance(found, str):
                yield Failure(client, found)
            else:
                self._own[client] = (found[0].weights, found[1])
                yield found[0]

    def profile(self) -> dict[ClientId, Weights]:
        """Let every site tell of itself."""

        def read(client: ClientId, answer: Answer) -> Weights:
            return self._opened(client, answer, self.forms.profile(client))[PROFILE]

        found: dict[ClientId, Weights] = {}
        for client, told in self._ask("profile", {client: ({}, {}) for client in self.clients}, read):
            if isinstance(told, str):
                raise TooFewClients(f"{client} told nothing of itself: {told}")
            found[client] = told
        return {client: found[client] for client in sorted(found)}

    def evaluate(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, Metrics]:
        """Let each site judge its model; for one that is not reached its last numbers stand, marked stale."""
        told = {c: self._own[c][1] for c, m in models.items() if c in self._own and self._own[c][0] is m}
        requests: dict[ClientId, tuple[Mapping[str, Any], Groups]] = {
            client: ({}, {"server": model}) for client, model in models.items() if client not in told
        }

        def read(client: ClientId, answer: Answer) -> Metrics:
            self._opened(client, answer, self.forms.judgement(client, self._images(client)))
            return self._metrics(client, answer)

        for client, found in self._ask("evaluate", requests, read):
            if isinstance(found, str):
                told[client] = self._stale(client, found)
            else:
                self.judged[client] = told[client] = found
        return {client: told[client] for client in sorted(told)}

    def _images(self, client: ClientId) -> int:
        return self.roster.sites[client].images

    def _opened(
        self, client: ClientId, answer: Answer, form: Form, models: Sequence[str] = ()
    ) -> Mapping[str, Weights]:
        """Return the tensors of an answer of the same federation, if all of it is on the list."""
        check_stamp(client, answer.header, self.roster.stamp)
        whole, others = parcel.unpack(models, answer.payload, self.forms.source, self.transport)
        groups = {**whole, **others}
        form.check(answer.header, groups)
        return groups

    def _metrics(self, client: ClientId, answer: Answer) -> Metrics:
        """Return what a site says of a model: the same names always, or a record would lack some."""
        found: Metrics = answer.header["metrics"]
        if found.keys() != self.judged.get(client, found).keys():
            raise NotAllowed("its answer tells other numbers of a model than those before")
        return found

    def _stale(self, client: ClientId, reason: str) -> Metrics:
        _log.warning("%s did not judge a model: %s", client, reason)
        if client not in self.judged:
            raise TooFewClients(f"{client} did not judge the source model: {reason}")
        return {**self.judged[client], "stale": 1.0}

    def _ask(
        self,
        do: str,
        requests: Mapping[ClientId, tuple[Mapping[str, Any], Groups]],
        read: Callable[[ClientId, Answer], T],
    ) -> Iterator[tuple[ClientId, T | str]]:
        """Send requests to the sites that are there; the others are answered for."""
        if requests:
            self.roster.meet()
        letters = {}
        for client, (header, models) in requests.items():
            if client not in self.roster.sites:
                yield client, self.roster.absence(client)
                continue
            names, payload = parcel.pack(models, {}, self.forms.source, self.transport)
            full = {**header, "do": do, "client": client, "run": self.run, "keys": dict(self.keys)}
            node = self.roster.sites[client].node
            letters[client] = Letter(node, parcel.described(full, names, self.transport), payload)
        yield from self.roster.post.ask(letters, self.timeout, read)
