"""The paper's figures from our runs, as svg elements; a figure without runs is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedscal.compare.comparison import source_tables
from fedscal.core.rng import compute_threads
from fedscal.core.types import Prediction
from fedscal.data.pixels import take
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.load import load_run
from fedscal.experiment.tsne import tsne
from fedscal.losses import pearson_skewness
from fedscal.models.network import predict
from fedscal.models.store import load_model
from fedscal.paper.drawing import ABSENT, COLOURS, canvas, drawing, label, methods, to_svg
from fedscal.paper.printed import ALL, AVERAGE
from fedscal.paper.result import Drawn, Result
from fedscal.paper.scores import Score
from fedscal.paper.tables import BARS, LAMBDAS, TAU, Block, Entry

FIGURES = 7
"""How many there are, if all can be drawn."""
_FEWEST_IMAGES = 10
"""With fewer images, density and neighbours mean nothing."""
_BINS = 30
_WIDE = 10
"""Values of a key that span more than this factor get a logarithmic axis."""
_WANTED = ("fedloa", "fedscal")
_SOURCE, _TARGET = "Art", "Clipart"
"""As in the paper: predictions for a client of Clipart, with the source model of Art."""
_MOST_IMAGES = 2000


def draw(result: Result, advance: Callable[[], None] = lambda: None) -> list[Drawn]:
    """Return every figure that can be drawn from the finished runs of a result."""
    drawn: list[Drawn] = []
    for figure in _figures(result):
        drawn += [figure] if figure and figure[2] else []
        advance()
    return drawn


def _figures(result: Result) -> Iterator[Drawn | None]:
    bars = [entry for entry in result.entries if entry.block == BARS and entry.cell.directory.finished]
    yield _bars(result.scores)
    yield _label_gaps(bars)
    for block in (TAU, *LAMBDAS):
        yield _sweep(block, result.scores)
    copy = result.copies.get(BARS.dataset)
    client = _client_predictions(bars, copy.folders) if copy else None
    if client and len(client.labels) >= _FEWEST_IMAGES:
        yield _entropies(client)
        yield _embeddings(client)


def _averages(block: Block, scores: Sequence[Score]) -> list[Score]:
    """Return the averages of a block over its targets, of the runs that are finished."""
    mine = [score for score in scores if score.block == block and score.target == AVERAGE]
    return [score for score in mine if math.isfinite(score.mean())]


def _deviations(scores: Iterable[Score]) -> list[float]:
    return [spread if math.isfinite(spread := score.deviation()) else 0.0 for score in scores]


def _bars(scores: Sequence[Score]) -> Drawn | None:
    """Draw the paper's and our bar of every method, over all sources or from the first that has runs."""
    averages = _averages(BARS, scores)
    if not averages:
        return None
    scope = ALL if any(score.source == ALL for score in averages) else averages[0].source
    shown = [score for score in averages if score.source == scope]
    title = f"Office-Home, source {scope}: average accuracy by method"
    paper = [math.nan if score.paper is None else score.paper for score in shown]
    ours = [score.mean() for score in shown]
    positions, width = np.arange(len(shown)), 0.4
    with drawing():
        figure, (axis,) = canvas(3.2)
        axis.bar(positions - width / 2, paper, width, color=ABSENT, label="paper")
        axis.bar(positions + width / 2, ours, width, yerr=_deviations(shown), color=COLOURS[0], label="ours")
        axis.set_xticks(positions, [label(score.method) for score in shown], rotation=20)
        axis.set_ylabel("accuracy, %")
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return title, "Grey: the paper's; blue: ours, last round.", to_svg(figure, "bars", title)


def _label_gaps(entries: Sequence[Entry]) -> Drawn | None:
    pair = [entry for entry in entries if entry.cell.spec.method in _WANTED]
    tables = source_tables([load_run(entry.cell.directory.path) for entry in pair])
    gaps = {table.source: gap for table in tables for gap in table.label_gaps.values()}
    title = "Office-Home: pseudo-label accuracy of FedSCAl minus FedLoA's"
    caption = "In the same round with the same seed, by source; mean over the seeds, the band one deviation."
    return title, caption, methods("label-gaps", title, gaps, "points")


def _sweep(block: Block, scores: Sequence[Score]) -> Drawn | None:
    """Draw the averages of a block whose rows are the values of a key, one curve per source."""
    key = block.variants[-1].title.partition("=")[0]
    curves: dict[str, dict[float, Score]] = {}
    for score in _averages(block, scores):
        curves.setdefault(score.source, {})[float(score.method.partition("=")[2])] = score
    if not curves:
        return None
    title = f"{block.dataset}: average accuracy over {key}"
    caption = "Last round, mean and deviation over the seeds; the other keys are the paper's."
    with drawing():
        figure, (axis,) = canvas(3.0)
        for (source, points), colour in zip(curves.items(), COLOURS, strict=False):
            means, spreads = [score.mean() for score in points.values()], _deviations(points.values())
            axis.errorbar(list(points), means, spreads, color=colour, marker="o", label=label(source))
        if min(map(min, curves.values())) * _WIDE < max(map(max, curves.values())):
            axis.set_xscale("log")
        axis.set_xlabel(key)
        axis.set_ylabel("average accuracy, %")
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return title, caption, to_svg(figure, f"sweep-{key}", title)


def _entropies(client: ClientPredictions) -> Drawn:
    """Draw the density of prediction entropies by model; the skewness is named in the legend."""
    title = f"Entropy of the predictions: {client.title}"
    caption = "Density over the client's images; skewness is 3 (mean - median) / deviation, as in the paper."
    entropies = {model: prediction.entropies for model, prediction in client.predictions.items()}
    highest = max(float(values.max()) for values in entropies.values())
    edges = np.linspace(0.0, max(highest, 1e-6), _BINS + 1).tolist()
    style: dict[str, Any] = {"density": True, "histtype": "step", "linewidth": 1.6}
    with drawing():
        figure, (axis,) = canvas(3.0)
        for (model, values), colour in zip(entropies.items(), COLOURS, strict=False):
            text = f"{label(model)}, skewness {float(pearson_skewness(values)):.2f}"
            axis.hist(values.numpy(), edges, color=colour, label=text, **style)
        axis.set_xlabel("entropy of a prediction, nats")
        axis.set_ylabel("density")
        axis.legend(loc="upper left", bbox_to_anchor=(0.0, -0.2), ncols=1)
        return title, caption, to_svg(figure, "entropies", title)


def _embeddings(client: ClientPredictions) -> Drawn:
    """Draw the t-SNE of each model's features side by side, one colour per class."""
    title = f"t-SNE of the features: {client.title}"
    caption = "Before and after adaptation; one colour per class. Distances between clusters mean nothing."
    with drawing():
        figure, axes = canvas(3.0, 1, len(client.predictions))
        for axis, (model, prediction) in zip(axes, client.predictions.items(), strict=True):
            x, y = tsne(prediction.features).T.numpy()
            axis.scatter(x, y, c=client.labels.numpy(), cmap="turbo", s=4, linewidths=0)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.grid(visible=False)
            axis.set_title(label(model))
        return title, caption, to_svg(figure, "embeddings", title)


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


def _client_predictions(entries: Sequence[Entry], folders: Mapping[str, str]) -> ClientPredictions | None:
    """Predict the paper's client, or the first one there is; None without finished runs of both methods."""
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
    rows = torch.arange(min(_MOST_IMAGES, len(data.images)))
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
