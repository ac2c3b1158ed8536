"""Where the npm registry is: an option, the environment, or npm's own configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from fedscal.core.errors import UsageError

VARIABLES = ("FEDSCAL_NPM_REGISTRY", "npm_config_registry", "NPM_CONFIG_REGISTRY")
_SECONDS = 20


def find_registry(given: str | None) -> str:
    """Return the address of the registry without a slash at its end, from the first place that has one."""
    found = given or next(_configured(), None)
    if not found:
        raise UsageError(
            "no npm registry is known: give --registry URL, set FEDSCAL_NPM_REGISTRY, or write "
            "registry=URL into ~/.npmrc."
        )
    return _checked(found)


def _configured() -> Iterator[str]:
    """Yield the addresses in the order in which they count; npm itself is asked last, for it is slow."""
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


def _checked(address: str) -> str:
    """Refuse what is no web address, and a password in it, which every message would repeat."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"the npm registry '{address}' is no http or https address: give --registry URL.")
    if parts.username or parts.password:
        raise UsageError("the npm registry's address holds a user name or password: give it without them.")
    return address.rstrip("/")
