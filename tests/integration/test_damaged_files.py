"""Files that are not what was written: a run falls back, builds again or refuses, and believes none."""

from __future__ import annotations

import json
import pickle
import shlex
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from harness import TINY, Copy, Zygote, contents, more, rows, same_result, summary


class Canary:
    """Whoever unpickles this leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
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
both_methods = pytest.mark.parametrize("method", ["fedmoon", more("fedscal")])


def test_the_canary_sings(tmp_path: Path) -> None:
    """Else its silence would prove nothing."""
    pickle.loads(pickle.dumps(Canary(tmp_path / "canary")))  # noqa: S301
    assert (tmp_path / "canary").exists()


def _unfinished(run: Path) -> Path:
    (run / "summary.json").unlink()
    return run


def _without_log(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in found.items() if name != "events.log"}


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        # Every damage and every kind; all pairs are in test-long.
        (pytest.param if (row + column) % 2 == 0 else more)(
            kind, damage, id=f"{kind}-{damage.__name__.strip('_')}"
        )
        for row, kind in enumerate(("state.safetensors", "manifest.json", "memory"))
        for column, damage in enumerate(DAMAGES)
    ],
)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_used(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path], copy_of: Copy, kind: str, damage: Damage
) -> None:
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
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path], copy_of: Copy, damage: Damage
) -> None:
    run = _unfinished(copy_of(tiny_runs["fedscal"]))
    for folder in (run / "checkpoints").glob("round-*"):
        damage(folder / "state.safetensors", tmp_path / "canary")
    before = contents(run)
    ended = fedscal("run", "--resume", run, "--quiet")
    assert ended.code == 4
    assert str(run / "checkpoints") in ended.error
    assert "state.safetensors" in ended.error
    assert not (tmp_path / "canary").exists()
    assert _without_log(contents(run)) == _without_log(before)
    assert _way_out(ended.err)[:2] == ["run", str(run / "spec.toml")]


def test_a_manifest_cannot_point_out_of_its_directory(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path], copy_of: Copy
) -> None:
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


# -- the record -------------------------------------------------------------------------------------------

# What is done to the four lines of metrics.jsonl, and how many are whole afterwards. The checkpoints are of
# rounds 2 and 3 and need the lines before their own, which is made anew: two lines are needed to go on.
Lines = list[bytes]


def _flipped(lines: Lines, line: int, place: int) -> bytes:
    changed = bytearray(lines[line])
    changed[place] ^= 1
    return b"".join([*lines[:line], changed, *lines[line + 1 :]])


def _cut(lines: Lines, line: int, rest: int = 0) -> bytes:
    return b"".join(lines[:line]) + lines[line][:rest]


RECORDS: dict[str, tuple[Callable[[Lines], bytes], int]] = {
    **{f"cut to {n} lines": (partial(_cut, line=n), n) for n in range(4)},
    **{f"cut in line {n + 1}": (partial(_cut, line=n, rest=99), n) for n in range(4)},
    "cut before its last newline": (lambda lines: b"".join(lines)[:-1], 3),
    **{f"a bit of line {n + 1}": (partial(_flipped, line=n, place=200), n) for n in range(4)},
    "a bit of a checksum": (lambda lines: _flipped(lines, 3, 14), 3),
    "a bit of a checksum's name": (lambda lines: _flipped(lines, 1, 3), 1),
    "a newline": (lambda lines: _flipped(lines, 0, -1), 0),
    "lines in another order": (lambda lines: b"".join([lines[0], lines[2], lines[1], lines[3]]), 1),
    "a line twice": (lambda lines: b"".join([*lines, lines[3]]), 4),
    "rubbish at the end": (lambda lines: b"".join([*lines, bytes(1000)]), 4),
    "a line that is none": (lambda lines: b"".join([lines[0], b"{]\n", *lines[2:]]), 1),
}


def _way_out(error: str) -> list[str]:
    """Return the words of the command that an error offers."""
    return shlex.split(error.partition("start anew: fedscal ")[2].partition(",")[0])


@both_methods
@pytest.mark.parametrize("damage", RECORDS)
def test_a_damaged_record_is_mended_from_the_last_whole_state_or_nothing_is_touched(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy, method: str, damage: str
) -> None:
    run, (change, whole) = _unfinished(copy_of(tiny_runs[method])), RECORDS[damage]
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(change(metrics.read_bytes().splitlines(keepends=True)))
    before = contents(run)
    ended = fedscal("run", "--resume", run, "--no-report")
    if whole >= 2:
        assert ended.code == 0, ended.err
        assert ("line 3 is" in ended.out) == (whole == 2), "what comes after the state is not needed"
        assert same_result(run, tiny_runs[method])
        return
    assert ended.code == 4
    assert f"metrics.jsonl: line {whole + 1} is" in ended.error
    assert _without_log(contents(run)) == _without_log(before), "it may still be mended by hand"


@both_methods
def test_the_way_out_that_a_refused_run_names_works(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path], copy_of: Copy, method: str
) -> None:
    run = _unfinished(copy_of(tiny_runs[method]))
    (run / "metrics.jsonl").unlink()
    for _ in range(2):
        ended = fedscal("run", "--resume", run, "--quiet")
        assert ended.code == 4
        assert "metrics.jsonl: it is gone" in ended.error
    assert fedscal(*_way_out(ended.err), "--quiet", "--no-report", cwd=tmp_path).code == 0
    assert same_result(tmp_path / "OTHER", tiny_runs[method])


def test_the_record_of_another_run_is_not_taken_for_the_run_s_own(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy
) -> None:
    run = _unfinished(copy_of(tiny_runs["fedmoon"]))
    shutil.copy(tiny_runs["fedscal"] / "metrics.jsonl", run / "metrics.jsonl")
    ended = fedscal("run", "--resume", run, "--quiet")
    assert ended.code == 4
    assert "is not what it was when a round was saved after line 3" in ended.error


def test_a_damaged_checkpoint_and_a_cut_record_meet_in_the_round_that_both_have(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy
) -> None:
    run = _unfinished(copy_of(tiny_runs["fedmoon"]))
    _flip(run / "checkpoints" / "round-0003" / "state.safetensors", run)
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:3]))
    assert fedscal("run", "--resume", run, "--quiet", "--no-report").code == 0
    assert same_result(run, tiny_runs["fedmoon"])


def test_without_checkpoints_finished_rounds_are_not_done_again_unasked(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy
) -> None:
    run = _unfinished(copy_of(tiny_runs["fedmoon"]))
    shutil.rmtree(run / "checkpoints")
    ended = fedscal("run", "--resume", run, "--quiet")
    assert ended.code == 4
    assert "holds no checkpoint" in ended.error
    assert len(rows(run)) == 4


@both_methods
def test_a_run_of_the_version_before_checksums_opens_resumes_and_reports(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy, method: str
) -> None:
    run = _unfinished(copy_of(tiny_runs[method]))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    old = [json.dumps({key: line[key] for key in line if key != "check"}) + "\n" for line in lines]
    (run / "metrics.jsonl").write_text("".join(old))
    for manifest in (run / "checkpoints").glob("*/manifest.json"):
        known = json.loads(manifest.read_text())
        kept = {key: known[key] for key in ("round", "files", "memories")}
        manifest.write_text(json.dumps(kept, indent=1))
    shutil.rmtree(run / "checkpoints" / "round-0003")
    assert fedscal("report", run).code == 0
    assert fedscal("run", "--resume", run, "--quiet", "--no-report").code == 0
    assert same_result(run, tiny_runs[method])
    assert (run / "metrics.jsonl").read_text().count('{"check": ') == 4


@pytest.mark.parametrize("text", ["", "rounds = [", "\x00\xff", 'rounds = "many"'])
def test_a_damaged_spec_is_refused(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy, text: str
) -> None:
    run = _unfinished(copy_of(tiny_runs["fedscal"]))
    (run / "spec.toml").write_bytes(text.encode("latin-1"))
    before = rows(run)
    ended = fedscal("run", "--resume", run, "--quiet")
    assert ended.code in (2, 3, 4), ended.out
    assert ended.error
    assert rows(run) == before


def copied_data(fedscal: Zygote, cache: Path) -> Path:
    """Copy the built images into a cache of one's own; the folder's name ends with their content's hash."""
    (built,) = (fedscal.cache / "data").glob("tiny-v1-*")
    return Path(shutil.copytree(built, cache / "data" / built.name))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", _flip),
        ("model.safetensors", _pickle),
        *(more("model.safetensors", damage) for damage in (_truncate, _empty, _delete)),
        ("model.json", _truncate),
        more("model.json", _delete),
    ],
)
def test_a_damaged_source_model_is_trained_again_and_never_used(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path], name: str, damage: Damage
) -> None:
    cache = tmp_path / "cache"
    copied_data(fedscal, cache)
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
        more("b.images.safetensors", _delete),
        ("b.images.safetensors", _pickle),
        more("c.labels.safetensors", _flip),
        ("manifest.json", _truncate),
    ],
)
def test_damaged_data_are_found_and_built_again(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path], name: str, damage: Damage
) -> None:
    cache = tmp_path / "cache"
    folder = copied_data(fedscal, cache)
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


def test_data_get_mends_what_data_check_found(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path]
) -> None:
    """That is what the message of ``data check`` promises."""
    folder = copied_data(fedscal, tmp_path)
    _flip(folder / "b.images.safetensors", tmp_path)
    refused = fedscal("data", "check", "tiny", cache=tmp_path)
    assert refused.code == 3
    assert "data get" in refused.error
    assert fedscal("data", "get", "tiny", cache=tmp_path).code == 0
    assert fedscal("data", "check", "tiny", cache=tmp_path).code == 0
