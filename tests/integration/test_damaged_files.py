"""Files that are not what was written: a run falls back, builds again or refuses, and believes none."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import TINY, contents, rows, same_result, summary


class Canary:
    """Whoever unpickles this leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def _truncate(path: Path, canary: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path: Path, canary: Path) -> None:
    path.write_bytes(b"")


def _flip(path: Path, canary: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def _delete(path: Path, canary: Path) -> None:
    path.unlink()


def _pickle(path: Path, canary: Path) -> None:
    path.write_bytes(pickle.dumps(Canary(canary)))


DAMAGES = [_truncate, _empty, _flip, _delete, _pickle]
Damage = Callable[[Path, Path], None]
each_damage = pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))


def test_the_canary_sings(tmp_path):
    """Else its silence would prove nothing."""
    pickle.loads(pickle.dumps(Canary(tmp_path / "canary")))  # noqa: S301
    assert (tmp_path / "canary").exists()


def _unfinished(run: Path) -> Path:
    (run / "summary.json").unlink()
    return run


@each_damage
@pytest.mark.parametrize("kind", ["state.safetensors", "manifest.json", "memory"])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_used(
    fedscal, tmp_path, tiny_runs, copy_of, kind, damage: Damage
):
    run = _unfinished(copy_of(tiny_runs["fedmoon"]))
    newest = run / "checkpoints" / "round-0003"
    victim = newest / kind
    if kind == "memory":
        named = {e["file"] for e in json.loads((newest / "manifest.json").read_text())["memories"].values()}
        victim = run / "checkpoints" / "memory" / next(name for name in sorted(named) if "-0003." in name)
    damage(victim, tmp_path / "canary")
    ended = fedscal("run", "--resume", run, "--no-report")
    assert ended.code == 0, ended.err
    assert "warning" in ended.out + ended.err
    assert victim.name in ended.out + ended.err
    assert same_result(run, tiny_runs["fedmoon"])
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("damage", [_truncate, _flip, _delete, _pickle])
def test_without_a_whole_checkpoint_the_run_is_refused_with_the_file_named(
    fedscal, tmp_path, tiny_runs, copy_of, damage: Damage
):
    run = _unfinished(copy_of(tiny_runs["fedscal"]))
    for folder in (run / "checkpoints").glob("round-*"):
        damage(folder / "state.safetensors", tmp_path / "canary")
    before = contents(run)
    ended = fedscal("run", "--resume", run, "--quiet")
    assert ended.code == 4
    assert str(run / "checkpoints") in ended.error
    assert "state.safetensors" in ended.error
    assert not (tmp_path / "canary").exists()
    assert {name: data for name, data in contents(run).items() if name != "events.log"} == {
        name: data for name, data in before.items() if name != "events.log"
    }


def test_a_manifest_cannot_point_out_of_its_directory(fedscal, tmp_path, tiny_runs, copy_of):
    run = _unfinished(copy_of(tiny_runs["fedmoon"]))
    outside = tmp_path / "outside.safetensors"
    manifest = run / "checkpoints" / "round-0003" / "manifest.json"
    content = json.loads(manifest.read_text())
    name, entry = sorted(content["memories"].items())[0]
    shutil.move(run / "checkpoints" / "memory" / entry["file"], outside)
    content["memories"][name] = {**entry, "file": str(outside)}
    manifest.write_text(json.dumps(content))
    ended = fedscal("run", "--resume", run, "--no-report")
    assert ended.code in (0, 4)
    assert "warning" in ended.out + ended.err or ended.code == 4
    if ended.code == 0:
        assert summary(run)["weights_sha256"] == summary(tiny_runs["fedmoon"])["weights_sha256"]


@pytest.mark.parametrize("kept", [0, 1, 2, 3], ids="{} lines left".format)
def test_lost_metrics_never_change_the_result(fedscal, tiny_runs, copy_of, kept):
    """The checkpoint is of round 3: rounds must not be run again from its state."""
    run = _unfinished(copy_of(tiny_runs["fedscal"]))
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:kept]))
    ended = fedscal("run", "--resume", run, "--quiet", "--no-report")
    assert ended.code in (0, 4), ended.err
    if ended.code == 0:
        assert same_result(run, tiny_runs["fedscal"])
    else:
        assert "metrics.jsonl" in ended.error


def test_a_damaged_line_of_metrics_is_refused_with_its_number(fedscal, tiny_runs, copy_of):
    run = _unfinished(copy_of(tiny_runs["fedscal"]))
    metrics = run / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join([lines[0], b"{]\n", *lines[2:]]))
    ended = fedscal("run", "--resume", run, "--quiet")
    assert ended.code == 4
    assert "line 2" in ended.error


@pytest.mark.parametrize("text", ["", "rounds = [", "\x00\xff", 'rounds = "many"'])
def test_a_damaged_spec_is_refused(fedscal, tiny_runs, copy_of, text):
    run = _unfinished(copy_of(tiny_runs["fedscal"]))
    (run / "spec.toml").write_bytes(text.encode("latin-1"))
    before = rows(run)
    ended = fedscal("run", "--resume", run, "--quiet")
    assert ended.code in (2, 3, 4), ended.out
    assert ended.error
    assert rows(run) == before


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("model.safetensors", damage) for damage in DAMAGES),
        ("model.json", _truncate),
        ("model.json", _delete),
    ],
)
def test_a_damaged_source_model_is_trained_again_and_never_used(
    fedscal, tmp_path, tiny_runs, name, damage: Damage
):
    cache = tmp_path / "cache"
    shutil.copytree(fedscal.cache / "data" / "tiny-v1", cache / "data" / "tiny-v1")
    trained = Path(json.loads(fedscal("pretrain", *TINY, "--json").out)["path"])
    folder = Path(shutil.copytree(trained, cache / "source" / trained.name))
    whole = (folder / "model.safetensors").read_bytes()
    damage(folder / name, tmp_path / "canary")
    run = tmp_path / "run"
    ended = fedscal("run", *TINY, "--quiet", "--no-report", "--out", run, cache=cache)
    assert ended.code == 0, ended.err
    assert (folder / "model.safetensors").read_bytes() == whole
    assert same_result(run, tiny_runs["fedscal"])
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("b.images.safetensors", _flip),
        ("b.images.safetensors", _delete),
        ("b.images.safetensors", _pickle),
        ("c.labels.safetensors", _flip),
        ("manifest.json", _truncate),
    ],
)
def test_damaged_data_are_found_and_built_again(fedscal, tmp_path, tiny_runs, name, damage: Damage):
    cache = tmp_path / "cache"
    folder = Path(shutil.copytree(fedscal.cache / "data" / "tiny-v1", cache / "data" / "tiny-v1"))
    shutil.copytree(fedscal.cache / "source", cache / "source", ignore=shutil.ignore_patterns(".*"))
    whole = contents(folder)
    damage(folder / name, tmp_path / "canary")
    checked = fedscal("data", "check", "tiny", cache=cache)
    assert checked.code == 3
    assert name in checked.error
    run = tmp_path / "run"
    ended = fedscal("run", *TINY, "--quiet", "--no-report", "--out", run, cache=cache)
    assert ended.code == 0, ended.err
    assert contents(folder) == whole
    assert same_result(run, tiny_runs["fedscal"])
    assert not (tmp_path / "canary").exists()


def test_data_get_mends_what_data_check_found(fedscal, tmp_path, tiny_runs):
    """That is what the message of ``data check`` promises."""
    folder = Path(shutil.copytree(fedscal.cache / "data" / "tiny-v1", tmp_path / "data" / "tiny-v1"))
    _flip(folder / "b.images.safetensors", tmp_path)
    refused = fedscal("data", "check", "tiny", cache=tmp_path)
    assert refused.code == 3
    assert "data get" in refused.error
    assert fedscal("data", "get", "tiny", cache=tmp_path).code == 0
    assert fedscal("data", "check", "tiny", cache=tmp_path).code == 0
