"""Fetching packages from a registry on the loopback: patience, hashes, plain words, and going on."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedscal.cli import app
from fedscal.core.errors import DataRefused, UsageError
from fedscal.data.icons import archive, benchmark, npm
from fedscal.data.icons.benchmark import FIRST, SECOND
from fedscal.data.icons.npm import Registry, fetch, fetch_all, missing
from icon_packages import Served, icon_set, registry, whole_lock
from toys import Steps

PACKAGE, DATA = icon_set("@toys/mono", {"key": "<path d='M0 0h9v9z'/>"}, {"": "outline"})


def patient(address: str) -> tuple[Registry, list[float]]:
    """Return a registry that notes its waits instead of waiting."""
    waits: list[float] = []
    return Registry(address, waits.append), waits


def test_a_busy_registry_is_asked_again_after_growing_waits(tmp_path: Path) -> None:
    with registry() as served:
        served.add(PACKAGE, DATA, (429, b""), (503, b""), (206, DATA[:9]))
        asked, waits = patient(served.address)
        fetch(PACKAGE, tmp_path, asked)
    assert waits == [1, 2, 4]
    assert (tmp_path / "mono-1.0.0.tgz").read_bytes() == DATA


def test_patience_ends_with_one_sentence_that_names_the_package(tmp_path: Path) -> None:
    with registry() as served:
        served.add(PACKAGE, DATA)
        served.answers[f"/@toys/mono/-/{PACKAGE.tarball}"] = [(429, b"")]
        asked, waits = patient(served.address)
        with pytest.raises(DataRefused, match=r"cannot fetch @toys/mono 1\.0\.0 .*HTTP 429.*is kept"):
            fetch(PACKAGE, tmp_path, asked)
    assert len(waits) == 5
    assert list(tmp_path.iterdir()) == []


def test_no_network_is_said(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        asked, waits = patient(f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(DataRefused, match=r"cannot fetch @toys/mono .*refused.*Check the network"):
            fetch(PACKAGE, tmp_path, asked)
    assert len(waits) == 5


def test_another_tarball_is_refused_and_not_kept(tmp_path: Path) -> None:
    with registry() as served:
        served.add(PACKAGE, DATA + b"!")
        with pytest.raises(DataRefused, match=r"@toys/mono 1\.0\.0 .*is not the package of the lock"):
            fetch(PACKAGE, tmp_path, patient(served.address)[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("status", "words"),
    [(404, r"has no @toys/mono 1\.0\.0"), (403, r"refuses @toys/mono 1\.0\.0 \(HTTP 403\)")],
)
def test_a_missing_or_forbidden_package_is_said_at_once(tmp_path: Path, status: int, words: str) -> None:
    with registry() as served:
        served.answers["/@toys/mono/1.0.0"] = [(status, b"")]
        asked, waits = patient(served.address)
        with pytest.raises(DataRefused, match=words):
            fetch(PACKAGE, tmp_path, asked)
    assert waits == []


@pytest.mark.parametrize("answer", [b"<html>", b"[]"])
def test_a_page_that_is_no_registry_is_said(tmp_path: Path, answer: bytes) -> None:
    with registry() as served:
        served.answers["/@toys/mono/1.0.0"] = [(200, answer)]
        with pytest.raises(DataRefused, match="does not answer like an npm registry"):
            fetch(PACKAGE, tmp_path, patient(served.address)[0])


def test_another_hosts_tarball_is_asked_from_the_given_registry(tmp_path: Path) -> None:
    with registry() as served:
        served.add(PACKAGE, DATA, host="http://elsewhere.invalid")
        fetch(PACKAGE, tmp_path, patient(served.address)[0])
        assert served.tarballs_asked() == [PACKAGE.tarball]


def test_a_body_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npm, "_LARGEST", 300)
    with registry() as served:
        served.add(PACKAGE, bytes(301))
        with pytest.raises(DataRefused, match=r"@toys/mono 1\.0\.0 is larger than 300 bytes"):
            fetch(PACKAGE, tmp_path, patient(served.address)[0])


def test_only_what_is_missing_or_damaged_is_fetched(tmp_path: Path) -> None:
    other, other_data = icon_set("@toys/other", {"car": "<path d='M0 0h9v9z'/>"}, {"": "solid"})
    both = [PACKAGE, other]
    done: list[None] = []
    assert missing(both, tmp_path) == both
    with registry() as served:
        served.add(PACKAGE, DATA)
        served.add(other, other_data)
        fetch_all(both, tmp_path, patient(served.address)[0], lambda: done.append(None))
    assert len(done) == 2
    assert missing(both, tmp_path) == []
    (tmp_path / other.tarball).write_bytes(b"half")
    assert missing(both, tmp_path) == [other]


@pytest.fixture
def toy_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Serve the toy packages as if they were the lock, into a cache of their own."""
    lock = whole_lock()
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path))
    monkeypatch.setattr(archive, "packages", lambda: tuple(entry for entry, _ in lock))
    with registry() as served:
        for entry, data in lock:
            served.add(entry, data)
        yield served


def test_the_command_fetches_draws_and_goes_on_after_an_interruption(toy_registry: Served) -> None:
    path = next(path for path in toy_registry.answers if path.endswith("paint-2-1.0.0.tgz"))
    whole = toy_registry.answers[path]
    toy_registry.answers[path] = [(404, b"")]
    command = ["data", "get", "icons", "--registry", toy_registry.address]
    failed = CliRunner().invoke(app, command)
    assert isinstance(failed.exception, DataRefused)
    assert not FIRST.is_whole()
    kept = {path.name for path in (benchmark.folder() / "tarballs").iterdir()}
    toy_registry.answers[path] = whole
    toy_registry.asked.clear()
    assert CliRunner().invoke(app, command).exit_code == 0
    assert kept.isdisjoint(toy_registry.tarballs_asked())
    toy_registry.asked.clear()
    assert CliRunner().invoke(app, ["data", "get", "icons-64"]).exit_code == 0
    assert toy_registry.asked == []


def test_a_damaged_archive_is_drawn_again_from_the_kept_tarballs(toy_registry: Served) -> None:
    told = Steps()
    FIRST.fetch(toy_registry.address, told)
    assert told.stages == [("fetching icon sets", 5), ("drawing icons", 5)]
    assert told.steps == 10
    path = FIRST.directory / "solid.safetensors"
    sound = path.read_bytes()
    path.write_bytes(sound[:-1])
    with pytest.raises(DataRefused, match="damaged: fedscal data get icons"):
        FIRST.tensors("solid")
    toy_registry.asked.clear()
    FIRST.fetch("http://unused.invalid", told)
    assert path.read_bytes() == sound
    assert told.stages[2:] == [("drawing icons", 5)]


def test_the_second_archive_is_drawn_from_the_tarballs_of_the_first(toy_registry: Served) -> None:
    FIRST.fetch(toy_registry.address, Steps())
    sound = {path.name: path.read_bytes() for path in FIRST.directory.iterdir()}
    toy_registry.asked.clear()
    found = CliRunner().invoke(app, ["data", "get", "icons-b", "--quiet"])
    assert found.exit_code == 0, found.output
    assert toy_registry.asked == []
    assert SECOND.is_whole()
    assert {entry["class"] for entry in SECOND.index("color")} == set(SECOND.rules.classes)
    assert {path.name: path.read_bytes() for path in FIRST.directory.iterdir()} == sound


def test_missing_tools_are_said_before_anything_is_fetched(
    toy_registry: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(UsageError, match=r"pip install 'fedscal\[icons\]'"):
        FIRST.fetch(toy_registry.address, Steps())
    assert toy_registry.asked == []
