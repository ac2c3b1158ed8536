"""What class shares of the site do to the source model's answers, where classes are alike and where not.

    python -m benchmarks.class_shares benchmark=icons-64 image_size=160 trunk=frozen     # keys of a run

From every source, for class_skew 0, 0.3 and 0.1: the accuracy in %, mean over all clients, of the source
model as it came, with the site's statistics, and with its class shares, too; how many clients trust their
shares; and what the client lost that lost most by them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from fedscal.core.rng import compute_threads
from fedscal.data.registry import benchmark
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.source import source_model
from fedscal.experiment.spec import RunSpec, parse_assignments
from fedscal.models.statistics import SiteStatistics, predict_at_site
from fedscal.runtime.evaluate import accuracy

SKEWS = (0.0, 0.3, 0.1)


@dataclass(frozen=True)
class Client:
    """Accuracies of a client in %, and how far it trusts its class shares."""

    came: float
    statistics: float
    shares: float
    trust: float


def clients(spec: RunSpec) -> Iterator[Client]:
    """Yield the clients of a run, with the source model as it is used there in three ways."""
    experiment = Experiment.build(spec)
    layout, source, view = (
        experiment.clients_of_data(),
        source_model(experiment).known,
        experiment.views.evaluate,
    )
    service, network = experiment.service(layout), experiment.network
    plain = SiteStatistics(spec.statistics_prior)
    for client in layout.clients:
        images, labels = service.data[client].images, service.labels[client]
        known = plain.knowing_classes(network, source.weights, images, view, source.class_shares)
        came, statistics, shares = (
            accuracy(predict_at_site(network, source.weights, images, view, used).logits.argmax(1), labels)
            for used in (None, plain, known)
        )
        yield Client(came, statistics, shares, known.shares.trust if known.shares else 0.0)


def main(words: list[str]) -> None:
    """Print the table."""
    keys = {"method": "fedsite", **parse_assignments(words)}
    sources = benchmark(keys.get("benchmark", "digits")).domains
    print("| class_skew | as it came | site statistics | class shares | clients that trust them | worst |")
    print("|---:|---:|---:|---:|---:|---:|")
    for skew in SKEWS:
        found = [
            client
            for source in sources
            for client in clients(RunSpec.make(**{**keys, "source": source, "class_skew": skew}))
        ]
        means = (fmean(getattr(one, name) for one in found) for name in ("came", "statistics", "shares"))
        believers = sum(one.trust > 0 for one in found)
        worst = min(one.shares - one.statistics for one in found)
        shown = " | ".join(f"{mean:.1f}" for mean in means)
        print(f"| {skew:g} | {shown} | {believers} of {len(found)} | {worst:+.1f} |", flush=True)


if __name__ == "__main__":
    with compute_threads(1):
        main(sys.argv[1:])
