"""Files that are whole or not there, hashes, locks, and models on disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedscal.core import files, weights
from fedscal.core.errors import DirectoryBusy, ModelRefused, OutOfSpace, UsageError
from fedscal.models.store import ModelCard, load_model, model_files, read_card, read_json
from toys import model


def fail_with(code: int) -> Any:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    return broken


def test_a_file_is_replaced_as_a_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    files.write_bytes(path, b"old")
    files.write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_without_space_the_old_file_stays_and_the_path_is_named(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    files.write_bytes(path, b"old")
    monkeypatch.setattr(os, "fsync", fail_with(code))
    with pytest.raises(OutOfSpace, match=r"cannot write .*/file \(3 bytes needed\)"):
        files.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_fault_that_is_not_about_space_is_not_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", fail_with(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        files.write_bytes(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_appears_whole_in_place_of_the_older_one(tmp_path: Path) -> None:
    path = tmp_path / "dir"
    files.write_dir(path, {"a": b"1", "b": b"2"})
    files.write_dir(path, {"c": b"3"})
    assert {entry.name: entry.read_bytes() for entry in path.iterdir()} == {"c": b"3"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["dir"]


def test_a_directory_that_cannot_be_written_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dir"
    files.write_dir(path, {"a": b"1"})
    monkeypatch.setattr(os, "fsync", fail_with(errno.ENOSPC))
    with pytest.raises(OutOfSpace):
        files.write_dir(path, {"a": b"2"})
    assert (path / "a").read_bytes() == b"1"
    assert [entry.name for entry in tmp_path.iterdir()] == ["dir"]


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the writer runs after it."""


@pytest.fixture
def killed_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Leave behind what a kill in the middle of a file and of a directory leaves; return the two."""

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", die)
        patch.setattr(os, "unlink", die)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        writes: list[Callable[[], object]] = [
            lambda: files.write_bytes(tmp_path / "file", b"1"),
            lambda: files.write_dir(tmp_path / "dir", {"a": b"1"}),
        ]
        for write in writes:
            with pytest.raises(Killed):
                write()
    return sorted(tmp_path.iterdir())


def test_what_killed_writers_left_is_removed_and_nothing_else(
    tmp_path: Path, killed_writers: list[Path]
) -> None:
    assert [path.is_dir() for path in killed_writers] == [True, False]
    mine = [tmp_path / name for name in (".env", ".cache.tmp", "notes.fedscal-tmp")]
    for path in mine:
        path.write_text("mine")
    files.remove_unfinished(tmp_path, tmp_path / "not there")
    assert sorted(tmp_path.iterdir()) == sorted(mine)


def test_who_builds_in_a_cache_removes_what_killed_builders_left(
    tmp_path: Path, killed_writers: list[Path]
) -> None:
    with files.one_builder(tmp_path):
        assert not any(path.exists() for path in killed_writers)


def test_a_file_in_the_way_of_a_directory_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "way").write_text("")
    with pytest.raises(OutOfSpace, match="cannot write"):
        files.make_dir(tmp_path / "way" / "below")


def test_json_is_readable_text(tmp_path: Path) -> None:
    files.write_json(tmp_path / "x.json", {"name": "Zürich"})
    text = (tmp_path / "x.json").read_text()
    assert "Zürich" in text
    assert json.loads(text) == {"name": "Zürich"}


def test_the_hash_is_sha256() -> None:
    assert files.sha256(b"abc") == hashlib.sha256(b"abc").hexdigest()


def test_a_directory_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with files.only_process(tmp_path / "run"):  # noqa: SIM117
        with (
            pytest.raises(DirectoryBusy, match="in use by another run"),
            files.only_process(tmp_path / "run"),
        ):
            pytest.fail("two hold the same directory")
    with files.only_process(tmp_path / "run"):
        pass


def test_whether_a_directory_is_held_is_found_out_without_a_trace(tmp_path: Path) -> None:
    assert not files.held(tmp_path / "nothing")
    assert not files.held(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with files.only_process(tmp_path):
        assert files.held(tmp_path)
    assert not files.held(tmp_path)


def test_who_asks_all_the_time_turns_nobody_away(tmp_path: Path) -> None:
    asked, ended = 0, threading.Event()

    def ask() -> None:
        nonlocal asked
        while not ended.is_set():
            asked += files.held(tmp_path)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(50):
            with files.only_process(tmp_path):
                time.sleep(0.001)
    finally:
        ended.set()
        asking.join()
    assert asked


def test_what_need_not_last_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fail_with(errno.EIO))
    files.write_bytes(tmp_path / "file", b"new", lasting=False)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"FEDSCAL_CACHE": "/a"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/fedscal"),
        ({"FEDSCAL_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"HOME": "/home/me"}, "/home/me/.cache/fedscal"),
    ],
)
def test_where_the_cache_is(given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEDSCAL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert files.cache_dir() == Path(expected)


def test_a_link_of_the_user_to_another_disk_of_his_own_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "data").symlink_to(tmp_path / "not there yet")
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    assert files.cache_dir("data", "x") == tmp_path / "cache" / "data" / "x"


@pytest.mark.parametrize("link", [(), ("data",), ("data", "digits-v1")], ids=["cache", "data", "digits"])
@pytest.mark.parametrize("strange", ["another user's", "anybody's"])
def test_a_link_to_a_place_of_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: tuple[str, ...], strange: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    path = tmp_path.joinpath("cache", *link)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(place)
    if strange == "anybody's":
        place.chmod(0o777)
    else:
        monkeypatch.setattr(files, "_trusted", lambda: {os.geteuid() + 1})
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UsageError, match="is a link to a place of other users"):
        files.cache_dir("data", "digits-v1")
    place.chmod(0o1777)  # with the sticky bit others can add files, but not replace ours
    if strange == "anybody's":
        files.cache_dir("data", "digits-v1")


def test_a_shared_cache_by_its_own_name_is_the_user_s_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_trusted", lambda: {os.geteuid() + 1})
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path))
    assert files.cache_dir() == tmp_path


def save(folder: Path) -> None:
    card = ModelCard(
        model="convnet", shape=(1, 32, 32), classes=("b", "a"), benchmark="digits", source="mnist"
    )
    for name, data in model_files("model", model(1.0), card).items():
        files.write_bytes(folder / name, data)


def test_a_model_keeps_its_card_and_its_bits(tmp_path: Path) -> None:
    save(tmp_path)
    found, card = load_model(tmp_path, "model")
    assert weights.digest(found) == weights.digest(model(1.0)) == card.weights_sha256
    assert card.classes == ("b", "a"), "the order of the classes is the model's"


def test_a_model_that_is_not_what_its_card_says_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(weights.to_bytes(model(2.0)))
    with pytest.raises(ModelRefused, match=r"model\.safetensors is damaged"):
        load_model(tmp_path, "model")


def test_a_card_without_a_hash_vouches_for_nothing(tmp_path: Path) -> None:
    save(tmp_path)
    card = json.loads((tmp_path / "model.json").read_text())
    del card["file_sha256"]
    (tmp_path / "model.json").write_text(json.dumps(card))
    with pytest.raises(ModelRefused, match="it has no file_sha256"):
        load_model(tmp_path, "model")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("classes", value)
            for value in ("ba", [1, 2], [], ["a", "a"], ["\ud800", "a"], None, [["a"], "b"])
        ),
        *(
            ("shape", value)
            for value in ("1", [1, 32], [1, 32, 32.0], [0, 32, 32], [1, 32, 10**9], [True, 32, 32])
        ),
        *(("model", value) for value in (None, 3, ["convnet"])),
        *(("source_accuracy", value) for value in ("high", [1])),
        *(("site_share", value) for value in ("most", -0.1, 1.5)),
    ],
)
def test_a_card_of_wrong_kinds_is_refused_with_the_key_named(tmp_path: Path, key: str, value: object) -> None:
    save(tmp_path)
    card = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**card, key: value}))
    for read in (lambda: load_model(tmp_path, "model"), lambda: read_card(str(tmp_path))):
        with pytest.raises(ModelRefused, match=f"{key}|no text"):
            read()


@pytest.mark.parametrize("content", [None, "[1]", "{"], ids=["missing", "a list", "cut"])
def test_json_that_is_no_object_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "x.json").write_text(content)
    with pytest.raises(ModelRefused, match=r"x\.json"):
        read_json(tmp_path / "x.json")
