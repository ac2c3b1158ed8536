"""Flower's Grid as a driver of the round loop: each client is a site, a machine of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar, cast

from fedscal.core.errors import TooFewClients
from fedscal.core.options import Value
from fedscal.core.types import ClientId, Failure, Judged, Metrics, Package, Reply, Weights
from fedscal.flower.codec import JUDGED, Encoder, decode
from fedscal.flower.headers import SiteAnswers, SiteResponse
from fedscal.flower.registry import Registry, check_stamp
from fedscal.flower.schema import NotAllowed, Schema, Schemas
from fedscal.flower.transport import describe_error, succeeded
from fedscal.runtime.evaluate import JOINT
from fedscal.runtime.messages import (
    MODEL,
    PROFILE,
    UNLIKENESS,
    WEIGHTS,
    Frame,
    Request,
    read_reply,
    training_request,
)

_log = logging.getLogger(__name__)
_NOTHING: tuple[Mapping[ClientId, Weights], Judged] = ({}, lambda judged, seconds: None)
"""Models that wait to be judged, and who is told: none, and nobody."""
Trained = tuple[Reply, Metrics]
"""A reply, and the site's metrics of its own model."""
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class _Answer:
    """A site's answer in a round: its training, its judgement of the server's model, or why there is none."""

    trained: Trained | Failure
    judged: Metrics | Failure


_UNASKED = Failure("", "was not asked")


def _tried(client: ClientId, read: Callable[P, T], *given: P.args, **named: P.kwargs) -> T | Failure:
    """Return what is read of a part of a response; whatever that raises is the failure of this part."""
    try:
        return read(*given, **named)
    except Exception as error:
        return Failure(client, describe_error(error))


def _wave(
    packages: Mapping[ClientId, Package], models: Mapping[ClientId, Weights]
) -> dict[ClientId, Request]:
    """Return the requests of a round: to train, with a model to judge before that, or to judge one only."""
    requests = {client: training_request(client, package, {}) for client, package in packages.items()}
    for client, model in models.items():
        if client in requests:
            tensors = {**requests[client].tensors, JUDGED: model}
            requests[client] = replace(requests[client], tensors=tensors)
        else:
            requests[client] = Request("evaluate", [client], tensors={MODEL: model})
    return requests


@dataclass
class FlowerDriver:
    """A driver over the sites of a registry.

    Attributes:
        clients: the sites that the run names.
        registry: which of them are connected.
        schemas: what the sites' responses may hold.
        run: the name under which a site stores this run's memory.
        keys: the options of the run that its sites need.
        transport: how floats travel.
        timeout: seconds until a site that does not respond is given up.
        patience: seconds to wait for a site when none of a round's is connected.
        last_metrics: each site's last evaluation; stands in for a site that cannot be reached.
    """

    clients: Sequence[ClientId]
    registry: Registry
    schemas: Schemas
    run: str
    keys: Mapping[str, Value]
    transport: str
    timeout: float
    patience: float
    last_metrics: dict[ClientId, Metrics] = field(default_factory=dict)
    answered: Callable[[ClientId], None] = lambda client: None
    _own: dict[ClientId, Metrics] = field(default_factory=dict)
    _waiting: tuple[Mapping[ClientId, Weights], Judged] = _NOTHING

    def __enter__(self) -> FlowerDriver:
        return self

    def __exit__(self, *error: object) -> None:
        """The grid is Flower's to close."""

    def exchange(self, packages: Mapping[ClientId, Package]) -> Iterator[Reply | Failure]:
        """Yield the sites' replies as they come; models that wait to be judged go with the same requests."""
        self.registry.wait_for_any(packages, self.patience)
        self._own.clear()
        (models, then), self._waiting = self._waiting, _NOTHING
        judged: dict[ClientId, Metrics | Failure] = {}
        for client, answer in self._send(_wave(packages, models), self._reader(packages, models)):
            if client in models:
                judged[client] = answer if isinstance(answer, Failure) else answer.judged
            if client in packages:
                self.answered(client)
                yield self._reply(client, answer if isinstance(answer, Failure) else answer.trained)
        then(self._known(judged), 0.0)

    def _reply(self, client: ClientId, trained: Trained | Failure) -> Reply | Failure:
        if isinstance(trained, Failure):
            return trained
        reply, self._own[client] = trained
        return reply

    def _reader(
        self, packages: Mapping[ClientId, Package], models: Collection[ClientId]
    ) -> Callable[[ClientId, Frame], _Answer]:
        """Return how a response in a round is read; that one part of it is bad does not spoil the other."""

        def read(client: ClientId, frame: Frame) -> _Answer:
            if client not in packages:
                return _Answer(_UNASKED, self._read_evaluation(client, frame))
            if client not in models:
                return _Answer(self._read_training(client, frame, packages[client]), _UNASKED)
            alone = {name: part for name, part in frame.header.items() if name != JUDGED}
            return _Answer(
                _tried(client, self._read_training, client, replace(frame, header=alone), packages[client]),
                _tried(client, self._read_judgement, client, frame.header),
            )

        return read

    def _read_training(self, client: ClientId, frame: Frame, package: Package) -> Trained:
        schema = self.schemas.training(client, self._images(client), package, self.transport)
        response = self._decode(client, frame, schema, [WEIGHTS])
        reply, _ = read_reply(response.scalars, response.tensors)
        return reply, self._metrics(client, response.scalars["metrics"])

    def _read_judgement(self, client: ClientId, header: Mapping[str, object]) -> Metrics:
        check_stamp(client, header, self.registry.stamp)
        part = {name: header.get(name) for name in ("client", JUDGED)}
        self.schemas.judgement(client, self._images(client)).check(part, {})
        return self._metrics(client, cast(SiteAnswers, header)[JUDGED])

    def _read_evaluation(self, client: ClientId, frame: Frame) -> Metrics:
        schema = self.schemas.evaluation(client, self._images(client))
        return self._metrics(client, self._decode(client, frame, schema).scalars["metrics"])

    def profile(self) -> dict[ClientId, Weights]:
        """Collect the profile of every site."""

        def read(client: ClientId, frame: Frame) -> Weights:
            return self._decode(client, frame, self.schemas.profile(client)).tensors[PROFILE]

        profiles: dict[ClientId, Weights] = {}
        for client, profile in self._request({c: Request("profile", [c]) for c in self.clients}, read):
            if isinstance(profile, Failure):
                raise TooFewClients(f"{client} sent no profile: {profile.reason}")
            profiles[client] = profile
        return {client: profiles[client] for client in sorted(profiles)}

    def compare(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, float]:
        """Let each site compare its images with those that its model knows; a site may stay silent."""

        def read(client: ClientId, frame: Frame) -> float:
            return float(self._decode(client, frame, self.schemas.comparison(client)).scalars[UNLIKENESS])

        requests = {c: Request("compare", [c], tensors={MODEL: model}) for c, model in models.items()}
        found = {c: far for c, far in self._request(requests, read) if not isinstance(far, Failure)}
        return {client: found[client] for client in sorted(found)}

    def statistics(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, Weights]:
        """Let sites take their statistics for their models, and return none: they stay there."""

        def read(client: ClientId, frame: Frame) -> None:
            self._decode(client, frame, self.schemas.done(client))

        requests = {c: Request("statistics", [c], tensors={MODEL: model}) for c, model in models.items()}
        for client, taken in self._request(requests, read):
            if isinstance(taken, Failure):
                _log.warning("%s has no statistics for its model: %s", client, taken.reason)
        return {}

    def evaluate(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, Metrics]:
        """Let each site evaluate its model; of one that is not reached the last metrics stand, as stale."""
        return self._known(dict(self._request(_wave({}, models), self._read_evaluation)))

    def judge(self, models: Mapping[ClientId, Weights], then: Judged) -> None:
        """Let models be judged with the requests of the next round, which saves a wave of messages."""
        self._waiting = models, then

    def evaluate_own(
        self, replies: Sequence[Reply], received: Mapping[ClientId, Weights]
    ) -> dict[ClientId, Metrics]:
        """Return how the sites judged the models that they have sent: they did it when they trained them."""
        return {reply.client: self._own[reply.client] for reply in replies}

    def _images(self, client: ClientId) -> int:
        return self.registry.sites[client].images

    def _decode(
        self, client: ClientId, frame: Frame, schema: Schema, models: Sequence[str] = ()
    ) -> SiteResponse:
        """Return a response from a site of the same federation, if all of it is on the list."""
        succeeded(frame)
        check_stamp(client, frame.header, self.registry.stamp)
        tensors = decode(frame, models, self.schemas.source, self.transport)
        schema.check(frame.header, tensors)
        return SiteResponse(cast(SiteAnswers, frame.header), tensors)

    def _metrics(self, client: ClientId, metrics: Metrics) -> Metrics:
        """Return a site's evaluation: the same names always, or a record would lack some."""
        if metrics.keys() - JOINT != self.last_metrics.get(client, metrics).keys() - JOINT:
            raise NotAllowed("its answer has other metrics of a model than those before")
        return metrics

    def _known(self, found: Mapping[ClientId, Metrics | Failure]) -> dict[ClientId, Metrics]:
        """Return what sites say of their models; of a site that says nothing the last numbers."""
        known: dict[ClientId, Metrics] = {}
        for client, metrics in sorted(found.items()):
            if isinstance(metrics, Failure):
                known[client] = self._stale(metrics)
            else:
                self.last_metrics[client] = known[client] = metrics
        return known

    def _stale(self, failure: Failure) -> Metrics:
        _log.warning("%s did not evaluate a model: %s", failure.client, failure.reason)
        if failure.client not in self.last_metrics:
            raise TooFewClients(f"{failure.client} did not evaluate the source model: {failure.reason}")
        return {**self.last_metrics[failure.client], "stale": 1.0}

    def _request(
        self, requests: Mapping[ClientId, Request], read: Callable[[ClientId, Frame], T]
    ) -> Iterator[tuple[ClientId, T | Failure]]:
        """Send requests to the sites that are connected now."""
        if requests:
            self.registry.update()
        yield from self._send(requests, read)

    def _send(
        self, requests: Mapping[ClientId, Request], read: Callable[[ClientId, Frame], T]
    ) -> Iterator[tuple[ClientId, T | Failure]]:
        """Send requests to the sites that are known to be connected; the others have failed."""
        there = {c: self.registry.sites[c].node for c in requests if c in self.registry.sites}
        for client in [client for client in requests if client not in there]:
            yield client, Failure(client, str(self.registry.refused.get(client, "is not connected")))
        yield from self.registry.transport.exchange(there, self._encoder(requests), self.timeout, read)

    def _encoder(self, requests: Mapping[ClientId, Request]) -> Callable[[ClientId], Frame]:
        """Return how the request to a client is encoded, once for all who get the same models."""
        encode = Encoder(self.schemas.source, self.transport)

        def encoded(client: ClientId) -> Frame:
            request = requests[client]
            full = replace(request, scalars={**request.scalars, "run": self.run, "keys": dict(self.keys)})
            return encode(full.header, request.tensors)

        return encoded
