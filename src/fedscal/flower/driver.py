"""Flower's Grid as a driver of the round loop: each client is a site, a machine of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from fedscal.core.errors import TooFewClients
from fedscal.core.types import ClientId, Failure, Metrics, Package, Reply, Weights
from fedscal.flower.codec import Encoder, decode
from fedscal.flower.registry import Registry, check_stamp
from fedscal.flower.schema import NotAllowed, Schema, Schemas
from fedscal.flower.transport import NodeRequest
from fedscal.runtime.evaluate import JOINT
from fedscal.runtime.messages import (
    MODEL,
    PROFILE,
    UNLIKENESS,
    WEIGHTS,
    Frame,
    Request,
    Response,
    reply_of,
    training_request,
)

_log = logging.getLogger(__name__)
T = TypeVar("T")


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
    keys: Mapping[str, Any]
    transport: str
    timeout: float
    patience: float
    last_metrics: dict[ClientId, Metrics] = field(default_factory=dict)
    answered: Callable[[ClientId], None] = lambda client: None
    _own: dict[ClientId, Metrics] = field(default_factory=dict)

    def __enter__(self) -> FlowerDriver:
        return self

    def __exit__(self, *error: object) -> None:
        """The grid is Flower's to close."""

    def exchange(self, packages: Mapping[ClientId, Package]) -> Iterator[Reply | Failure]:
        """Yield the sites' replies as they come."""
        self.registry.wait_for_any(packages, self.patience)
        self._own.clear()

        def read(client: ClientId, frame: Frame) -> tuple[Reply, Metrics]:
            schema = self.schemas.training(client, self._images(client), packages[client], self.transport)
            response = self._decode(client, frame, schema, [WEIGHTS])
            return reply_of(response)[0], self._metrics(client, response)

        requests = {client: training_request(client, package, {}) for client, package in packages.items()}
        for client, trained in self._request(requests, read):
            self.answered(client)
            if isinstance(trained, Failure):
                yield trained
            else:
                self._own[client] = trained[1]
                yield trained[0]

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
        """Return nothing: a site's statistics are on its own disk, and stay there."""
        return {}

    def evaluate(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, Metrics]:
        """Let each site evaluate its model; of one that is not reached the last metrics stand, as stale."""
        requests = {c: Request("evaluate", [c], tensors={MODEL: model}) for c, model in models.items()}

        def read(client: ClientId, frame: Frame) -> Metrics:
            schema = self.schemas.evaluation(client, self._images(client))
            return self._metrics(client, self._decode(client, frame, schema))

        results: dict[ClientId, Metrics] = {}
        for client, metrics in self._request(requests, read):
            if isinstance(metrics, Failure):
                results[client] = self._stale(metrics)
            else:
                self.last_metrics[client] = results[client] = metrics
        return {client: results[client] for client in sorted(results)}

    def evaluate_own(
        self, replies: Sequence[Reply], received: Mapping[ClientId, Weights]
    ) -> dict[ClientId, Metrics]:
        """Return how the sites judged the models that they have sent: they did it when they trained them."""
        return {reply.client: self._own[reply.client] for reply in replies}

    def _images(self, client: ClientId) -> int:
        return self.registry.sites[client].images

    def _decode(self, client: ClientId, frame: Frame, schema: Schema, models: Sequence[str] = ()) -> Response:
        """Return a response from a site of the same federation, if all of it is on the list."""
        check_stamp(client, frame.header, self.registry.stamp)
        tensors = decode(frame, models, self.schemas.source, self.transport)
        schema.check(frame.header, tensors)
        return Response(frame.header, tensors)

    def _metrics(self, client: ClientId, response: Response) -> Metrics:
        """Return a site's evaluation: the same names always, or a record would lack some."""
        metrics: Metrics = response.scalars["metrics"]
        if metrics.keys() - JOINT != self.last_metrics.get(client, metrics).keys() - JOINT:
            raise NotAllowed("its answer has other metrics of a model than those before")
        return metrics

    def _stale(self, failure: Failure) -> Metrics:
        _log.warning("%s did not evaluate a model: %s", failure.client, failure.reason)
        if failure.client not in self.last_metrics:
            raise TooFewClients(f"{failure.client} did not evaluate the source model: {failure.reason}")
        return {**self.last_metrics[failure.client], "stale": 1.0}

    def _request(
        self, requests: Mapping[ClientId, Request], read: Callable[[ClientId, Frame], T]
    ) -> Iterator[tuple[ClientId, T | Failure]]:
        """Send requests to the connected sites; the others have failed."""
        if requests:
            self.registry.update()
        encode = Encoder(self.schemas.source, self.transport)
        to_send = {}
        for client, request in requests.items():
            if client not in self.registry.sites:
                yield client, Failure(client, str(self.registry.refused.get(client, "is not connected")))
                continue
            full = replace(request, scalars={**request.scalars, "run": self.run, "keys": dict(self.keys)})
            encoded = partial(encode, full.header, request.tensors)
            to_send[client] = NodeRequest(self.registry.sites[client].node, encoded)
        yield from self.registry.transport.exchange(to_send, self.timeout, read)
