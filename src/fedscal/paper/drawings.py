"""Draw the paper's figures: plain numbers in, an svg element out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from sklearn.manifold import TSNE

from fedscal.report.figures import ABSENT, COLOURS, canvas
from fedscal.report.svg import drawing, label, to_svg

_BINS = 30
_PERPLEXITY = 30.0
_WIDE = 10
"""Values of a key that span more than this factor get a logarithmic axis."""
Array = npt.NDArray[Any]


def bars(title: str, paper: Mapping[str, float], ours: Mapping[str, tuple[float, float]]) -> str:
    """Draw one pair of bars per method: the paper's accuracy, and ours with its deviation."""
    positions, width = np.arange(len(ours)), 0.4
    means = [mean for mean, _ in ours.values()]
    deviations = [spread if math.isfinite(spread) else 0.0 for _, spread in ours.values()]
    with drawing():
        figure, (axis,) = canvas(3.2)
        axis.bar(positions - width / 2, [paper[name] for name in ours], width, color=ABSENT, label="paper")
        axis.bar(positions + width / 2, means, width, yerr=deviations, color=COLOURS[0], label="ours")
        axis.set_xticks(positions, [label(name) for name in ours], rotation=20)
        axis.set_ylabel("accuracy, %")
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return to_svg(figure, "bars", title)


def sweep(name: str, title: str, key: str, curves: Mapping[str, Mapping[float, tuple[float, float]]]) -> str:
    """Draw accuracy over the values of a key, one curve per source, with deviations as bars.

    Args:
        name: a name for the svg's ids.
        title: what is drawn.
        key: the key that varies.
        curves: by source and value of the key, mean and deviation.
    """
    with drawing():
        figure, (axis,) = canvas(3.0)
        for (source, points), colour in zip(curves.items(), COLOURS, strict=False):
            means = [mean for mean, _ in points.values()]
            spreads = [spread if math.isfinite(spread) else 0.0 for _, spread in points.values()]
            axis.errorbar(list(points), means, spreads, color=colour, marker="o", label=label(source))
        if min(map(min, curves.values())) * _WIDE < max(map(max, curves.values())):
            axis.set_xscale("log")
        axis.set_xlabel(key)
        axis.set_ylabel("average accuracy, %")
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return to_svg(figure, name, title)


def densities(title: str, entropies: Mapping[str, tuple[Array, float]]) -> str:
    """Draw the density of prediction entropies by model; the skewness is named in the legend."""
    highest = max(float(values.max()) for values, _ in entropies.values())
    edges = np.linspace(0.0, max(highest, 1e-6), _BINS + 1).tolist()
    with drawing():
        figure, (axis,) = canvas(3.0)
        for (model, (values, skewness)), colour in zip(entropies.items(), COLOURS, strict=False):
            text = f"{label(model)}, skewness {skewness:.2f}"
            axis.hist(values, edges, density=True, histtype="step", color=colour, linewidth=1.6, label=text)
        axis.set_xlabel("entropy of a prediction, nats")
        axis.set_ylabel("density")
        axis.legend(loc="upper left", bbox_to_anchor=(0.0, -0.2), ncols=1)
        return to_svg(figure, "entropies", title)


def embeddings(title: str, features: Mapping[str, Array], labels: Array) -> str:
    """Draw the t-SNE of each model's features side by side, one colour per class."""
    with drawing():
        figure, axes = canvas(3.0, 1, len(features))
        for axis, (model, values) in zip(axes, features.items(), strict=True):
            _scatter(axis, embedded(values), labels)
            axis.set_title(label(model))
        return to_svg(figure, "embeddings", title)


def embedded(features: Array) -> Array:
    """Return the t-SNE of features, with a fixed seed."""
    perplexity = min(_PERPLEXITY, (len(features) - 1) / 3)
    points: Array = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(features)
    return points


def _scatter(axis: Axes, points: Array, labels: Sequence[int] | Array) -> None:
    axis.scatter(points[:, 0], points[:, 1], c=labels, cmap="turbo", s=4, linewidths=0)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.grid(visible=False)
