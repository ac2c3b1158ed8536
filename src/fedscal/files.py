"""Files that are either whole or not there: atomic writes, hashes, locks, and the cache's place."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedscal.errors import DirectoryBusy, OutOfSpace

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
_NO_ROOM |= {errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP}
# A run may be told to write to a directory that holds other things: no other program uses this ending.
_UNFINISHED = ".fedscal-tmp"


def cache_dir() -> Path:
    """Return where data sets and source models are kept: ``$FEDSCAL_CACHE``, or the user's cache."""
    given = os.environ.get("FEDSCAL_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(os.path.expanduser("~/.cache"))) / "fedscal"


@contextmanager
def writing(path: Path, size: int = 0) -> Iterator[None]:
    """Turn "no space", "read-only" and their like into one sentence that names the path."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM and not isinstance(error, NotADirectoryError | FileExistsError):
            raise
        need = f" ({size:,} bytes needed)" if size else ""
        raise OutOfSpace(
            f"cannot write {path}{need}: {error.strerror}. Free space or choose another directory; "
            "what was there before is intact."
        ) from error


def make_dir(path: Path) -> Path:
    """Create a directory and its parents, or say in one sentence why that is impossible."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    make_dir(path.parent)
    with writing(path, len(data)):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        sync_dir(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


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


def remove_unfinished(*folders: Path) -> None:
    """Remove what writers that were killed left in these folders; nobody else may be writing there."""
    for path in [path for folder in folders for path in folder.glob(f".*{_UNFINISHED}")]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def sync_dir(path: Path) -> None:
    """Make a rename in this directory survive a power cut."""
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
    path = make_dir(directory) / ".lock"
    lock = FileLock(path, timeout=0)
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


@contextmanager
def one_builder(directory: Path) -> Iterator[None]:
    """Let one process at a time build something in a cache directory; the others wait for it."""
    path = make_dir(directory) / ".lock"
    lock = FileLock(path)
    with writing(path):
        lock.acquire()
    try:
        remove_unfinished(directory)
        yield
    finally:
        lock.release()
