"""A site's side of the wire: the run's configuration, its client service, and the list of what may leave."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import cast

from flwr.app import Context
from torch import Tensor

from fedscal.client.start import SERVER
from fedscal.client.training import Diverged
from fedscal.core import files, weights
from fedscal.core.errors import DataRefused, ModelRefused, UsageError
from fedscal.core.options import Value
from fedscal.core.rng import compute_threads
from fedscal.core.types import ClientId, Failure, Groups, Metrics, Package, Weights
from fedscal.core.user_code import load_plugins
from fedscal.core.version import __version__
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.source import given_model, source_model
from fedscal.experiment.spec import RunSpec, parse_assignments
from fedscal.flower import codec
from fedscal.flower.codec import JUDGED
from fedscal.flower.headers import SiteAnswers, SiteResponse, request_header
from fedscal.flower.schema import FAILURE, NotAllowed, Schema, Schemas, handshake
from fedscal.methods import hyperparameters
from fedscal.models.store import ModelCard, find_model, load_model, model_files
from fedscal.runtime.memory import SiteMemories
from fedscal.runtime.messages import (
    FAILED,
    MODEL,
    RECEIVED,
    UNLIKENESS,
    WEIGHTS,
    Frame,
    Request,
    Response,
    package_of,
    reply_of,
    training_request,
    training_response,
)
from fedscal.runtime.service import ClientService

_log = logging.getLogger(__name__)
_SHARED = frozenset(
    [
        "method",
        "adaptation",
        "local_epochs",
        "batch_size",
        "view_passes",
        "label_view",
        "seed",
        "threads",
        "statistics",
        "statistics_prior",
        "class_shares",
        "site_share",
        "feature_views",
        "select",
        "judge_together",
    ]
)
"""Options that the server decides, beside the method's hyper-parameters. Paths are never among them."""
Checked = tuple[Schema, SiteResponse]
"""A response, and what it may hold."""


def run_directory(context: Context) -> Path:
    """Return the directory of a run: the one that was named, or one of the run's own."""
    return Path(str(context.run_config["out"]) or f"runs/flower-{context.run_id}")


def run_spec(words: str) -> RunSpec:
    """Return the spec of ``key=value`` words; a source model that is not given is trained."""
    spec = RunSpec.make(**parse_assignments(shlex.split(words)))
    if spec.source_model:
        return spec
    return spec.replace(source_model=str(source_model(Experiment.build(spec)).path))


def shared_keys(spec: RunSpec) -> dict[str, Value]:
    """Return the options of a spec that its clients need."""
    return {name: value for name, value in spec.all_keys().items() if _may_decide(name)}


def _may_decide(name: str) -> bool:
    return name in _SHARED or name in hyperparameters()


def stamp(card: ModelCard, model: Weights) -> dict[str, str]:
    """Return what server and site must have in common: version, classes in their order, source model."""
    classes = json.dumps(card.classes, ensure_ascii=False)
    return {
        "version": __version__,
        "classes_sha256": files.sha256(classes.encode()),
        "model_sha256": weights.digest(model),
    }


@dataclass
class SiteService:
    """Serves the client of one site.

    Attributes:
        client: its name.
        keys: the site's own options: where its images and its source model are.
        state: the folder in which it stores its memory.
    """

    client: ClientId
    keys: Mapping[str, Value]
    state: Path
    _services: dict[str, tuple[str, ClientService]] = field(default_factory=dict)

    def handle(self, frame: Frame) -> Frame:
        """Carry out a request; a failure is described in words that say nothing of the site's data."""
        kind = frame.header.get("kind")
        try:
            request, judged, transport = self._decode(frame)
            del frame  # its tensors are in the request, and may be large
            # As many threads as the run wants: their number decides bits.
            with compute_threads(int(request.scalars["keys"].get("threads", 1))):
                judgement = self._judgement(request, judged) if judged else {}
                response = self._respond(request, transport)
        except Exception as error:
            return self._failed(kind, error)
        return replace(response, header={**response.header, **judgement})

    def _respond(self, request: Request, transport: str) -> Frame:
        handlers: dict[str, Callable[[Request, str], Checked]] = {
            "hello": self._handshake,
            "train": self._train,
            "evaluate": self._evaluate,
            "compare": self._compare,
            "profile": self._profile,
            "statistics": self._statistics,
        }
        try:
            return self._encode(*handlers[request.kind](request, transport), transport)
        except Exception as error:
            return self._failed(request.kind, error)

    def _failed(self, kind: object, error: Exception) -> Frame:
        """Return a failure; whatever the error is, its text may hold paths and stays in the site's log."""
        _log.error("the request '%s' failed", kind, exc_info=error)
        return self._encode(FAILURE, SiteResponse({FAILED: safe_reason(error)}))

    def _decode(self, frame: Frame) -> tuple[Request, Weights | None, str]:
        """Return a request, the model to judge before it is carried out, and how floats travel."""
        header = request_header(frame)
        models, transport = header["models"], header["transport"]
        groups = codec.decode(frame, models, self._source, transport)
        request = Request.of(header, {name: groups[name] for name in models if name != JUDGED})
        if set(request.clients) - {self.client}:
            raise UsageError(f"a request for {', '.join(request.clients)} came to {self.client}")
        return request, groups[JUDGED] if JUDGED in models else None, transport

    def _encode(self, schema: Schema, response: SiteResponse, transport: str = "fp32") -> Frame:
        """Return a response as it is sent, if all of it may leave."""
        models = [WEIGHTS] if WEIGHTS in response.tensors else []
        header = {**response.scalars, "client": self.client, **self._stamp}
        frame = codec.encode(header, response.tensors, models, self._source, transport if models else "fp32")
        schema.check(frame.header, response.tensors)
        return frame

    @property
    def _source_path(self) -> Path:
        return find_model(Path(str(self.keys["source_model"])))

    @cached_property
    def _loaded(self) -> tuple[dict[str, Tensor], ModelCard]:
        return load_model(self._source_path.parent, self._source_path.stem)

    @property
    def _source(self) -> Weights:
        return self._loaded[0]

    @cached_property
    def _stamp(self) -> dict[str, str]:
        return stamp(self._loaded[1], self._source)

    def _handshake(self, request: Request, transport: str) -> Checked:
        domain, service = self._serving(request)
        images = len(service.data[self.client].images)
        return handshake(self.client), SiteResponse({"domain": domain, "images": images})

    def _train(self, request: Request, transport: str) -> Checked:
        package, _ = package_of(request)  # memory is the site's own: what a server sends as such is ignored
        memories = SiteMemories(self.state / "memory" / str(int(request.scalars["run"], 16)))
        service = self._service(request)
        local = training_request(self.client, package, memories.get(self.client, package.round))
        reply, memory = reply_of(_succeeded(service.handle(local)))
        if memory:
            memories.put(self.client, package.round, memory)
        reply = replace(reply, weights=codec.rounded(reply.weights, transport))
        # The server wants them at once: a message of their own would cost more than the pass.
        metrics = self._metrics(service, reply.weights, _taught_by(service, package))
        response = training_response(reply, {})
        schema = self._schemas(request).training(self.client, reply.examples, package, transport)
        scalars = cast(SiteAnswers, {**response.scalars, "metrics": metrics})
        return schema, SiteResponse(scalars, response.tensors)

    def _judgement(self, request: Request, model: Weights) -> dict[str, Metrics]:
        """Judge a model, if that can be: the training that comes with it goes on without."""
        try:
            metrics, images = self._judge(request, model)
            judgement = {JUDGED: metrics}
            self._schemas(request).judgement(self.client, images).check(
                {"client": self.client, **judgement}, {}
            )
        except Exception:
            _log.exception("a model was not judged")
            return {}
        return judgement

    def _evaluate(self, request: Request, transport: str) -> Checked:
        metrics, images = self._judge(request, request.tensors[MODEL])
        return self._schemas(request).evaluation(self.client, images), SiteResponse({"metrics": metrics})

    def _judge(self, request: Request, model: Weights) -> tuple[Metrics, int]:
        """Return the metrics of the server's model and the number of images; keep its statistics."""
        service = self._service(request)
        metrics = self._metrics(service, model)
        if service.training.statistics:
            self._keep_statistics(service.own_tensors())
        return metrics, len(service.data[self.client].images)

    def _statistics(self, request: Request, transport: str) -> Checked:
        """Take the statistics for the model that the site goes on with; they stay here."""
        service = self._service(request)
        self._keep_statistics(service.statistics(self.client, request.tensors[MODEL]))
        return self._schemas(request).done(self.client), SiteResponse({})

    def _keep_statistics(self, statistics: Weights) -> None:
        """Keep the site's statistics for the server's model, to be used with it here."""
        for name, data in model_files(self.client, statistics, self._loaded[1]).items():
            files.write_bytes(self.state / "sites" / name, data)

    def _metrics(self, service: ClientService, model: Weights, beside: Groups | None = None) -> Metrics:
        tensors = {MODEL: model, **(beside or {})}
        response = _succeeded(service.handle(Request("evaluate", [self.client], tensors=tensors)))
        return dict(response.scalars["metrics"][self.client])

    def _compare(self, request: Request, transport: str) -> Checked:
        local = Request("compare", [self.client], tensors=request.tensors)
        response = _succeeded(self._service(request).handle(local))
        answer = SiteResponse({UNLIKENESS: response.scalars[UNLIKENESS]})
        return self._schemas(request).comparison(self.client), answer

    def _profile(self, request: Request, transport: str) -> Checked:
        response = _succeeded(self._service(request).handle(Request("profile", [self.client])))
        return self._schemas(request).profile(self.client), SiteResponse({}, response.tensors)

    def _schemas(self, request: Request) -> Schemas:
        return Schemas.of(self._spec(request), *self._loaded)

    def _spec(self, request: Request) -> RunSpec:
        load_plugins(str(self.keys.get("plugins", "")))  # before the question which keys a server may decide
        decided = {name: value for name, value in request.scalars["keys"].items() if _may_decide(name)}
        return RunSpec.make(**{**self.keys, **decided})

    def _service(self, request: Request) -> ClientService:
        return self._serving(request)[1]

    def _serving(self, request: Request) -> tuple[str, ClientService]:
        """Return the client's domain and service for these options.

        The last are kept: to build a network and to load images takes time.
        """
        spec = self._spec(request)
        digest = spec.digest()
        if digest not in self._services:
            self._services.clear()
            experiment = Experiment.build(spec)
            layout = experiment.clients_of_data().of(self.client)
            self._services[digest] = (
                layout.domains[self.client],
                experiment.service(layout, lambda: given_model(self._source_path).known),
            )
        return self._services[digest]


def _taught_by(service: ClientService, package: Package) -> Groups:
    """Return the received model, where it teaches beside the client's own and their errors are compared."""
    teaches = service.objective.asks_server and SERVER in package.models
    return {RECEIVED: package.models[SERVER]} if teaches else {}


def _succeeded(response: Response | Failure) -> Response:
    """Return a response; the error of a failure is raised, to be logged here and described for the server."""
    if isinstance(response, Failure):
        raise response.error or RuntimeError(response.reason)
    return response


def safe_reason(error: Exception) -> str:
    """Describe an error without a word about files or images."""
    if isinstance(error, Diverged):
        return str(error)
    if isinstance(error, DataRefused):
        return "its images were refused; the log of the site says why"
    if isinstance(error, NotAllowed):
        return "its answer held something that may not leave the site; the log of the site says what"
    if isinstance(error, ModelRefused):
        return "its model, its memory or the message was refused; the log of the site says why"
    return f"{type(error).__name__}; the log of the site says more"
