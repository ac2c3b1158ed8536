"""Predictions of finished runs' models for one client's images, for the figures that need them."""

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
"""As in the paper: a client of Clipart, the source model of Art."""
MOST_IMAGES = 2000


@dataclass(frozen=True)
class ClientPredictions:
    """Predictions of several models for one client.

    Attributes:
        title: the client, source and seed.
        predictions: by model, the source model first.
        labels: the client's labels.
    """

    title: str
    predictions: Mapping[str, Prediction]
    labels: Tensor


def client_predictions(entries: Sequence[Entry], folders: Mapping[str, str]) -> ClientPredictions | None:
    """Predict the paper's client, or the first one there is; None without finished runs of both methods.

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
    return _predict([runs[source, seed, name] for name in _WANTED], folders[target])


def _predict(entries: Sequence[Entry], domain: str) -> ClientPredictions:
    """Predict the images of the domain's first client by the source model and each run's last model."""
    spec = entries[0].cell.spec
    experiment = Experiment.build(spec)
    site = experiment.service(experiment.clients_of_data())
    client = min(name for name in site.data if name.rpartition("-")[0] == domain)
    data = site.data[client]
    rows = torch.arange(min(MOST_IMAGES, len(data.images)))
    images = take(data.images, rows)
    models = [("source model", entries[0], "source")]
    models += [(entry.variant.title, entry, "last") for entry in entries]
    predictions = {}
    with compute_threads(spec.threads):
        for title, entry, name in models:
            weights, _ = load_model(entry.cell.directory.path / "model", name)
            site.network.load_state_dict(weights)
            predictions[title] = predict(site.network, images, data.views.evaluate)
    title = f"{client}, source {spec.source}, seed {spec.seed}"
    return ClientPredictions(title, predictions, site.labels[client][rows])
