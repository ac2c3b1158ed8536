"""No room, or no right to write: exit 7 with the path, the old state whole, and a run that can go on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import TINY, Words, Zygote, contents, same_result

MODEL_BYTES = 540_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of ten megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=10m", "none", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_file_limit_while_saving_is_exit_7_and_the_run_goes_on_afterwards(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path]
) -> None:
    run = tmp_path / "run"
    words = ["--quiet", "--no-report"]
    ended = fedscal("run", *TINY, "method=fedmoon", *words, "--out", run, file_limit=MODEL_BYTES // 2)
    assert ended.code == 7
    assert str(run) in ended.error
    assert "bytes needed" in ended.error
    assert not list(run.rglob(".*.safetensors.*"))
    assert fedscal("run", "--resume", run, *words).code == 0
    assert same_result(run, tiny_runs["fedmoon"])


@pytest.mark.parametrize("room", [100_000, 700_000, 1_300_000, 2_000_000])
def test_a_full_disk_spares_the_old_checkpoint_and_the_run_goes_on_when_there_is_room(
    fedscal: Zygote, small_disk: Path, tiny_runs: dict[str, Path], room: int
) -> None:
    """The disk is filled up after some rounds, so that another write fails in each case."""
    run = Path(shutil.copytree(tiny_runs["fedmoon"], small_disk / "run"))
    (run / "summary.json").unlink()
    shutil.rmtree(run / "checkpoints" / "round-0003")
    for path in (run / "checkpoints" / "memory").glob("*-0003.safetensors"):
        path.unlink()
    kept = contents(run / "checkpoints")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - room))
    ended = fedscal("run", "--resume", run, "--quiet", "--no-report")
    if ended.code:  # the most generous may suffice
        assert ended.code == 7, ended.err
        assert str(small_disk) in ended.error
        assert contents(run / "checkpoints").items() >= kept.items()
    assert ended.code or room > 1_000_000
    ballast.unlink()
    assert fedscal("run", "--resume", run, "--quiet", "--no-report").code == 0
    assert same_result(run, tiny_runs["fedmoon"])


def test_a_full_cache_is_exit_7_with_its_path(fedscal: Zygote, small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free - 100_000))
    ended = fedscal("run", *TINY, "--quiet", "--out", tmp_path / "run", cache=small_disk / "cache")
    assert ended.code == 7
    assert str(small_disk / "cache") in ended.error
    (small_disk / "ballast").unlink()
    again = fedscal(
        "run", *TINY, "--quiet", "--no-report", "--out", tmp_path / "run", cache=small_disk / "cache"
    )
    assert again.code == 0, again.err


def test_a_client_that_fails_on_a_full_disk_prints_no_traceback(fedscal: Zygote, small_disk: Path) -> None:
    """The log of failures is a file on the same disk."""
    spoil = (
        "import fedscal.runtime.service as s\n"
        "def broken(*a, **k): raise RuntimeError('rigged')\n"
        "s.local_update = broken"
    )
    run = small_disk / "run"
    first = fedscal("run", *TINY, "rounds=1", "--quiet", "--no-report", "--out", run)
    assert first.code == 0, first.err
    shutil.rmtree(run / "checkpoints" / "round-0001")
    ballast = shutil.disk_usage(small_disk).free
    fill = f"open({str(small_disk / 'ballast')!r}, 'wb').write(bytes({ballast}))"
    ended = fedscal("run", "--resume", run, "--quiet", "--no-report", before=f"{spoil}\n{fill}")
    assert ended.code == 7, ended.err
    assert ended.error


@pytest.mark.parametrize("what", ["new", "resumed", "report"])
def test_a_read_only_disk_is_exit_7_with_the_path(
    fedscal: Zygote, small_disk: Path, tiny_runs: dict[str, Path], what: str
) -> None:
    run = Path(shutil.copytree(tiny_runs["fedscal"], small_disk / "run"))
    (run / "summary.json").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    before = contents(run)
    words: dict[str, Words] = {
        "new": ["run", *TINY, "--quiet", "--out", small_disk / "other"],
        "resumed": ["run", "--resume", run, "--quiet"],
        "report": ["report", run],
    }
    ended = fedscal(*words[what])
    assert ended.code == 7
    assert str(small_disk) in ended.error
    assert contents(run) == before


@pytest.mark.parametrize("place", ["below a file", "a file", "/proc/fedscal", "/dev/null/run"])
def test_a_place_where_nothing_can_be_made_is_refused_with_the_path(
    fedscal: Zygote, tmp_path: Path, place: str
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    out = {"below a file": file / "run", "a file": file}.get(place, Path(place))
    ended = fedscal("run", *TINY, "--quiet", "--out", out)
    assert ended.code in (2, 7), ended.err
    assert str(out) in ended.error
    assert file.read_text() == "mine"
