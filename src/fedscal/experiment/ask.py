"""Ask the source model, as it came, and the delivered one about every image of the clients on this machine.

Only answers, confidences and a few features are kept; a client's images are gone when the next one's come.
Labels are read here as for evaluation, and nothing of this is seen by training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fedscal.core.rng import stream
from fedscal.core.types import ClientId, Images, Prediction, Progress, Weights
from fedscal.data.labels import labels
from fedscal.data.pixels import take
from fedscal.experiment.experiment import Experiment
from fedscal.models.statistics import predict_at_site

_POINTS = 600
"""Images whose features are kept, over all domains."""


@dataclass(frozen=True)
class Told:
    """What a model tells of n images.

    Attributes:
        answers: the predicted classes (n,).
        confidence: their probabilities (n,).
        margin: how far the second class is behind (n,).
        features: what comes before the head (k, d), of the marked images only.
    """

    answers: Tensor
    confidence: Tensor
    margin: Tensor
    features: Tensor

    @classmethod
    def of(cls, prediction: Prediction, marked: Tensor) -> Told:
        """Keep what is needed of a model's predictions."""
        best = prediction.probabilities.topk(min(2, prediction.logits.shape[1]), dim=1).values
        answers = prediction.logits.argmax(dim=1)
        return cls(answers, best[:, 0], best[:, 0] - best[:, -1], prediction.features[marked])

    @classmethod
    def join(cls, parts: Iterable[Told]) -> Told:
        """Join what a model, or several, told one client after the other."""
        told = list(parts)
        return cls(*(torch.cat([getattr(one, field.name) for one in told]) for field in fields(cls)))


@dataclass(frozen=True)
class Asked:
    """The images of a domain, client after client, and what both models tell of them.

    Attributes:
        clients: whose image it is.
        rows: the images' places in the domain (n,).
        marked: whether an image's features are kept (n,).
        before: the source model.
        after: the delivered one.
        labels: the true classes (n,), if the domain has labels.
    """

    clients: Sequence[ClientId]
    rows: Tensor
    marked: Tensor
    before: Told
    after: Told
    labels: Tensor | None


def ask(
    experiment: Experiment, source: Weights, delivered: Callable[[ClientId], Weights], progress: Progress
) -> dict[str, Asked]:
    """Ask both models about all images, by domain.

    Args:
        experiment: the run, with its clients.
        source: the source model.
        delivered: returns the model that a client uses, with what it has of its own in it.
        progress: is told of every client.
    """
    domains = sorted(set(experiment.layout.domains.values()))
    most = max(1, _POINTS // len(domains))
    return {domain: _ask(experiment, domain, most, source, delivered, progress) for domain in domains}


def _ask(
    experiment: Experiment,
    domain: str,
    most: int,
    source: Weights,
    delivered: Callable[[ClientId], Weights],
    progress: Progress,
) -> Asked:
    images, truth = experiment.images(domain), labels(experiment.data, domain)
    held = [(c, experiment.layout.rows[c][1]) for c, d in experiment.layout.domains.items() if d == domain]
    rows = torch.cat([mine for _, mine in held])
    marked = _marked(len(rows), most, experiment.spec.seed, domain)
    parts = torch.split(marked, [len(mine) for _, mine in held])
    before, after = [], []
    for (client, mine), kept in zip(held, parts, strict=True):
        seen = take(images, mine)
        before.append(Told.of(_predict(experiment, source, seen), kept))
        after.append(Told.of(_predict(experiment, delivered(client), seen), kept))
        progress.advance()
    return Asked(
        clients=[client for client, mine in held for _ in mine],
        rows=rows,
        marked=marked,
        before=Told.join(before),
        after=Told.join(after),
        labels=None if truth is None else truth[rows],
    )


def _marked(count: int, most: int, seed: int, domain: str) -> Tensor:
    """Draw the images whose features are kept."""
    marked = torch.zeros(count, dtype=torch.bool)
    marked[torch.randperm(count, generator=stream(seed, "shown-features", domain))[:most]] = True
    return marked


def _predict(experiment: Experiment, model: Weights, images: Images) -> Prediction:
    # What a site has of its own is in the model already.
    return predict_at_site(experiment.network, model, images, experiment.views.evaluate, statistics=None)
