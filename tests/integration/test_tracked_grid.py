"""A grid whose runs, each a process of its own, are tracked."""

from pathlib import Path

import pytest
from harness import TINY, Zygote, summary

SABOTAGE = "import fedscal.trackers.tensorboard as t; t.TensorBoard.conclude = None"


@pytest.mark.long
def test_the_runs_of_a_grid_are_tracked_and_their_warnings_are_passed_on(
    fedscal: Zygote, tmp_path: Path
) -> None:
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs the extra tensorboard"
    )
    words = ["compare", *TINY, "methods=fedloa", "seeds=0", "sources=a", "rounds=2", "--track", "tensorboard"]
    ended = fedscal(*words, "--out", tmp_path / "grid", env={"TEST_BEFORE": SABOTAGE})
    assert ended.code == 0, ended.err
    assert ended.error.startswith("warning: tensorboard does not follow this run any more: ")
    (run,) = (path.parent for path in tmp_path.glob("grid/*/summary.json"))
    events = accumulators.EventAccumulator(str(run / "tensorboard")).Reload()
    accuracies = [(event.step, event.value) for event in events.Scalars("accuracy/server/average")]
    assert [step for step, _ in accuracies] == [0, 1, 2]
    assert accuracies[-1][1] == pytest.approx(summary(run)["accuracy"]["last"]["average"])
