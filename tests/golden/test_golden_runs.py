"""Golden runs: a tiny federation of each method must go on to give the numbers that it gave when measured.

Three classes of 6 x 6 images; a source model trained on bright ones; four clients of 24 images, two with
dim and two with dark ones, of which three take part in each of three rounds. Recorded a round: the loss
of the last local epoch, averaged over the participants, and the accuracy averaged over all clients.

If a change moves these numbers on purpose, measure them again with

    OMP_NUM_THREADS=1 PYTHONPATH=tests .venv/bin/python tests/golden/test_golden_runs.py

paste what it prints over ``GOLDEN``, and say in the changelog that results change.
"""

from __future__ import annotations

from functools import cache
from statistics import fmean

import pytest

from fedscal.client import ClientData, Training
from fedscal.data.views import AugmentedViews
from fedscal.drivers.in_process import InProcess
from fedscal.drivers.site import Site
from fedscal.federation import Schedule, federate
from fedscal.methods import METHODS, build_objective, build_rule
from fedscal.models.pretrain import SourceTraining, Trained, pretrain
from fedscal.rng import compute_threads
from fedscal.server.rule import Briefing
from toys import Kept, blobs, tiny_network

GOLDEN: dict[str, list[tuple[float, float]]] = {
    "fedloa": [(-0.455925, 73.958333), (-0.480122, 82.291667), (-0.563263, 87.5)],
    "fedprox": [(-0.454685, 73.958333), (-0.479596, 82.291667), (-0.563009, 87.5)],
    "fedmoon": [(-0.455925, 73.958333), (-0.011903, 79.166667), (0.153615, 86.458333)],
    "fedloa+bmd": [(1.899039, 76.041667), (1.931014, 86.458333), (1.799603, 88.541667)],
    "fedloa+ucon": [(0.670521, 89.583333), (0.572468, 98.958333), (0.382298, 100.0)],
    "fedwca": [(0.146096, 73.958333), (-0.052926, 82.291667), (0.031232, 87.5)],
    "ladd": [(1.098489, 72.916667), (1.035147, 77.083333), (1.062699, 80.208333)],
    "dualadapt": [(-0.229577, 78.125), (-0.267455, 80.208333), (-0.315731, 85.416667)],
    "fedscal+bmd": [(2.637106, 83.333333), (3.0139, 93.75), (2.566592, 97.916667)],
    "fedscal": [(0.519792, 80.208333), (0.79513, 85.416667), (0.647752, 90.625)],
}

VIEWS = AugmentedViews(mean=(0.5,), std=(0.25,), flip=True)
BRIGHTNESS = {"dim-0": 60, "dim-1": 60, "dark-0": 35, "dark-1": 35}


@cache
def source() -> Trained:
    recipe = SourceTraining(epochs=6, batch_size=16, lr=0.05)
    return pretrain(tiny_network(), *blobs(90, seed=1), VIEWS, recipe, seed=0)


def play(case: str) -> list[tuple[float, float]]:
    """Return (loss, accuracy) of every round of a method, ``+`` a local adaptation if not its own."""
    method, _, chosen = case.partition("+")
    adaptation = chosen or METHODS[method].adaptation
    drawn = {client: blobs(24, 10 + i, bright) for i, (client, bright) in enumerate(BRIGHTNESS.items())}
    site = Site(
        data={client: ClientData(images, VIEWS) for client, (images, _) in drawn.items()},
        labels={client: labels for client, (_, labels) in drawn.items()},
        network=tiny_network(),
        objective=build_objective(method, adaptation, {"tau_init": 0.6}),
        training=Training(epochs=2, batch_size=8),
        seed=0,
        describe=METHODS[method].profile,
    )
    rule, schedule = build_rule(method, {}), Schedule(rounds=3, participation=0.75, lr=0.05)
    driver = InProcess(sorted(drawn), [site], Kept())
    found = []
    profiles, layer = driver.profile() if site.describe else {}, site.network.first_layer
    state = rule.init(Briefing(source().weights, layer, schedule.rounds, source().gaussians, profiles))
    for done in federate(rule, driver, state, schedule, seed=0):
        judged = driver.evaluate({client: rule.deployed(done.state, client) for client in drawn})
        loss = fmean(reply.epochs[-1]["loss"] for reply in done.replies)
        found.append((loss, fmean(row["accuracy"] for row in judged.values())))
    return found


@pytest.mark.parametrize("method", GOLDEN)
def test_a_run_gives_the_numbers_that_were_measured(method: str) -> None:
    with compute_threads(1):
        found = play(method)
    for number, (now, then) in enumerate(zip(found, GOLDEN[method], strict=True), start=1):
        assert now == pytest.approx(then, rel=1e-4), f"round {number}"


def test_the_methods_differ() -> None:
    assert len({str(rounds) for rounds in GOLDEN.values()}) == len(GOLDEN)


if __name__ == "__main__":
    with compute_threads(1):
        for name in GOLDEN:
            print(f'    "{name}": {[tuple(round(x, 6) for x in pair) for pair in play(name)]},')
