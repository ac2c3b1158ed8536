"""What shares of the source model would have done at the sites of finished runs, and what the rule chose.

    python -m benchmarks.site_shares DIR...     # folders with runs of FedSite

At every client, means of the source model and the one that was learned answer, with the client's own
statistics. A pair is a target domain of a run. Accuracies are means over all pairs in %; a row is compared
with the source model with the sites' statistics, pair by pair. The rule's rows are those of the runs'
records: steadier answers decide a client's share (``models/steadiness.py``).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from fedscal.core import weights
from fedscal.core.rng import compute_threads
from fedscal.core.types import Weights
from fedscal.experiment.experiment import Experiment
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


def clients(run: RunDirectory) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield every client's domain, and its accuracy by row."""
    spec = run.spec()
    experiment, last = Experiment.build(spec), run.rounds()[-1]
    layout, source, server = experiment.clients_of_data(), source_model(experiment).known, learned(run)
    service, view, network = experiment.service(layout), experiment.views.evaluate, experiment.network
    means = {share: weights.mean([source.weights, server], [share, 1 - share]) for share in SHARES}
    for client, domain in layout.domains.items():
        images, labels = service.data[client].images, service.labels[client]
        statistics = SiteStatistics(spec.statistics_prior).knowing_classes(
            network, source.weights, images, view, source.class_shares
        )
        answers = {
            f"{share:.0%}": predict_at_site(network, model, images, view, statistics).logits.argmax(1)
            for share, model in means.items()
        }
        yield (
            domain,
            {
                **{row: accuracy(found, labels) for row, found in answers.items()},
                RULE: last.client(client).accuracy,
            },
        )


def pairs(runs: Sequence[RunDirectory]) -> Pairs:
    """Return the accuracy of every target domain of every run, by row."""
    found: Pairs = defaultdict(list)
    for run in runs:
        domains: dict[str, list[dict[str, float]]] = defaultdict(list)
        for domain, rows in clients(run):
            domains[domain].append(rows)
        for members in domains.values():
            for row in members[0]:
                found[row].append(fmean(member[row] for member in members))
        print(f"{run.path.name}: {len(domains)} pairs", file=sys.stderr, flush=True)
    return found


def main(folders: Sequence[Path]) -> None:
    """Print the table."""
    places = sorted(path.parent for folder in folders for path in folder.rglob("summary.json"))
    runs = [run for run in map(RunDirectory, places) if run.spec().method == "fedsite"]
    found = pairs(runs)
    kept = found["100%"]
    print(f"{len(runs)} runs, {len(kept)} pairs\n")
    print("| share of the source model | accuracy | pairs below the source model | worst |")
    print("|---|---:|---:|---:|")
    for row, values in found.items():
        gains = [value - before for value, before in zip(values, kept, strict=True)]
        below = sum(gain < -0.05 for gain in gains)
        print(f"| {row} | {fmean(values):.1f} | {below} | {min(gains):+.1f} |")


if __name__ == "__main__":
    with compute_threads(1):
        main([Path(word) for word in sys.argv[1:]])
