"""How long a table takes: passes are counted as a client really makes them, seconds reckoned by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import layouts
from fedscal.experiment.spec import RunSpec
from fedscal.paper import estimate as module
from fedscal.paper.datasets import locate
from fedscal.paper.estimate import Pace, Passes, estimate, measure, passes, seconds_of_run, seconds_of_source
from fedscal.paper.tables import datasets_of, entries, table

PACE = Pace(forward=0.01, forward_backward=0.1, where="here")


@pytest.mark.parametrize(
    ("name", "forward", "both"),
    [
        ("loa", 5, 5),
        ("fedloa", 5, 5),
        ("fedprox", 5, 5),
        ("fedmoon", 15, 5),  # the server's model and the old one on every batch
        ("fedwca", 7, 10),  # two cluster models once; mixtures beside the weak view
        ("ladd", 2, 5),  # teacher and source model once, no sweeps
        ("dualadapt", 5, 5),
        ("fedscal", 6, 10),  # the server's model once; a strong view beside the weak one
    ],
)
def test_passes_are_those_that_the_benchmark_of_rounds_counts(name: str, forward: int, both: int) -> None:
    spec = RunSpec.make(benchmark="digits", source="mnist", method=name, local_epochs=5)
    assert passes(spec, clusters=2) == Passes(forward, both)


@pytest.mark.parametrize(("name", "forward", "both"), [("fedloa", 1, 10), ("fedscal", 6, 10)])
def test_ucon_sweeps_once_a_round_and_needs_the_strong_view(name: str, forward: int, both: int) -> None:
    spec = RunSpec.make(benchmark="digits", source="mnist", method=name, adaptation="ucon", local_epochs=5)
    assert passes(spec, clusters=2) == Passes(forward, both)


def test_seconds_follow_from_images_rounds_and_passes() -> None:
    common = {"benchmark": "digits", "source": "font", "rounds": 3, "local_epochs": 2}
    spec = RunSpec.make(**common, method="fedloa", clients_per_domain=2, participation=0.5)
    images = {"mnist": 60, "optdigits": 40, "font": 1000}
    # 2 of 4 clients see half of 100 images: 50 (2 sweeps 0.01 + 2 trained 0.1) = 11 s a round. Then the
    # server's model is judged on 100 images, theirs on 50: 1.5 s. Before the first round 100 images: 1 s.
    assert seconds_of_run(spec, images, PACE) == pytest.approx(1 + 3 * (11 + 1.5))
    assert seconds_of_run(spec.replace(method="source-only"), images, PACE) == pytest.approx(1.0)
    # 90 % of 1000 images ten times, then all once.
    longer = spec.replace(pretrain_epochs=10)
    assert seconds_of_source(longer, 1000, PACE) == pytest.approx(9000 * 0.1 + 10)


@pytest.mark.parametrize(("seconds", "sizes"), [(0.1, [8]), (0.001, [8, 64])])
def test_a_quick_network_is_timed_with_a_whole_batch(
    monkeypatch: pytest.MonkeyPatch, seconds: float, sizes: list[int]
) -> None:
    timed: list[int] = []

    def pace(spec: RunSpec, data: object, network: object, size: int) -> Pace:
        timed.append(size)
        return Pace(forward=size, forward_backward=seconds, where="here")

    monkeypatch.setattr(module, "_pace", pace)
    spec = RunSpec.make(benchmark="digits", source="font", device="cpu", batch_size=64)
    assert measure(spec).forward == sizes[-1]
    assert timed == sizes


def test_an_estimate_counts_what_is_left_and_writes_nothing(tmp_path: Path) -> None:
    root = layouts.empty_tree(tmp_path / "data", dict.fromkeys(layouts.OFFICE_HOME, 4), ["Bed", "Mug"])
    blocks = table("office-home")
    given = {"model": "convnet", "image_size": "32", "methods": "fedloa,fedscal", "sources": "Art"}
    runs = entries(blocks, locate(datasets_of(blocks), [root]), given, tmp_path)
    done = runs[0].cell.directory.path
    done.mkdir(parents=True)
    accuracy = {key: {"Clipart": 50.0} for key in ("source_only", "last", "selected", "best")}
    took = {"seconds": {"pretrain": 1e6, "adapt": 20.0, "evaluate": 5.0}, "accuracy": accuracy}
    (done / "summary.json").write_text(json.dumps({"rounds": 60, **took}))
    found = estimate(runs)
    images = dict.fromkeys(layouts.OFFICE_HOME, 4)
    expected = seconds_of_run(runs[0].cell.spec, images, found.pace["office-home"])
    assert found.past == pytest.approx((25.0, expected)), "the source model's seconds are not compared"
    assert (found.finished, found.models) == (1, 3)
    assert {row: len(cells) for row, cells in found.cells.items()} == {
        "main-office-home: FedLoA": 2,
        "main-office-home: FedSCAl": 3,
    }
    *_, left, past = found.sentences(1)
    assert left.startswith("5 runs to do, 1 finished: about ")
    assert past.startswith("Rounds and evaluations of the 1 finished run took 25.0 s; the estimate for the")
    assert past.endswith(f", {expected / 25:.2f} times that.")
    assert "2 at a time" in found.sentences(2)[-2]
    assert list((tmp_path / "cells").iterdir()) == [done]
