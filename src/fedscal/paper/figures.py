"""The paper's figures from our runs; a figure without runs is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

from fedscal.compare.comparison import source_tables
from fedscal.core.extras import from_extra
from fedscal.experiment.load import load_run
from fedscal.losses import pearson_skewness
from fedscal.paper.predictions import ClientPredictions, client_predictions
from fedscal.paper.printed import ALL, AVERAGE
from fedscal.paper.result import Drawn, Result
from fedscal.paper.scores import Score
from fedscal.paper.tables import BARS, LAMBDAS, TAU, Block, Entry

FIGURES = 7
"""How many there are, if all can be drawn."""
_FEWEST_IMAGES = 10
"""With fewer images, density and neighbours mean nothing."""


def check_drawing() -> None:
    """Refuse before anything is run if the drawing libraries are not installed."""
    _drawings()


def draw(result: Result, advance: Callable[[], None] = lambda: None) -> list[Drawn]:
    """Return every figure that can be drawn from the finished runs of a result."""
    drawn: list[Drawn] = []
    for figure in _figures(result, _drawings()):
        drawn += [figure] if figure and figure[2] else []
        advance()
    return drawn


def _figures(result: Result, drawings: ModuleType) -> Iterator[Drawn | None]:
    bars = [entry for entry in result.entries if entry.block == BARS and entry.cell.directory.finished]
    yield _bars(result.scores, drawings)
    yield _label_gaps(bars)
    for block in (TAU, *LAMBDAS):
        yield _sweep(block, result.scores, drawings)
    copy = result.copies.get(BARS.dataset)
    client = client_predictions(bars, copy.folders) if copy else None
    if client and len(client.labels) >= _FEWEST_IMAGES:
        yield _entropies(client, drawings)
        yield _embedding(client, drawings)


def _drawings() -> ModuleType:
    with from_extra("figures", "drawing the figures"):
        from fedscal.paper import drawings
    return drawings


def _bars(scores: Sequence[Score], drawings: ModuleType) -> Drawn | None:
    """Draw the methods over all sources, or from the first source that has runs."""
    averages = [
        score
        for score in scores
        if score.block == BARS and score.target == AVERAGE and math.isfinite(score.mean())
    ]
    if not averages:
        return None
    scope = ALL if any(score.source == ALL for score in averages) else averages[0].source
    shown = [score for score in averages if score.source == scope]
    title = f"Office-Home, source {scope}: average accuracy by method"
    paper = {score.method: math.nan if score.paper is None else score.paper for score in shown}
    ours = {score.method: (score.mean(), score.deviation()) for score in shown}
    return title, "Grey: the paper's; blue: ours, last round.", drawings.bars(title, paper, ours)


def _label_gaps(entries: Sequence[Entry]) -> Drawn | None:
    with from_extra("figures", "drawing the figures"):
        from fedscal.report import figures
    pair = [entry for entry in entries if entry.cell.spec.method in ("fedloa", "fedscal")]
    tables = source_tables([load_run(entry.cell.directory.path) for entry in pair])
    gaps = {table.source: gap for table in tables for gap in table.label_gaps.values()}
    title = "Office-Home: pseudo-label accuracy of FedSCAl minus FedLoA's"
    caption = "In the same round with the same seed, by source; mean over the seeds, the band one deviation."
    return title, caption, figures.methods("label-gaps", title, gaps, "points")


def _sweep(block: Block, scores: Sequence[Score], drawings: ModuleType) -> Drawn | None:
    """Draw the averages of a block whose rows are the values of a key."""
    key = block.variants[-1].title.partition("=")[0]
    curves: dict[str, dict[float, tuple[float, float]]] = {}
    for score in scores:
        if score.block == block and score.target == AVERAGE and math.isfinite(score.mean()):
            value = float(score.method.partition("=")[2])
            curves.setdefault(score.source, {})[value] = (score.mean(), score.deviation())
    title = f"{block.dataset}: average accuracy over {key}"
    caption = "Last round, mean and deviation over the seeds; the other keys are the paper's."
    return (title, caption, drawings.sweep(f"sweep-{key}", title, key, curves)) if curves else None


def _entropies(client: ClientPredictions, drawings: ModuleType) -> Drawn:
    values = {
        model: (prediction.entropies.numpy(), float(pearson_skewness(prediction.entropies)))
        for model, prediction in client.predictions.items()
    }
    title = f"Entropy of the predictions: {client.title}"
    caption = "Density over the client's images; skewness is 3 (mean - median) / deviation, as in the paper."
    return title, caption, drawings.densities(title, values)


def _embedding(client: ClientPredictions, drawings: ModuleType) -> Drawn:
    title = f"t-SNE of the features: {client.title}"
    features = {model: prediction.features.numpy() for model, prediction in client.predictions.items()}
    caption = "Before and after adaptation; one colour per class. Distances between clusters mean nothing."
    return title, caption, drawings.embeddings(title, features, client.labels.numpy())
