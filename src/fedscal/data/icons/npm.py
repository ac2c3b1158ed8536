"""The npm registry, from which the icon sets come: where it is, what is fetched, how a tarball is read.

Every tarball is checked against the sha512 of the lock; nothing is unpacked to disk.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import os
import shutil
import subprocess
import tarfile
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from fedscal.core import files
from fedscal.core.convert import convert
from fedscal.core.documents import parse_json
from fedscal.core.errors import DataRefused, UsageError
from fedscal.data.icons.rules import Package

VARIABLES = ("FEDSCAL_NPM_REGISTRY", "npm_config_registry", "NPM_CONFIG_REGISTRY")
_SECONDS = 20


def find_registry(address: str | None) -> str:
    """Return the registry's address, given or configured, without a slash at its end."""
    registry = address or next(_configured(), None)
    if not registry:
        raise UsageError(
            "no npm registry is known: give --registry URL, set FEDSCAL_NPM_REGISTRY, or write "
            "registry=URL into ~/.npmrc."
        )
    # A password in the address is refused, for every message would repeat it.
    parts = urlsplit(registry)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"the npm registry '{registry}' is no http or https address: give --registry URL.")
    if parts.username or parts.password:
        raise UsageError("the npm registry's address holds a user name or password: give it without them.")
    return registry.rstrip("/")


def _configured() -> Iterator[str]:
    """Yield the addresses by precedence; npm itself is asked last because it is slow."""
    yield from filter(None, (os.environ.get(name) for name in VARIABLES))
    for path in (Path(".npmrc"), Path(os.path.expanduser("~/.npmrc"))):
        yield from _from_file(path)
    yield from _from_npm()


def _from_file(path: Path) -> Iterator[str]:
    """Yield the file's ``registry =`` line; a scope's registry or a password is another key."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and key.strip() == "registry" and value.strip():
            yield value.strip().strip("\"'")


def _from_npm() -> Iterator[str]:
    npm = shutil.which("npm")
    if npm is None:
        return
    command = [npm, "config", "get", "registry"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return
    answer = asked.stdout.strip()
    if answer not in ("", "undefined", "null"):
        yield answer


_TIMEOUT = 60.0
_ATTEMPTS = 6
_FIRST_WAIT = 1.0
_LONGEST_WAIT = 30.0
_AT_ONCE = 4
_LARGEST = 128 * 2**20
_BUSY = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class _Dist:
    tarball: str = ""


@dataclass(frozen=True)
class _Described:
    """What a registry says of a version of a package, as far as it is used here."""

    version: str
    dist: _Dist = _Dist()


@dataclass(frozen=True)
class Registry:
    """An npm registry.

    Attributes:
        address: Where it is, without a slash at the end.
        wait: Called with the seconds between two attempts.
    """

    address: str
    wait: Callable[[float], None] = time.sleep

    def tarball(self, name: str, version: str) -> bytes:
        """Return the bytes of a package's tarball, whatever they are."""
        listed = self._described(name, version).dist.tarball
        # A mirror may answer with another host's address, which need not be reachable from here.
        here = urlsplit(listed).netloc == urlsplit(self.address).netloc
        base = name.rpartition("/")[2]
        usual = f"{self.address}/{quote(name, safe='@/')}/-/{base}-{version}.tgz"
        return self._get(listed if here else usual, f"{name} {version}")

    def newest(self, name: str) -> str:
        """Return the newest version of a package."""
        return self._described(name, "latest").version

    def _described(self, name: str, version: str) -> _Described:
        what = f"{name} {version}"
        answer = self._get(f"{self.address}/{quote(name, safe='@/')}/{version}", what)
        try:
            return convert(parse_json(answer), _Described)
        except ValueError:
            raise DataRefused(
                f"{self.address} does not answer like an npm registry when asked for {what}."
            ) from None

    def _get(self, url: str, what: str) -> bytes:
        """Fetch with retries and exponential back-off."""
        wait = _FIRST_WAIT
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return _body(url, what)
            except HTTPError as error:
                if error.code not in _BUSY:
                    raise self._refused(what, error.code) from error
                trouble: Exception = error
            except (URLError, http.client.HTTPException, OSError) as error:
                trouble = error
            if attempt < _ATTEMPTS:
                self.wait(min(wait, _LONGEST_WAIT))
                wait *= 2
        raise DataRefused(
            f"cannot fetch {what} from {self.address}: {_reason(trouble)}. Check the network or give "
            "--registry URL, then repeat the command; what was fetched is kept."
        ) from trouble

    def _refused(self, what: str, code: int) -> DataRefused:
        if code == 404:
            return DataRefused(f"{self.address} has no {what}: give another registry with --registry URL.")
        return DataRefused(f"{self.address} refuses {what} (HTTP {code}): give another with --registry URL.")


def fetch_all(
    packages: Sequence[Package], folder: Path, registry: Registry, on_each: Callable[[], None]
) -> None:
    """Download every package's tarball into the folder; stop at the first failure."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        for done in as_completed([pool.submit(fetch, package, folder, registry) for package in packages]):
            done.result()
            on_each()
    finally:
        pool.shutdown(cancel_futures=True)


def missing(packages: Sequence[Package], folder: Path) -> list[Package]:
    """Return the packages whose tarball is not in the folder, or not whole."""

    def is_there(package: Package) -> bool:
        path = folder / package.tarball
        return path.is_file() and integrity_of(path.read_bytes()) == package.integrity

    return [package for package in packages if not is_there(package)]


def fetch(package: Package, folder: Path, registry: Registry) -> None:
    """Download one tarball into the folder, if its hash is the lock's."""
    data = verified(package.name, package.version, package.integrity, registry)
    files.write_bytes(folder / package.tarball, data)


def verified(name: str, version: str, integrity: str, registry: Registry) -> bytes:
    """Return a package's tarball if it has the sha512 of a lock."""
    data = registry.tarball(name, version)
    if integrity_of(data) != integrity:
        raise DataRefused(
            f"{name} {version} from {registry.address} is not the package of the lock (its "
            "sha512 differs), and was not kept. Repeat the command, or give another --registry URL."
        )
    return data


def integrity_of(data: bytes) -> str:
    """Return the digest of a tarball as locks and registries write it."""
    return "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()


def _body(url: str, what: str) -> bytes:
    request = Request(url, headers={"User-Agent": "fedscal", "Accept": "*/*"})
    with urlopen(request, timeout=_TIMEOUT) as answer:
        data: bytes = answer.read(_LARGEST + 1)
        expected = answer.headers.get("Content-Length")
    if len(data) > _LARGEST:
        raise DataRefused(f"{what} is larger than {_LARGEST:,} bytes and was not fetched.")
    # With a limit, http.client does not report a body that ends too soon.
    if expected is not None and len(data) < int(expected):
        raise http.client.IncompleteRead(data, int(expected) - len(data))
    return data


def _reason(trouble: Exception) -> str:
    if isinstance(trouble, HTTPError):
        return f"HTTP {trouble.code}"
    if isinstance(trouble, http.client.IncompleteRead):
        return "the connection broke off"
    return str(trouble.reason) if isinstance(trouble, URLError) else str(trouble)


LARGEST_MEMBER = 256 * 2**20


def members(data: bytes, wanted: Collection[str], package: str) -> dict[str, bytes]:
    """Return the wanted files of a gzipped tarball; refuse missing or too large ones."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            for member in tar:
                if member.name not in wanted or not member.isfile():
                    continue
                if member.size > LARGEST_MEMBER:
                    large = f"is too large ({member.size:,} bytes)"
                    raise DataRefused(f"{member.name} in the tarball of {package} {large}.")
                file = tar.extractfile(member)
                contents[member.name] = file.read() if file else b""
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataRefused(f"the tarball of {package} cannot be read: {error}.") from error
    for name in wanted:
        if name not in contents:
            raise DataRefused(f"the tarball of {package} has no {name}.")
    return contents
