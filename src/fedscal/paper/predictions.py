"""What finished runs' models say of one client's images: for figures that accuracies cannot draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedscal.core.rng import compute_threads
from fedscal.core.types import Prediction
from fedscal.data.pixels import take
from fedscal.experiment.experiment import Experiment
from fedscal.models.network import predict
from fedscal.models.store import load_model
from fedscal.paper.tables import Entry

_WANTED = ("fedloa", "fedscal")
_SOURCE, _TARGET = "Art", "Clipart"
"""What the paper shows: a client of Clipart, the source model of Art."""
MOST_IMAGES = 2000


@dataclass(frozen=True)
class Look:
    """One client seen by several models.

    Attributes:
        title: which client, and from where.
        said: what each model says of the client's images; the source model first.
        labels: the client's labels.
    """

    title: str
    said: Mapping[str, Prediction]
    labels: Tensor


def look(entries: Sequence[Entry], folders: Mapping[str, str]) -> Look | None:
    """Return the paper's client, or the first that can be had; None without finished runs of both methods.

    Args:
        entries: the runs of one data set.
        folders: the folder of each domain.
    """
    runs = {
        (entry.source, entry.cell.spec.seed, entry.cell.spec.method): entry
        for entry in entries
        if entry.cell.directory.finished and entry.cell.spec.method in _WANTED
    }
    pairs = [(s, seed) for s, seed, _ in runs if all((s, seed, name) in runs for name in _WANTED)]
    if not pairs:
        return None
    source, seed = min(pairs, key=lambda pair: (pair[0] != _SOURCE, pair))
    target = _TARGET if source != _TARGET else _SOURCE
    return _seen([runs[source, seed, name] for name in _WANTED], folders[target])


def _seen(entries: Sequence[Entry], domain: str) -> Look:
    """Let the source model and each run's last model predict the images of the domain's first client."""
    spec = entries[0].cell.spec
    experiment = Experiment.build(spec)
    site = experiment.service(experiment.clients_of_data())
    client = min(name for name in site.data if name.rpartition("-")[0] == domain)
    data = site.data[client]
    rows = torch.arange(min(MOST_IMAGES, len(data.images)))
    images = take(data.images, rows)
    models = [("source model", entries[0], "source")]
    models += [(entry.variant.title, entry, "last") for entry in entries]
    said = {}
    with compute_threads(spec.threads):
        for title, entry, name in models:
            weights, _ = load_model(entry.cell.directory.path / "model", name)
            site.network.load_state_dict(weights)
            said[title] = predict(site.network, images, data.views.evaluate)
    return Look(f"{client}, source {spec.source}, seed {spec.seed}", said, site.labels[client][rows])
