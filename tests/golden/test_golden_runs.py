"""Golden runs: a tiny federation of each method must go on to give the numbers that it gave when measured.

Three classes of 6 x 6 images; a source model trained on bright ones; four clients of 24 images, two with
dim and two with dark ones, of which three take part in each of three rounds. Recorded a round: the loss
of the last local epoch, averaged over the participants, and the accuracy averaged over all clients.

Processors add and multiply in different orders, so the numbers must not hang on rounding. In float32 they
do: a rounding of 6e-8 becomes 3e-3 of DualAdapt's loss. These runs compute in float64, where a rounding is
1.1e-16. With other kernels forced on one processor (``test_other_processors.py``) the numbers move by at most
2e-11 of themselves, again in DualAdapt, whose L-BFGS adds a factor of 1e5; all others stay below 2e-14.
``TOLERANCE`` is 5,000 times that. A choice could still flip, such as an argmax, a threshold or a step of a
line search: so every number must also hold when the source model is moved by ``NUDGE``, 100,000 roundings.
That moves DualAdapt by 2e-9 of its loss, a factor of 240, and the others by a factor of at most 20.

If a change moves these numbers on purpose, measure them again with

    PYTHONPATH=tests .venv/bin/python tests/golden/test_golden_runs.py

paste what it prints over ``GOLDEN``, and say in the changelog that results change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest
import torch

from fedscal.client.training import ClientData, Training
from fedscal.core.rng import compute_threads
from fedscal.core.types import Weights
from fedscal.data.views import AugmentedViews
from fedscal.experiment.pretrain import SourceTraining, Trained, pretrain
from fedscal.methods import METHODS, build_objective, build_rule
from fedscal.runtime.local import LocalDriver
from fedscal.runtime.service import ClientService
from fedscal.server.rounds import Schedule, federate
from fedscal.server.rule import Briefing
from toys import Kept, blobs, tiny_network

TOLERANCE = 1e-7
NUDGE = 1e-11
GOLDEN: dict[str, list[tuple[float, float]]] = {
    "fedloa": [(-0.541768771, 77.0833333), (-0.484484995, 77.0833333), (-0.508277039, 84.375)],
    "fedprox": [(-0.540442606, 77.0833333), (-0.483778995, 77.0833333), (-0.50795876, 84.375)],
    "fedmoon": [(-0.541768771, 77.0833333), (-0.00742676902, 76.0416667), (0.171894755, 81.25)],
    "fedloa+bmd": [(1.42672193, 83.3333333), (1.60946931, 87.5), (1.49465788, 92.7083333)],
    "fedloa+ucon": [(0.563622289, 90.625), (0.5846308, 94.7916667), (0.360809791, 97.9166667)],
    "fedwca": [(0.0656461418, 81.25), (-0.108278452, 86.4583333), (-0.208670531, 92.7083333)],
    "ladd": [(4.37988911, 84.375), (4.37624549, 82.2916667), (4.4722762, 85.4166667)],
    "dualadapt": [(0.19143273, 87.5), (0.157880065, 93.75), (0.129933132, 95.8333333)],
    "dualadapt+shot": [(-0.369615049, 85.4166667), (-0.366290212, 82.2916667), (-0.516280349, 86.4583333)],
    "fedscal+bmd": [(2.05088485, 90.625), (2.4765013, 93.75), (2.31142624, 98.9583333)],
    "fedscal": [(0.163884682, 87.5), (0.480273185, 92.7083333), (0.287869441, 96.875)],
}

HYPER = {"tau_init": 0.6, "lambda_discrepancy": 1.0}
"""A threshold that toys can pass, and DualAdapt's discrepancy, without which its loss is 0."""
VIEWS = AugmentedViews(mean=(0.5,), std=(0.25,), flip=True)
BRIGHTNESS = {"dim-0": 60, "dim-1": 60, "dark-0": 35, "dark-1": 35}


@contextmanager
def float64() -> Iterator[None]:
    """Compute in float64 and with one thread."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with compute_threads(1):
            yield
    finally:
        torch.set_default_dtype(before)


@cache
def source() -> Trained:
    recipe = SourceTraining(epochs=6, batch_size=16, lr=0.05)
    return pretrain(tiny_network(), *blobs(90, seed=1), VIEWS, recipe, seed=0)


def nudged(weights: Weights) -> Weights:
    """Return a model whose every number is moved by about ``NUDGE`` of itself."""
    draws = torch.Generator().manual_seed(0)
    return {
        name: tensor * (1 + NUDGE * torch.randn(tensor.shape, generator=draws))
        if tensor.is_floating_point()
        else tensor
        for name, tensor in weights.items()
    }


@cache
def play(case: str) -> list[tuple[float, float]]:
    """Return (loss, accuracy) of every round of a method, ``+`` a local adaptation if not its own."""
    with float64():
        return rounds_of(case, source())


def rounds_of(case: str, start: Trained) -> list[tuple[float, float]]:
    method, _, chosen = case.partition("+")
    adaptation = chosen or METHODS[method].adaptation
    drawn = {client: blobs(24, 10 + i, bright) for i, (client, bright) in enumerate(BRIGHTNESS.items())}
    site = ClientService(
        data={client: ClientData(images, VIEWS) for client, (images, _) in drawn.items()},
        labels={client: labels for client, (_, labels) in drawn.items()},
        network=tiny_network(),
        objective=build_objective(method, adaptation, HYPER),
        training=Training(epochs=2, batch_size=8),
        seed=0,
        describe=METHODS[method].profile,
    )
    rule, schedule = build_rule(method, {}), Schedule(rounds=3, participation=0.75, lr=0.05)
    driver = LocalDriver(sorted(drawn), [site], Kept())
    found = []
    profiles, layer = driver.profile() if site.describe else {}, site.network.first_layer
    state = rule.init(Briefing(start.weights, layer, schedule.rounds, start.gaussians, profiles))
    for done in federate(rule, driver, state, schedule, seed=0):
        judged = driver.evaluate({client: rule.deployed(done.state, client) for client in drawn})
        loss = fmean(reply.epochs[-1]["loss"] for reply in done.replies)
        found.append((loss, fmean(row["accuracy"] for row in judged.values())))
    return found


@pytest.mark.parametrize("case", GOLDEN)
def test_a_run_gives_the_numbers_that_were_measured(case: str) -> None:
    for number, (now, then) in enumerate(zip(play(case), GOLDEN[case], strict=True), start=1):
        assert now == pytest.approx(then, rel=TOLERANCE), f"round {number}"


@pytest.mark.parametrize("case", GOLDEN)
def test_the_numbers_do_not_hang_on_rounding(case: str) -> None:
    with float64():
        moved = rounds_of(case, replace(source(), weights=nudged(source().weights)))
    assert moved != play(case), "nothing was moved"
    for now, then in zip(moved, play(case), strict=True):
        assert now == pytest.approx(then, rel=TOLERANCE)


def test_the_methods_differ() -> None:
    assert len({str(play(case)) for case in GOLDEN}) == len(GOLDEN)


if __name__ == "__main__":
    for name in GOLDEN:
        print(f'    "{name}": {[tuple(float(f"{x:.9g}") for x in pair) for pair in play(name)]},')
