"""Files that are either whole or not there: atomic writes, hashes, locks, and the cache's place."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedscal.core.errors import DirectoryBusy, OutOfSpace, UsageError

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
_NO_ROOM |= {errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP}
_IN_THE_WAY = (NotADirectoryError, IsADirectoryError, FileExistsError)
# A run may be told to write to a directory that holds other things: no other program uses this ending.
_UNFINISHED = ".fedscal-tmp"
_LOCK = ".lock"
_PATIENCE = 0.2
"""Seconds for which a lock is tried: whoever asks whether it is held holds it for an instant."""


def cache_dir(*parts: str) -> Path:
    """Return where data sets and source models are kept: ``$FEDSCAL_CACHE``, or the user's cache.

    The cache and the named folders in it may be links, to a larger disk say, but not to another user's place:
    whoever can write there decides what images and models are.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = Path(os.environ.get("FEDSCAL_CACHE") or Path(base) / "fedscal")
    _refuse_strange_link(place)
    for part in parts:
        place /= part
        _refuse_strange_link(place)
    return place


def _refuse_strange_link(place: Path) -> None:
    """Refuse a link that another user made, or that leads to where another user may replace files."""
    if not place.is_symlink() or not hasattr(os, "geteuid"):
        return
    link, target = place.lstat(), place.stat() if place.exists() else None
    owners = {link.st_uid} if target is None else {link.st_uid, target.st_uid}
    open_to_all = target and target.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
    if open_to_all or owners - _trusted():
        raise UsageError(
            f"the cache {place} is a link to a place of other users, {os.path.realpath(place)}. "
            "Remove the link, or set FEDSCAL_CACHE to a directory by its own name."
        )


def _trusted() -> set[int]:
    """Return who may decide what the cache holds: this user, and root, who may do anything."""
    return {os.geteuid(), 0}


def fault(path: Path, what: str, otherwise: str) -> str:
    """Say what is wrong with a path that a user gave: there is nothing, or not what was expected."""
    return f"{path} {otherwise}" if os.path.exists(path) else f"there is no {what} {path}."


@contextmanager
def writing(path: Path, size: int = 0) -> Iterator[None]:
    """Turn "no space", "read-only" and their like into one sentence that names the path."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM and not isinstance(error, _IN_THE_WAY):
            raise
        need = f" ({size:,} bytes needed)" if size else ""
        taken = isinstance(error, _IN_THE_WAY)
        mend = "Choose another name" if taken else "Free space or choose another directory"
        raise OutOfSpace(
            f"cannot write {path}{need}: {error.strerror}. {mend}; what was there before is intact."
        ) from error


def check_room(folder: Path, size: int, what: str) -> None:
    """Refuse to begin what would fill the disk after long work; name the bytes."""
    free = shutil.disk_usage(make_dir(folder)).free
    if size > free:
        raise OutOfSpace(
            f"{what} take {size:,} bytes, and {folder} has {free:,}. Free space, or set FEDSCAL_CACHE to a "
            "directory on a larger disk."
        )


def make_dir(path: Path) -> Path:
    """Create a directory and its parents, or say in one sentence why that is impossible."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_bytes(path: Path, data: bytes, *, lasting: bool = True) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part.

    What need not last beyond a power cut is not waited for until the disk has it.
    """
    make_dir(path.parent)
    with writing(path, len(data)):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                if lasting:
                    os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        if lasting:
            sync_dir(path.parent)


def write_all(folder: Path, contents: Iterable[tuple[str, bytes]]) -> None:
    """Write files, each whole or not there, and wait for the disk once for all, not once for each.

    A disk that has taken the first of many files has taken most of the others with it.
    """
    make_dir(folder)
    written: dict[str, str] = {}
    with writing(folder):
        try:
            for name, data in contents:
                with writing(folder / name, len(data)):
                    handle, written[name] = tempfile.mkstemp(
                        dir=folder, prefix=f".{name}.", suffix=_UNFINISHED
                    )
                    with os.fdopen(handle, "wb") as file:
                        file.write(data)
            for temporary in written.values():
                _sync(temporary)
            for name, temporary in written.items():
                os.replace(temporary, folder / name)
        except BaseException:
            for temporary in written.values():
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            raise
        sync_dir(folder)


@contextmanager
def reading(path: Path, most: int) -> Iterator[BufferedReader]:
    """Open a regular file of at most so many bytes; a device, a pipe or a larger file is an OSError."""
    with open(path, "rb", opener=_at_once) as file:
        entry = os.fstat(file.fileno())
        if not stat.S_ISREG(entry.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if entry.st_size > most:
            raise OSError(errno.EINVAL, f"it is too large, more than {most:,} bytes", str(path))
        yield file


def _at_once(path: str, flags: int) -> int:
    """Open without waiting: a pipe that nobody writes to would hold up a plain open for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most so many bytes."""
    with reading(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_verified(path: Path, sha256: str | None, most: int = 16_000_000_000) -> bytes | None:
    """Return the content of a file of this sha256, None if it has another, which never fills the memory."""
    with reading(path, most) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            return None
        file.seek(0)
        return file.read()


def as_json(value: Any) -> bytes:
    """Return JSON as it is written: for people too."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_bytes(path, as_json(value))


def write_dir(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a directory of files so that it appears at once and whole, in place of an older one."""
    make_dir(path.parent)
    staging = path.parent / f".{path.name}{_UNFINISHED}"
    with writing(path, sum(len(data) for data in files.values())):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            for name, data in files.items():
                write_bytes(staging / name, data)
            shutil.rmtree(path, ignore_errors=True)
            os.rename(staging, path)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        sync_dir(path.parent)


def remove_dir(path: Path) -> None:
    """Remove a directory so that it is gone at once, if it is there."""
    going = path.with_name(f".{path.name}{_UNFINISHED}")
    with writing(path), contextlib.suppress(FileNotFoundError):
        os.rename(path, going)
    shutil.rmtree(going, ignore_errors=True)


def size_of(path: Path) -> int:
    """Return the bytes of all files in a directory."""
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())


def mark_used(path: Path) -> None:
    """Note by its time that something of the cache was used; a cache that may only be read has no notes."""
    if cache_dir() in path.parents:
        with contextlib.suppress(OSError):
            os.utime(path)


def remove_unfinished(*folders: Path) -> None:
    """Remove what writers that were killed left in these folders; nobody else may be writing there."""
    for path in [path for folder in folders for path in folder.glob(f".*{_UNFINISHED}")]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def keep_only(folder: Path, names: set[str]) -> None:
    """Delete the tensors of a folder that are not named."""
    for path in folder.glob("*.safetensors"):
        if path.name not in names:
            path.unlink()


def sync_dir(path: Path) -> None:
    """Make a rename in this directory survive a power cut."""
    _sync(path)


def _sync(path: Path | str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(data: bytes) -> str:
    """Return the hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the hexadecimal sha256 of a file, however large."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def only_process(directory: Path) -> Iterator[None]:
    """Hold a directory against other processes; the lock of a process that died is free again."""
    path = make_dir(directory) / _LOCK
    lock = FileLock(path, timeout=_PATIENCE)
    with writing(path):
        try:
            lock.acquire()
        except Timeout as error:
            raise DirectoryBusy(
                f"{directory} is in use by another run. Wait for it, or give another --out."
            ) from error
    try:
        yield
    finally:
        lock.release()


def held(directory: Path) -> bool:
    """Whether a process works in a directory, see ``only_process``; nothing is made to find out."""
    import fcntl  # not on every system, and nobody else needs it

    try:
        handle = os.open(directory / _LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def one_builder(directory: Path) -> Iterator[None]:
    """Let one process at a time build something in a cache directory; the others wait for it."""
    path = make_dir(directory) / _LOCK
    lock = FileLock(path)
    with writing(path):
        lock.acquire()
    try:
        remove_unfinished(directory)
        yield
    finally:
        lock.release()
