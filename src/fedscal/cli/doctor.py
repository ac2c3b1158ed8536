"""What can be wrong with a machine, or with its part of a federation: looked at rather than guessed."""

from __future__ import annotations

import email.utils
import importlib
import importlib.util
import os
import platform
import shutil
import socket
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fedscal.client.training import ClientData, Training, local_update
from fedscal.core import extras
from fedscal.core.errors import UsageError
from fedscal.core.extras import from_extra
from fedscal.core.files import cache_dir
from fedscal.core.rng import Streams
from fedscal.core.types import Package
from fedscal.core.weights import first_not_finite, snapshot
from fedscal.data.views import AugmentedViews
from fedscal.experiment.run_directory import RunDirectory
from fedscal.flower.launch import Address
from fedscal.methods import build_objective
from fedscal.models.device import computes_in_bfloat16, find_device, processor, to_device
from fedscal.models.registry import build_network

_LEAST_BYTES = 500_000_000
_FEWEST_DAYS = 30
_LARGEST_SKEW = 60.0
_FLOWER = "1.41."


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    check: str
    ok: bool
    found: str
    advice: str = ""


def examine() -> list[Finding]:
    """Look at everything that a run needs."""
    return [*_software(), *_machine(), _training_step()]


def examine_run(path: Path) -> list[Finding]:
    """Look in what this machine differs from the one that a run was begun on."""
    told = RunDirectory(path).elsewhere() or ["as here: resumed or repeated, it gives the same bits"]
    return [Finding("run", True, f"{path}: {text}") for text in told]


def examine_federation(keys: Path | None, address: Address | None, ports: Sequence[int]) -> list[Finding]:
    """Look at what a machine of a Flower federation needs beside that."""
    found = [_flower()]
    found += check_certificates(keys) if keys else []
    found += check_server(address) if address else []
    found += map(check_port, ports)
    return [replace(finding, advice="") if finding.ok else finding for finding in found]


def _software() -> Iterator[Finding]:
    yield Finding("python", sys.version_info >= (3, 11), platform.python_version(), "3.11 or newer")
    yield Finding("torch", True, torch.__version__)
    yield _torchvision()
    yield from map(_extra, extras.known())


def _extra(name: str) -> Finding:
    """Say whether an extra is there; one that is not is no fault of the machine, for few need them all."""
    missing = extras.missing(name)
    if not missing:
        return Finding(f"extra {name}", True, "installed")
    return Finding(f"extra {name}", True, f"not installed: {', '.join(missing)}", extras.advice(name))


def _torchvision() -> Finding:
    if importlib.util.find_spec("torchvision") is None:
        return Finding("torchvision", True, "not installed (not needed)")
    try:
        importlib.import_module("torchvision")
    except Exception as error:
        advice = "pip uninstall torchvision: a broken one breaks timm and transformers too"
        return Finding("torchvision", False, f"cannot be imported: {error}", advice)
    return Finding("torchvision", True, "works")


def _machine() -> Iterator[Finding]:
    yield Finding("processor", True, processor())
    yield Finding("cores", True, str(os.cpu_count()))
    yield Finding("device", True, _device(find_device("auto")))
    folder = cache_dir()
    existing = next(path for path in [folder, *folder.parents] if path.exists())
    free = shutil.disk_usage(existing).free
    yield Finding("disk", free > _LEAST_BYTES, f"{free / 1e9:.1f} GB free at {existing}", "free some space")
    yield _writable(folder)


def _device(found: torch.device) -> str:
    name = f" ({torch.cuda.get_device_name()})" if found.type == "cuda" else ""
    return f"{found.type}{name}, {'bf16' if computes_in_bfloat16('auto', found) else 'fp32'}"


def _writable(folder: Path) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return Finding("cache", True, str(folder))
    except OSError as error:
        return Finding(
            "cache", False, f"{folder}: {error.strerror}", "set FEDSCAL_CACHE to another directory"
        )


def _training_step() -> Finding:
    """Train a network for one epoch on noise, with the real loop and FedSCAl's whole objective.

    It computes where a run would, so that a device that does not work shows it here.
    """
    network = to_device(build_network("convnet", (1, 32, 32), 10), "auto", "auto")
    noise = torch.randint(0, 256, (16, 1, 32, 32), generator=torch.Generator().manual_seed(0))
    data = ClientData(noise.to(torch.uint8), AugmentedViews())
    package = Package(1, 0.01, {"server": snapshot(network.state_dict())})
    objective = build_objective("fedscal", "shot", {})
    reply, _ = local_update(
        package, {}, data, objective, Training(epochs=1), Streams(0, "doctor", 1), network
    )
    broken = first_not_finite(reply.weights)
    return Finding("training step", broken is None, broken or f"{reply.seconds:.2f} s", "reinstall torch")


def _flower() -> Finding:
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        return Finding("flower", True, "not installed (needed for fedscal flower only)")
    advice = "pip install 'fedscal[flower]': every machine needs the same version"
    return Finding("flower", installed.startswith(_FLOWER), installed, advice)


def check_certificates(folder: Path) -> Iterator[Finding]:
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
        extensions = [extension.value for extension in certificate.extensions]
        names = [name for own in extensions if isinstance(own, x509.SubjectAlternativeName) for name in own]
        names.sort(key=lambda name: isinstance(name, x509.IPAddress))
        hosts = ", ".join(str(name.value) for name in names) or "authority"
        state = f"{hosts}, {days} days left" + ("" if begun else ", not valid yet: the clock?")
        advice = "remove it and its key, and make new ones: fedscal flower certs"
        yield Finding(str(path), days >= _FEWEST_DAYS and begun, state, advice)
    for path in sorted([*folder.rglob("*.key"), *folder.rglob("key")]):
        closed = path.stat().st_mode & 0o077 == 0
        state = "for its owner only" if closed else "others may read it"
        yield Finding(str(path), closed, state, f"chmod 600 {path}")


def check_server(address: Address) -> Iterator[Finding]:
    """Check a server from here: is it reached, is its certificate good, does its clock agree."""
    reached = address.open()
    state = "reached" if reached else "nobody listens"
    yield Finding(f"server {address}", reached, state, "start it; open its port")
    if not reached:
        return
    try:
        address.verify_certificate()
    except UsageError as error:
        yield Finding("its certificate", False, str(error), "copy ca.crt from the server")
        return
    yield Finding("its certificate", True, "good" if address.authority else "none: --insecure")
    ahead = _skew(address)
    if ahead is not None:
        advice = "set both clocks by NTP: Flower refuses old signatures"
        yield Finding("its clock", abs(ahead) < _LARGEST_SKEW, f"{ahead:+.0f} s from this machine's", advice)


def _skew(address: Address) -> float | None:
    """Return the seconds by which the server's clock is ahead, by the date of any of its answers."""
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


def check_port(number: int) -> Finding:
    """Check whether a port of this machine is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError as error:
            advice = "end what listens there, or give --port"
            return Finding(f"port {number}", False, str(error.strerror), advice)
    return Finding(f"port {number}", True, "free")
