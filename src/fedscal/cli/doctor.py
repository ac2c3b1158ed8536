"""What can be wrong with a machine, looked at rather than guessed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedscal.client.training import ClientData, Training, local_update
from fedscal.core import extras
from fedscal.core.files import cache_dir
from fedscal.core.rng import Streams
from fedscal.core.types import Package
from fedscal.core.weights import first_not_finite, snapshot
from fedscal.data.views import AugmentedViews
from fedscal.experiment.run_directory import RunDirectory
from fedscal.flower import checkup
from fedscal.flower.launch import Address
from fedscal.methods import build_objective
from fedscal.models.device import computes_in_bfloat16, find_device, processor, to_device
from fedscal.models.registry import build_network

_LEAST_BYTES = 500_000_000


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
    found = [checkup.flower()]
    found += checkup.certificates(keys) if keys else []
    found += checkup.server(address) if address else []
    found += [checkup.port(number) for number in ports]
    return [Finding(check, ok, text, "" if ok else advice) for check, ok, text, advice in found]


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
