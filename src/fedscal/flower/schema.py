"""What a site's responses may hold: one list, checked where they leave and where they arrive.

Numbers about the training, the model's own tensors, and what the method reveals by its row. No text but
names, hashes and a sentence about a failure; no other tensor, no path. Site and server make the list from
what both have: the run's options and the source model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedscal.client.term import Objective
from fedscal.core import fields
from fedscal.core.errors import ModelRefused
from fedscal.core.fields import Field, just, real, record, several
from fedscal.core.types import ClientId, Groups, Package, Profile, Weights
from fedscal.core.weights import flatten, unlike
from fedscal.experiment.records import AVERAGE
from fedscal.experiment.spec import RunSpec
from fedscal.flower.codec import JUDGED
from fedscal.methods import build_objective, build_rule, method
from fedscal.models.store import ModelCard
from fedscal.runtime.evaluate import JOINT
from fedscal.runtime.messages import FAILED, PROFILE, REPORT, UNLIKENESS, WEIGHTS
from fedscal.runtime.signals import SIGNALS
from fedscal.server.rule import ServerRule
from fedscal.server.screen import IMAGES, MOST, training_record

_ROUNDING = 0.01
"""By how much a float32 entropy, or what is made of it, may be outside the range that it has on paper."""
_PERCENT = real(0, 100)
_IN_PATHS = frozenset("/\\")


class NotAllowed(ModelRefused):
    """A response holds something that is not on the list, or lacks what is."""


def _text(pattern: str, words: str) -> Field:
    known = re.compile(pattern)
    return fields.field(lambda value: isinstance(value, str) and known.fullmatch(value) is not None, words)


def _is_sentence(value: Any) -> bool:
    """A text that fits on a line and holds no path."""
    return isinstance(value, str) and len(value) <= 300 and value.isprintable() and not set(value) & _IN_PATHS


# A name or a version: nothing with room for a path or a sentence about data.
_WORD = _text(r"[\w.+-]{1,64}", "a word of at most 64 letters, digits and -_.+")
_HASH = _text(r"[0-9a-f]{64}", "a sha256")
_SENTENCE = fields.field(_is_sentence, "a sentence of at most 300 characters")
_DOMAIN = _text(rf"(?!{AVERAGE}$)[\w.+-]{{1,64}}", f"a word other than '{AVERAGE}'")
_STAMP = {"version": _WORD, "classes_sha256": _HASH, "model_sha256": _HASH}


@dataclass(frozen=True)
class Schema:
    """What the response to one request holds.

    Attributes:
        header: its names and numbers.
        groups: an example of its tensors, which have the same names, shapes and types.
    """

    header: Field
    groups: Groups = field(default_factory=dict)

    def check(self, header: Mapping[str, object], groups: Groups) -> None:
        """Raise if a response is anything else."""
        wrong = self.header(header)
        if wrong:
            raise NotAllowed(f"its answer{wrong}")
        wrong = unlike(flatten(groups), flatten(self.groups))
        if wrong:
            raise NotAllowed(wrong)


def _schema(
    client: ClientId,
    more: Mapping[str, Field],
    groups: Groups | None = None,
    models: Sequence[str] = (),
    transport: str = "fp32",
) -> Schema:
    every = {"client": just(client), **_STAMP, "models": just(list(models)), "transport": just(transport)}
    return Schema(record({**every, **more}), groups or {})


def handshake(client: ClientId) -> Schema:
    """Return the schema of a site's handshake."""
    return _schema(client, {"domain": _DOMAIN, "images": IMAGES})


FAILURE = Schema(
    record({FAILED: _SENTENCE}, {"client": _WORD, **_STAMP, "models": just([]), "transport": just("fp32")})
)
"""The schema of a failure."""


@dataclass(frozen=True)
class Schemas:
    """The schemas of the responses to a run's requests.

    Attributes:
        objective: what the clients minimise; its terms name the scalars of a local epoch.
        rule: what the server does; it names the reports that it waits for.
        describe: what the method collects of a client's images, once.
        epochs: local epochs.
        source: the model that server and sites have in common.
        classes: how many classes it knows.
        shape: the shape of the images that it takes.
    """

    objective: Objective
    rule: ServerRule
    describe: Profile | None
    epochs: int
    source: Weights
    classes: int
    shape: Sequence[int]

    @classmethod
    def of(cls, spec: RunSpec, source: Weights, card: ModelCard) -> Schemas:
        """Return the schemas of a run with a source model and its card."""
        return cls(
            objective=build_objective(spec.method, spec.adaptation, spec.hyper),
            rule=build_rule(spec.method, spec.hyper),
            describe=method(spec.method).profile,
            epochs=spec.local_epochs,
            source=source,
            classes=len(card.classes),
            shape=card.shape,
        )

    def training(self, client: ClientId, images: int, package: Package, transport: str) -> Schema:
        """Return the schema of the response of a client with so many images to a package."""
        scalar = real(-MOST, MOST)
        epoch = record(dict.fromkeys(("loss", *self.objective.recorded), scalar), {"entropy": scalar})
        scalars = training_record(client, package.round, just(images), several(epoch, self.epochs))
        reports = {REPORT + name: group for name, group in self.rule.reports(package.models).items()}
        must, may = self._metrics(images)
        joint = dict.fromkeys(JOINT if self.objective.asks_server else (), _PERCENT)
        header = {**scalars, "metrics": record(must, {**may, **joint})}
        return _schema(client, header, {WEIGHTS: self.source, **reports}, [WEIGHTS], transport)

    def judgement(self, client: ClientId, images: int) -> Schema:
        """Return the schema of a judgement that comes with another response."""
        return Schema(record({"client": just(client), JUDGED: record(*self._metrics(images))}))

    def evaluation(self, client: ClientId, images: int) -> Schema:
        """Return the schema of the evaluation of a model by a client with so many images."""
        return _schema(client, {"metrics": record(*self._metrics(images))})

    def comparison(self, client: ClientId) -> Schema:
        """Return the schema of a client's comparison of its images with those that the model knows."""
        return _schema(client, {UNLIKENESS: real(0, MOST)})

    def done(self, client: ClientId) -> Schema:
        """Return the schema of a response that says no more than that."""
        return _schema(client, {})

    def profile(self, client: ClientId) -> Schema:
        """Return the schema of a client's profile, by the profile of a blank image."""
        if self.describe is None:
            raise NotAllowed("the method asks for no profile of a site's images")
        blank = torch.zeros(1, *self.shape, dtype=torch.uint8)
        return _schema(client, {}, {PROFILE: self.describe(blank)})

    @property
    def metrics(self) -> frozenset[str]:
        """The names of all metrics of an evaluation."""
        must, may = self._metrics(1)
        return frozenset({*must, *may})

    def _metrics(self, images: int) -> tuple[dict[str, Field], dict[str, Field]]:
        """Return the metrics of every evaluation, and those that need labels or a reference."""
        signals = {
            name: real(-_ROUNDING, signal.limit(self.classes, images) + _ROUNDING)
            for name, signal in SIGNALS.items()
        }
        must = {
            "images": just(images),
            **signals,
            "effective_classes": real(1 - _ROUNDING, self.classes + _ROUNDING),
        }
        shares = dict.fromkeys(("agreement", "source_share", "source_steadiness"), real(0, 1))
        return must, {**shares, "accuracy": _PERCENT, "pseudo_label_accuracy": _PERCENT}
