"""A round counts when it is merged: a run that ends before its model is judged goes on from there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fedscal
from fedscal.core.types import ClientId
from fedscal.data.benchmark import Benchmark
from fedscal.experiment.run_directory import RunDirectory
from toys import Stopped


class StopsWhenMerged(fedscal.Callback):
    """Ends a run when a round is merged and all others have been told."""

    def __init__(self, round_: int) -> None:
        self._round = round_

    def merged(self, merged: Any, state: Any) -> None:
        if merged.round == self._round:
            raise Stopped


class Heard(fedscal.Callback):
    """Notes which rounds are asked for, merged and judged, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def asked(self, round_: int, clients: Sequence[ClientId]) -> None:
        self.events.append(("asked", round_))

    def merged(self, merged: Any, state: Any) -> None:
        self.events.append(("merged", merged.round))

    def round(self, record: Any, state: Any) -> None:
        if state is not None:
            self.events.append(("round", record.round))


def result(run: RunDirectory) -> object:
    """Return what a run left, but for its times."""
    models = {path.name: path.read_bytes() for path in (run.path / "model").glob("*.safetensors")}
    rounds = [(one.round, one.participants, one.signals, one.selected_round) for one in run.rounds()]
    return rounds, run.summary().weights_sha256, models


@pytest.mark.parametrize("round_", [0, 1, 2])
def test_a_run_that_ends_between_merging_and_judging_has_the_model_judged_and_nobody_train_again(
    tmp_path: Path, toy_benchmark: Benchmark, round_: int
) -> None:
    spec = fedscal.RunSpec.make(benchmark="toy", workers=1)
    heard = Heard()
    whole = fedscal.adapt(spec, tmp_path / "whole", heard)
    rest = [(event, n) for n in (1, 2) for event in ("asked", "merged", "round")]
    assert heard.events == [("merged", 0), ("round", 0), *rest]
    with pytest.raises(Stopped):
        fedscal.adapt(spec, tmp_path / "run", StopsWhenMerged(round_))
    assert len(RunDirectory(tmp_path / "run").rounds()) == round_
    heard = Heard()
    run = fedscal.resume(tmp_path / "run", heard)
    assert heard.events == [("round", round_), *(event for event in rest if event[1] > round_)]
    assert result(run) == result(whole)
