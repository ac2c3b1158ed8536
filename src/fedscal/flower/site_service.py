"""A site's work: what its one client answers to the server's requests, and what of it may leave."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from fedscal.client.training import Diverged
from fedscal.core import files, weights
from fedscal.core.errors import DataRefused, ModelRefused, UsageError
from fedscal.core.rng import compute_threads
from fedscal.core.types import ClientId, Package, Weights
from fedscal.core.version import __version__
from fedscal.experiment.build import build_layout, build_site
from fedscal.experiment.spec import RunSpec
from fedscal.flower import delta_codec as parcel
from fedscal.flower.memory import SiteMemory
from fedscal.flower.schema import REFUSAL, Form, Forms, NotAllowed, greeting
from fedscal.methods import hyperparameters
from fedscal.models.store import ModelCard, find_model, load_model
from fedscal.runtime.messages import PROFILE, WEIGHTS, reply_groups, reply_header
from fedscal.runtime.service import Site

_log = logging.getLogger(__name__)
_SHARED = frozenset(
    {"method", "adaptation", "local_epochs", "batch_size", "view_passes", "label_view", "seed", "threads"}
)
"""Keys of a run that the server decides, beside the method's hyper-parameters. Paths are never among them."""
Answer = tuple[dict[str, Any], bytes]


def shared_keys(spec: RunSpec) -> dict[str, Any]:
    """Return the keys of a spec that its clients need."""
    return {name: value for name, value in {**spec.flat(), **spec.hyper}.items() if _may_decide(name)}


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
class Bench:
    """The client of one site.

    Attributes:
        client: its name.
        keys: the site's own keys of a run: where its images and its source model are.
        state: the folder in which it keeps its memory.
    """

    client: ClientId
    keys: Mapping[str, Any]
    state: Path
    _sites: dict[str, Site] = field(default_factory=dict)

    def answer(self, header: Mapping[str, Any], payload: bytes) -> Answer:
        """Carry out a request; what goes wrong is told in words that say nothing of the site's data."""
        work: dict[str, Callable[[Mapping[str, Any], bytes], Answer]] = {
            "hello": self._hello,
            "train": self._train,
            "evaluate": self._evaluate,
            "profile": self._profile,
        }
        try:
            if header.get("client", self.client) != self.client:
                raise UsageError(f"a request for {header['client']} came to {self.client}")
            return work[header["do"]](header, payload)
        except Exception as error:  # whatever it is, its text may hold paths and stays in the site's log
            _log.exception("the request '%s' failed", header.get("do"))
            return self._leave(REFUSAL, {"refused": told(error)})

    def _leave(
        self,
        form: Form,
        header: Mapping[str, Any],
        models: Mapping[str, Weights] | None = None,
        others: Mapping[str, Weights] | None = None,
        transport: str = "fp32",
    ) -> Answer:
        """Return an answer, if all of it may leave."""
        names, payload = parcel.pack(models or {}, others or {}, self._source, transport)
        full = parcel.described({**header, "client": self.client, **self._stamp}, names, transport)
        form.check(full, {**(models or {}), **(others or {})})
        return full, payload

    @cached_property
    def _loaded(self) -> tuple[dict[str, Tensor], ModelCard]:
        place = find_model(Path(str(self.keys["source_model"])))
        return load_model(place.parent, place.stem)

    @property
    def _source(self) -> Weights:
        return self._loaded[0]

    @cached_property
    def _stamp(self) -> dict[str, str]:
        return stamp(self._loaded[1], self._source)

    def _hello(self, header: Mapping[str, Any], payload: bytes) -> Answer:
        domain, rows = build_layout(self._spec(header)).of(self.client).rows[self.client]
        return self._leave(greeting(self.client), {"domain": domain, "images": len(rows)})

    def _train(self, header: Mapping[str, Any], payload: bytes) -> Answer:
        transport = header["transport"]
        models, _ = parcel.unpack(header["models"], payload, self._source, transport)
        memory = SiteMemory(self.state / "memory" / str(int(header["run"], 16)))
        site = self._site(header)
        with _as_asked(header):
            package = Package(int(header["round"]), float(header["lr"]), models)
            reply, kept = site.train(self.client, package, memory.before(package.round))
            if kept:
                memory.put(package.round, kept)
            groups = reply_groups(reply)
            model = parcel.rounded(groups.pop(WEIGHTS), transport)
            # The server wants to know at once: a message of its own would cost more than the pass.
            metrics = dict(site.evaluate([self.client], model)[self.client])
        form = self._forms(header).training(self.client, reply.examples, package, transport)
        told_of = {**reply_header(reply), "metrics": metrics}
        return self._leave(form, told_of, {WEIGHTS: model}, groups, transport)

    def _evaluate(self, header: Mapping[str, Any], payload: bytes) -> Answer:
        models, _ = parcel.unpack(header["models"], payload, self._source, header["transport"])
        with _as_asked(header):
            metrics = self._site(header).evaluate([self.client], models["server"])[self.client]
        images = len(self._site(header).data[self.client].images)
        return self._leave(self._forms(header).judgement(self.client, images), {"metrics": dict(metrics)})

    def _profile(self, header: Mapping[str, Any], payload: bytes) -> Answer:
        with _as_asked(header):
            told_of = self._site(header).profile(self.client)
        return self._leave(self._forms(header).profile(self.client), {}, others={PROFILE: told_of})

    def _forms(self, header: Mapping[str, Any]) -> Forms:
        return Forms.of(self._spec(header), *self._loaded)

    def _spec(self, header: Mapping[str, Any]) -> RunSpec:
        decided = {name: value for name, value in header["keys"].items() if _may_decide(name)}
        return RunSpec.make(**{**self.keys, **decided})

    def _site(self, header: Mapping[str, Any]) -> Site:
        """Return the site for these keys; the last one is kept, for loading images takes time."""
        spec = self._spec(header)
        if spec.digest() not in self._sites:
            self._sites.clear()
            self._sites[spec.digest()] = build_site(spec, self.client)
        return self._sites[spec.digest()]


def _as_asked(header: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Compute with as many threads as the run wants: their number decides bits."""
    return compute_threads(int(header["keys"].get("threads", 1)))


def told(error: Exception) -> str:
    """Say what went wrong without a word about files or images."""
    if isinstance(error, Diverged):
        return str(error)
    if isinstance(error, DataRefused):
        return "its images were refused; the log of the site says why"
    if isinstance(error, NotAllowed):
        return "its answer held something that may not leave the site; the log of the site says what"
    if isinstance(error, ModelRefused):
        return "its model, its memory or the message was refused; the log of the site says why"
    return f"{type(error).__name__}; the log of the site says more"
