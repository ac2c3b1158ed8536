"""Runs in TensorBoard, MLflow and Weights & Biases, read back from where these keep them."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import toys
from fedscal.core.errors import UsageError
from fedscal.data.benchmark import Benchmark
from fedscal.experiment.run import adapt, resume
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec
from fedscal.trackers import TRACKERS, TensorBoard, Tracker, following, usable
from fedscal.trackers.flat import round_numbers, summary_numbers

TOY = {"benchmark": "toy", "workers": 1, "pretrain_epochs": 1}
Logged = list[tuple[int, str, float]]
"""Every number that was logged: its round, its name and itself."""


@dataclass(frozen=True)
class Found:
    """What a tracker has of a run."""

    keys: dict[str, str]
    logged: Logged
    verdict: str
    files: set[str]


def tensorboard(folder: Path) -> Found:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(str(folder / "run" / "tensorboard")).Reload()
    data = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    start = HParamsPluginData.FromString(data).session_start_info
    (text,) = events.Tensors("summary/text_summary")
    return Found(
        {name: str(getattr(value, value.WhichOneof("kind"))) for name, value in start.hparams.items()},
        [(e.step, tag, e.value) for tag in events.Tags()["scalars"] for e in events.Scalars(tag)],
        text.tensor_proto.string_val[0].decode(),
        set(),
    )


def mlflow(folder: Path) -> Found:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("fedscal")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    history = [one for name in run.data.metrics for one in client.get_metric_history(run.info.run_id, name)]
    files = {one.path for one in client.list_artifacts(run.info.run_id)}
    logged = [(one.step, one.key, one.value) for one in history]
    return Found(run.data.params, logged, run.data.tags["mlflow.note.content"], files)


def wandb(folder: Path) -> Found:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    records = [
        one for path in sorted(folder.glob("run/wandb/offline-run-*/*.wandb")) for one in read_wandb(path)
    ]
    assert len({one.run.run_id for one in records if one.HasField("run")}) == 1
    config = {i.key: i.value_json for one in records if one.HasField("run") for i in one.run.config.update}
    logged: Logged = []
    for one in records:
        if one.HasField("history"):
            row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in one.history.item}
            logged += [(one.history.step.num, name, row[name]) for name in row if name[0] != "_"]
    summary = {i.key or i.nested_key[0]: i.value_json for one in records for i in one.summary.update}
    steps = max(step for step, _, _ in logged)
    logged += [(steps, name, json.loads(text)) for name, text in summary.items() if name[:8] == "summary/"]
    files = {path.name for path in folder.glob("run/wandb/latest-run/files/*")} - {"requirements.txt"}
    kept = {name: str(json.loads(text)) for name, text in config.items()}
    return Found(kept, logged, json.loads(summary["verdict"]), files)


def read_wandb(path: Path) -> Iterator[Any]:
    """Yield the records of an offline run: a header, then blocks as LevelDB's log has them."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        if kind == 0:  # the rest of a block is empty
            place += 32768 - place % 32768
            continue
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield messages.Record.FromString(whole)
            whole = b""


READERS: dict[str, Callable[[Path], Found]] = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
UPLOADED = {"spec.toml", "summary.json", "report.html"}


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the trackers keep everything in the test's folder, without a network."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)


def tracker(name: str) -> Tracker:
    """Return a tracker; without its extra the test is left out."""
    pytest.importorskip(name, reason=f"needs the extra {name}")
    return TRACKERS[name]()


@pytest.mark.parametrize(
    "name",
    [
        "tensorboard",
        *(pytest.param(name, marks=pytest.mark.long) for name in TRACKERS if name != "tensorboard"),
    ],
)
def test_a_stopped_and_resumed_run_is_tracked_as_one(
    toy_benchmark: Benchmark, tmp_path: Path, stores: None, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = RunSpec.make(**TOY)
    with pytest.raises(toys.Stopped), tracker(name) as first:
        adapt(spec, tmp_path / "run", first, toys.StopsAfterRoundOne())
    with tracker(name) as second:
        run = resume(tmp_path / "run", second)
        (run.path / "report.html").write_text("a page")
    assert [first.lost, second.lost] == [False, False]
    assert capfd.readouterr() == ("", "")
    assert adapt(spec, tmp_path / "plain").summary().weights_sha256 == run.summary().weights_sha256
    assert "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ
    check(READERS[name](tmp_path), run, uploads=name != "tensorboard")


def check(found: Found, run: RunDirectory, uploads: bool) -> None:
    """Hold what a tracker has against the run's own files."""
    assert found.keys["method"] == "fedscal"
    assert float(found.keys["rounds"]) == 2
    assert found.keys.keys() >= run.spec().flat().keys()
    assert "source model" in found.verdict
    assert found.files == (UPLOADED if uploads else set())
    expected = {
        (one.round, name): value for one in run.rounds() for name, value in round_numbers(one).items()
    }
    if uploads:
        expected |= {(2, name): value for name, value in summary_numbers(run.summary()).items()}
    assert {(step, name): value for step, name, value in found.logged} == pytest.approx(expected)
    assert max(Counter((step, name) for step, name, _ in found.logged).values()) == 1


def test_a_server_that_is_not_there_costs_one_warning(
    toy_benchmark: Benchmark,
    tmp_path: Path,
    stores: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    lost = tracker("mlflow")
    assert adapt(RunSpec.make(**TOY), tmp_path / "run", lost).finished
    assert lost.lost
    assert_one_warning(capfd, "mlflow", "127.0.0.1:9")


def test_nobody_logged_in_costs_one_warning(
    toy_benchmark: Benchmark,
    tmp_path: Path,
    stores: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb").teardown()
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("NETRC", str(tmp_path / "nobody"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    lost = tracker("wandb")
    assert adapt(RunSpec.make(**TOY), tmp_path / "run", lost).finished
    assert_one_warning(capfd, "wandb", "wandb login")


def test_a_place_that_cannot_be_written_costs_one_warning(
    toy_benchmark: Benchmark, tmp_path: Path, stores: None, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker("tensorboard")
    (tmp_path / "logs").write_text("a file, and no folder")
    lost = TensorBoard(tmp_path / "logs")
    assert adapt(RunSpec.make(**TOY), tmp_path / "run", lost).finished
    assert_one_warning(capfd, "tensorboard", "logs")


def assert_one_warning(capfd: pytest.CaptureFixture[str], name: str, part: str) -> None:
    """Look at all that was said."""
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"warning: {name} does not follow this run any more: ")
    assert part in line


def test_who_followed_a_run_follows_it_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker("tensorboard")
    followed = {name: {"run": "1"} for name in ("tensorboard", "wandb", "somebody")}
    (tmp_path / "trackers.json").write_text(json.dumps(followed))
    monkeypatch.setitem(sys.modules, "wandb", None)
    for asked in ("", "tensorboard"):
        with following(asked, tmp_path) as found:
            assert [one.name for one in found] == ["tensorboard"]
        said = capsys.readouterr().err
        assert said == (
            "warning: wandb followed this run, and does not any more: "
            "tracking in Weights & Biases needs wandb: pip install 'fedscal[wandb]'\n"
        )
    with pytest.raises(UsageError, match=r"fedscal\[wandb\]"), following("wandb"):
        pass


def test_what_cannot_be_used_is_left_out_of_a_grid_with_one_warning(
    stores: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker("tensorboard")
    tracker("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert usable("mlflow,tensorboard") == "tensorboard"
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("warning: mlflow does not follow these runs: ")
