"""What shares of the source model would have done at the sites of finished runs, and what the rule chose.

    python -m benchmarks.site_shares DIR...     # folders of runs, as `fedscal compare --out` leaves

At every client, means of the source model and the one that was learned answer, with the client's own
statistics. A pair is a target domain of a run. Accuracies are means over all pairs in %; a row is compared
with the source model with the sites' statistics, pair by pair. The rule's rows are those of the runs'
records: steadier answers decide a client's share (``models/steadiness.py``).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.delivery import runs
from fedscal.core import weights
from fedscal.core.rng import compute_threads
from fedscal.core.types import ClientId, Weights
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.records import by_domain
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.source import source_model
from fedscal.models.statistics import SiteStatistics, predict_at_site
from fedscal.runtime.evaluate import accuracy

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
RULE = "the rule"
Pairs = dict[str, list[float]]
"""Accuracies of all pairs, by row."""


def learned(run: RunDirectory) -> Weights:
    """Return the server's model after the last round."""
    checkpoint = run.checkpoints.latest()
    assert checkpoint, f"{run.path} has no checkpoint"
    return checkpoint.state.models["server"]


def accuracies(run: RunDirectory) -> Pairs:
    """Return the accuracy of every target domain of a run, by row."""
    spec = run.spec()
    experiment, last = Experiment.build(spec), run.rounds()[-1]
    layout, source, server = experiment.clients_of_data(), source_model(experiment).known, learned(run)
    service, view, network = experiment.service(layout), experiment.views.evaluate, experiment.network
    means = {share: weights.mean([source.weights, server], [share, 1 - share]) for share in SHARES}
    rows: dict[str, dict[ClientId, float]] = defaultdict(dict)
    for client in layout.clients:
        images, labels = service.data[client].images, service.labels[client]
        statistics = SiteStatistics(spec.statistics_prior).knowing_classes(
            network, source.weights, images, view, source.class_shares
        )
        for share, model in means.items():
            answers = predict_at_site(network, model, images, view, statistics).logits.argmax(1)
            rows[f"{share:.0%}"][client] = accuracy(answers, labels)
        rows[RULE][client] = last.client(client).accuracy
    return {row: list(by_domain(found, layout.domains).domains.values()) for row, found in rows.items()}


def main(folders: Sequence[Path]) -> None:
    """Print the table."""
    chosen = [run for run in runs(folders) if run.spec().method == "fedsite"]
    found: Pairs = defaultdict(list)
    for run in chosen:
        for row, values in accuracies(run).items():
            found[row] += values
        print(run.path.name, file=sys.stderr, flush=True)
    kept = found["100%"]
    print(f"{len(chosen)} runs, {len(kept)} pairs\n")
    print("| share of the source model | accuracy | pairs below the source model | worst |")
    print("|---|---:|---:|---:|")
    for row, values in found.items():
        gains = [value - before for value, before in zip(values, kept, strict=True)]
        below = sum(gain < -0.05 for gain in gains)
        print(f"| {row} | {fmean(values):.1f} | {below} | {min(gains):+.1f} |")


if __name__ == "__main__":
    with compute_threads(1):
        main([Path(word) for word in sys.argv[1:]])
