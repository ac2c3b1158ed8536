"""What can be wrong with a machine of a federation: certificates, clocks, ports, versions."""

from __future__ import annotations

import email.utils
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedscal.core.errors import UsageError
from fedscal.core.extras import from_extra
from fedscal.flower.launch import Address

_SOON = 30
_SKEW = 60.0
_WANTED = "1.41."
Check = tuple[str, bool, str, str]
"""What was checked, whether it is well, the result, and what to do."""


def flower() -> Check:
    """Check the installed Flower."""
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        return "flower", True, "not installed (needed for fedscal flower only)", ""
    advice = "pip install 'fedscal[flower]': every machine needs the same version"
    return "flower", installed.startswith(_WANTED), installed, advice


def certificates(folder: Path) -> Iterator[Check]:
    """Check every certificate of a folder: its dates, its names, and who may read its keys."""
    with from_extra("flower", "a check of certificates"):
        from cryptography import x509
    paths = sorted(folder.rglob("*.crt"))
    if not paths:
        raise UsageError(f"{folder} holds no certificate: fedscal flower certs {folder} --sites ...")
    for path in paths:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        days = (certificate.not_valid_after_utc - datetime.now(UTC)).days
        begun = certificate.not_valid_before_utc <= datetime.now(UTC)
        state = f"{_names(certificate)}, {days} days left" + ("" if begun else ", not valid yet: the clock?")
        advice = "remove it and its key, and make new ones: fedscal flower certs"
        yield str(path), days >= _SOON and begun, state, advice
    for path in sorted([*folder.rglob("*.key"), *folder.rglob("key")]):
        closed = path.stat().st_mode & 0o077 == 0
        yield str(path), closed, "for its owner only" if closed else "others may read it", f"chmod 600 {path}"


def _names(certificate: object) -> str:
    with from_extra("flower", "a check of certificates"):
        from cryptography import x509
    assert isinstance(certificate, x509.Certificate)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "authority"
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return ", ".join(hosts)


def server(address: Address) -> Iterator[Check]:
    """Check a server from here: is it reached, is its certificate good, does its clock agree."""
    reached = address.open()
    yield f"server {address}", reached, "reached" if reached else "nobody listens", "start it; open its port"
    if not reached:
        return
    try:
        address.verify_certificate()
    except UsageError as error:
        yield "its certificate", False, str(error), "copy ca.crt from the server"
        return
    yield "its certificate", True, "good" if address.authority else "none: --insecure", ""
    seconds = _skew(address)
    if seconds is not None:
        advice = "set both clocks by NTP: Flower refuses old signatures"
        yield "its clock", abs(seconds) < _SKEW, f"{seconds:+.0f} s from this machine's", advice


def _skew(address: Address) -> float | None:
    """Return how far the server's clock is ahead, by the date of any of its answers."""
    scheme, context = "http", None
    if address.authority:
        scheme, context = "https", ssl.create_default_context(cafile=str(address.authority))
    try:
        with urllib.request.urlopen(f"{scheme}://{address}/", timeout=5, context=context) as answer:
            date = answer.headers.get("date")
    except urllib.error.HTTPError as error:
        date = error.headers.get("date")
    except OSError:
        return None
    return (email.utils.parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds() if date else None


def port(number: int) -> Check:
    """Check whether a port of this machine is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError as error:
            return f"port {number}", False, str(error.strerror), "end what listens there, or give --port"
    return f"port {number}", True, "free", ""
