"""What can be had on the icons: trained on the domain itself, and carried over from each other domain.

    python -m benchmarks.icons_bounds [seeds]        # e.g. 0,1,2

Prints two tables of accuracies in %, mean and standard deviation over the seeds. The supervised bound is
tested on icon sets that were held out from training, the source-only accuracy on all images of the target.
"""

from __future__ import annotations

import sys
from statistics import fmean, stdev

from fedscal.core.rng import compute_threads
from fedscal.data.cache import images
from fedscal.data.labels import known_labels
from fedscal.data.registry import benchmark
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.source import source_model
from fedscal.experiment.spec import RunSpec
from fedscal.models.network import predict

NAME = "icons"
DOMAINS = benchmark(NAME).domains


def accuracies(source: str, seed: int) -> dict[str, float]:
    """Return the accuracy of a source model in every domain; in its own on held-out sets."""
    experiment = Experiment.build(RunSpec.make(benchmark=NAME, source=source, seed=seed))
    data, network = experiment.data, experiment.network
    model = source_model(experiment)
    network.load_state_dict(model.weights)
    assert model.accuracy is not None
    found = {source: model.accuracy}
    for domain in DOMAINS:
        if domain != source:
            guessed = predict(network, images(data, domain), data.views.evaluate).logits.argmax(dim=1)
            found[domain] = 100 * float((guessed == known_labels(data, domain)).double().mean())
    return found


def shown(values: list[float]) -> str:
    """Return mean and standard deviation."""
    return f"{fmean(values):.1f} ± {stdev(values):.1f}"


def main(seeds: list[int]) -> None:
    """Print both tables."""
    with compute_threads(1):
        found = {source: [accuracies(source, seed) for seed in seeds] for source in DOMAINS}
    print("| domain | supervised, held-out sets |\n|---|---:|")
    for domain in DOMAINS:
        print(f"| {domain} | {shown([runs[domain] for runs in found[domain]])} |")
    print("\n| source | " + " | ".join(DOMAINS) + " |\n|---|" + "---:|" * len(DOMAINS))
    for source, runs in found.items():
        cells = [shown([run[d] for run in runs]) if d != source else "" for d in DOMAINS]
        print(f"| {source} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main([int(seed) for seed in (sys.argv[1:] or ["0"])[0].split(",")])
