"""The paper's figures from our runs; a figure without runs is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes

from fedscal.compare.row_labels import caveats, marked
from fedscal.core.rng import compute_threads
from fedscal.core.types import ClientId, Prediction
from fedscal.data.pixels import take
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.load import natural
from fedscal.experiment.tsne import tsne
from fedscal.losses import pearson_skewness
from fedscal.models.network import predict
from fedscal.models.store import load_model
from fedscal.paper.datasets import DATASETS
from fedscal.paper.drawing import (
    ABSENT,
    COLOURS,
    canvas,
    drawing,
    drawn,
    label,
    legend,
    over_rounds,
    value_axis,
)
from fedscal.paper.measured import error_curves, joint_errors, label_gaps, of_methods
from fedscal.paper.printed import ALL, AVERAGE
from fedscal.paper.result import Drawn, Result
from fedscal.paper.scores import Score
from fedscal.paper.tables import BARS, LAMBDAS, TAU, Block, Entry, figures_of
from fedscal.runtime.service import ClientService

_FEWEST_IMAGES = 10
"""With fewer images, density and neighbours mean nothing."""
_SOURCE, _TARGET = "Art", "Clipart"
"""As in the paper: predictions for a client of Clipart, with the source model of Art."""
_MOST_IMAGES = 2000
_POINTS = 400
"""Points at which a density is drawn."""
Numbers: TypeAlias = "npt.NDArray[np.float64]"


def draw(result: Result, advance: Callable[[], None] = lambda: None) -> list[Drawn]:
    """Return every figure of a table that can be drawn from the finished runs of a result."""
    made: list[Drawn] = []
    for name in figures_of(result.name):
        figure = _DRAW[name](result)
        made += [figure] if figure else []
        advance()
    return made


def _averages(block: Block, scores: Sequence[Score]) -> list[Score]:
    """Return the averages of a block over its targets, of the runs that are finished."""
    mine = [score for score in scores if score.block == block and score.target == AVERAGE]
    return [score for score in mine if math.isfinite(score.mean())]


def _deviations(scores: Iterable[Score]) -> list[float]:
    return [spread if math.isfinite(spread := score.deviation()) else 0.0 for score in scores]


def _bars(result: Result) -> Drawn | None:
    """Draw the paper's and our bar of every method, over all sources or from the first that has runs."""
    averages = _averages(BARS, result.scores)
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
        names = [marked(label(score.method), BARS.method(score.method)) for score in shown]
        axis.set_xticks(positions, names, rotation=20)
        axis.set_ylabel("accuracy, %")
        legend(axis)
        footnotes = caveats(BARS.method(score.method) for score in shown)
        caption = " ".join(["Grey: the paper's table; blue: ours, last round.", *footnotes])
        return drawn(figure, "bars", title, caption)


def _runs(result: Result) -> list[Entry]:
    """Return the finished runs of the paper's systems on Office-Home."""
    return [e for e in result.entries if e.block.name == BARS.name and e.cell.directory.finished]


def _label_gaps(result: Result) -> Drawn | None:
    gaps = label_gaps(_runs(result))
    title = "Office-Home: pseudo-label accuracy of FedSCAl minus FedLoA's"
    caption = "In the same round with the same seed, by source; mean over the seeds, the band one deviation."
    return over_rounds("label-gaps", title, caption, gaps, "points") if gaps else None


def _errors(result: Result) -> Drawn | None:
    """Draw how often the labels of FedSCAl's two teachers are wrong, alone and together."""
    runs = of_methods(_runs(result), "fedscal")
    source = _preferred(entry.source for entry in runs)
    curves = error_curves(joint_errors(entry for entry in runs if entry.source == source))
    title = f"Office-Home, source {source}: wrong labels of client and server"
    caption = (
        "Of the participants' images, in evaluation view, after their training: their own model, the one "
        "that they received, both, and both if errors were independent; mean over the seeds, the band one "
        "deviation."
    )
    return over_rounds("errors", title, caption, curves, "% of the images") if curves else None


def _preferred(sources: Iterable[str]) -> str:
    """Return the paper's source for what it shows from one, or the first there is; empty without any."""
    return min(sources, key=lambda name: (name != _SOURCE, name), default="")


def _tau(result: Result) -> Drawn | None:
    return _sweeps("tau", [TAU], result.scores)


def _lambdas(result: Result) -> Drawn | None:
    return _sweeps("lambdas", LAMBDAS, result.scores)


def _sweeps(name: str, blocks: Sequence[Block], scores: Sequence[Score]) -> Drawn | None:
    """Draw the averages of blocks whose rows are the values of a key: a panel a block, a curve a source."""
    averages = {block.variants[-1].title.partition("=")[0]: _averages(block, scores) for block in blocks}
    known = {key: found for key, found in averages.items() if found}
    if not known:
        return None
    title = f"{DATASETS[blocks[0].dataset].title}: average accuracy over {' and '.join(known)}"
    caption = "Last round, mean and deviation over the seeds; the other keys are the paper's."
    with drawing():
        figure, axes = canvas(3.0, 1, len(known))
        for axis, (key, found) in zip(axes, known.items(), strict=True):
            _sweep(axis, key, found)
        axes[0].set_ylabel("average accuracy, %")
        legend(axes[-1])
        return drawn(figure, name, title, caption)


def _sweep(axis: Axes, key: str, scores: Sequence[Score]) -> None:
    curves: dict[str, dict[float, Score]] = {}
    for score in scores:
        if score.source != ALL:
            curves.setdefault(score.source, {})[float(score.method.partition("=")[2])] = score
    for (source, points), colour in zip(curves.items(), COLOURS, strict=False):
        means, spreads = [score.mean() for score in points.values()], _deviations(points.values())
        axis.errorbar(list(points), means, spreads, color=colour, marker="o", label=label(source))
    value_axis(axis, sorted({value for points in curves.values() for value in points}))
    axis.set_xlabel(key)


@dataclass(frozen=True)
class _Clients:
    """The clients of a run, to be asked about its models and about those of runs on the same data."""

    entry: Entry
    service: ClientService

    @classmethod
    def of(cls, entry: Entry) -> _Clients:
        experiment = Experiment.build(entry.cell.spec)
        return cls(entry, experiment.service(experiment.clients_of_data()))

    @property
    def names(self) -> list[ClientId]:
        """The clients with enough images."""
        data = self.service.data
        return sorted((c for c in data if len(data[c].images) >= _FEWEST_IMAGES), key=natural)

    def predict(self, entry: Entry, model: str, client: ClientId) -> Prediction:
        """Return what a run's model says of a client's images, the first ones if there are very many."""
        weights, _ = load_model(entry.cell.directory.path / "model", model)
        data, network = self.service.data[client], self.service.network
        images = take(data.images, torch.arange(min(_MOST_IMAGES, len(data.images))))
        network.load_state_dict(weights)
        with compute_threads(entry.cell.spec.threads):
            return predict(network, images, data.views.evaluate)

    def title(self, client: ClientId) -> str:
        """Name a client of the run."""
        return f"{client}, source {self.entry.source}, seed {self.entry.cell.spec.seed}"


@dataclass(frozen=True)
class Skewed:
    """The entropies of a client's predictions, and their skewness gamma."""

    client: ClientId
    entropies: Numbers
    skewness: float


Pair = tuple[Skewed, Skewed]


def _entropies(result: Result) -> Drawn | None:
    """Draw the densities of two clients' entropies whose skewness has opposite signs, if there are two."""
    runs = of_methods(_runs(result), "fedscal")
    if not runs:
        return None
    source = _preferred(entry.source for entry in runs)
    clients = _Clients.of(next(entry for entry in runs if entry.source == source))
    if len(clients.names) < 2:
        return None
    words, pair = _opposite_pair(clients)
    highest = math.log(clients.service.network.head.out_features)
    seed = clients.entry.cell.spec.seed
    title = f"Entropy of two clients' predictions: {words}, source {source}, seed {seed}"
    return _densities(pair, highest, title)


def _opposite_pair(clients: _Clients) -> tuple[str, Pair]:
    """Return a model, and two clients that it gives opposite skewness: the last one, or else the source's."""
    for words, model in (("FedSCAl's last model", "last"), ("the source model", "source")):
        pair = extremes([_skewed(clients, model, client) for client in clients.names])
        if opposite(pair):
            return words, pair
    return words, pair


def _skewed(clients: _Clients, model: str, client: ClientId) -> Skewed:
    values = clients.predict(clients.entry, model, client).entropies
    return Skewed(client, values.double().numpy(), float(pearson_skewness(values)))


def extremes(clients: Sequence[Skewed]) -> Pair:
    """Return the clients with the lowest and the highest skewness, the first of equals."""
    return min(clients, key=lambda one: one.skewness), max(clients, key=lambda one: one.skewness)


def opposite(pair: Pair) -> bool:
    """Whether the skewness of two clients has opposite signs."""
    return pair[0].skewness < 0 < pair[1].skewness


def _densities(pair: Pair, highest: float, title: str) -> Drawn:
    caption = (
        f"{pair[0].client} has the lowest skewness gamma of all clients, {pair[1].client} the highest"
        f"{'' if opposite(pair) else '; none has the opposite sign'}. It is 3 (mean - median) / deviation, "
        "as in the paper. Gaussian kernels, reflected at 0 and at the logarithm of the number of classes."
    )
    at = np.linspace(0.0, highest, _POINTS)
    with drawing():
        figure, (axis,) = canvas(3.0)
        for one, colour in zip(pair, COLOURS, strict=False):
            height = density(one.entropies, at, highest)
            text = f"{label(one.client)}, gamma = {one.skewness:+.2f}"
            axis.plot(at, height, color=colour, linewidth=1.6, label=text)
            axis.fill_between(at, height, color=colour, alpha=0.3, linewidth=0)
        axis.set_xlim(0.0, highest)
        axis.set_ylim(bottom=0.0)
        axis.set_xlabel("entropy of a prediction, nats")
        axis.set_ylabel("density")
        legend(axis)
        return drawn(figure, "entropies", title, caption)


def density(values: Numbers, at: Numbers, highest: float) -> Numbers:
    """Return the kernel density of values in [0, highest]: Gaussian, Scott's width, reflected at both ends.

    Entropies crowd at 0, where a kernel would lose half of its mass to values that no entropy has.
    """
    width = max(float(values.std(ddof=1)) * len(values) ** -0.2, highest / _POINTS)
    mirrored = np.concatenate([values, -values, 2 * highest - values])
    kernels = np.exp(-0.5 * ((at[:, None] - mirrored) / width) ** 2)
    made: Numbers = kernels.sum(axis=1) / (len(values) * width * math.sqrt(2 * math.pi))
    return made


def _tsne(result: Result) -> Drawn | None:
    """Draw the t-SNE of each model's features of one client side by side, one colour per class."""
    runs = {(e.source, e.cell.spec.seed, e.cell.spec.method): e for e in _runs(result)}
    pairs = [(s, seed) for s, seed, method in runs if method == "fedscal" and (s, seed, "fedloa") in runs]
    if not pairs:
        return None
    source, seed = min(pairs, key=lambda pair: (pair[0] != _SOURCE, pair))
    entries = [runs[source, seed, name] for name in ("fedloa", "fedscal")]
    clients = _Clients.of(entries[0])
    folder = result.copies[BARS.dataset].folders[_TARGET if source != _TARGET else _SOURCE]
    client = next((name for name in clients.names if name.rpartition("-")[0] == folder), None)
    if client is None:
        return None
    models = {"source model": clients.predict(entries[0], "source", client)}
    models |= {entry.variant.title: clients.predict(entry, "last", client) for entry in entries}
    return _embeddings(clients, client, models)


def _embeddings(clients: _Clients, client: ClientId, models: Mapping[str, Prediction]) -> Drawn:
    title = f"t-SNE of the features: {clients.title(client)}"
    caption = "Before and after adaptation; one colour per class. Distances between clusters mean nothing."
    labels = clients.service.labels[client][:_MOST_IMAGES].numpy()
    with drawing():
        figure, axes = canvas(3.0, 1, len(models))
        for axis, (model, prediction) in zip(axes, models.items(), strict=True):
            x, y = tsne(prediction.features).T.numpy()
            axis.scatter(x, y, c=labels, cmap="turbo", s=4, linewidths=0)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.grid(visible=False)
            axis.set_title(label(model))
        return drawn(figure, "tsne", title, caption)


_DRAW: Mapping[str, Callable[[Result], Drawn | None]] = {
    "figure-bars": _bars,
    "figure-label-gaps": _label_gaps,
    "figure-entropies": _entropies,
    "figure-tau": _tau,
    "figure-tsne": _tsne,
    "figure-lambdas": _lambdas,
    "figure-errors": _errors,
}
