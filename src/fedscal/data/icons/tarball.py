"""Reading a tarball in memory: the named members and nothing else; nothing is unpacked to disk."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Collection

from fedscal.core.errors import DataRefused

LARGEST_MEMBER = 256 * 2**20


def members(data: bytes, wanted: Collection[str], package: str) -> dict[str, bytes]:
    """Return the wanted files of a gzipped tarball, or say which one is missing or too large."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            for member in tar:
                if member.name in wanted and member.isfile():
                    found[member.name] = _read(tar, member, package)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataRefused(f"the tarball of {package} cannot be read: {error}.") from error
    for name in wanted:
        if name not in found:
            raise DataRefused(f"the tarball of {package} has no {name}.")
    return found


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo, package: str) -> bytes:
    if member.size > LARGEST_MEMBER:
        raise DataRefused(f"{member.name} in the tarball of {package} is too large ({member.size:,} bytes).")
    file = tar.extractfile(member)
    return file.read() if file else b""
