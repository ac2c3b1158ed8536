"""Where a network computes and how precisely, and what to do where a batch does not fit."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedscal.core.errors import OutOfSpace, UsageError
from fedscal.core.files import sha256
from fedscal.core.lazy import torch
from fedscal.core.types import Prediction

if TYPE_CHECKING:
    from torch import Tensor

    from fedscal.models.network import Network

_CPUINFO = Path("/proc/cpuinfo")
_KIND = re.compile(
    r"vendor_id|cpu family|model|model name|cache size|CPU (implementer|architecture|variant|part)"
)
_ARITHMETIC = re.compile(r"s?sse|avx|fma|f16c|amx|xop|neon|asimd|sve|sme|bf16|i8mm|fphp")
"""Features of a CPU by which libraries choose how to add and multiply; the others come and go with Linux."""


def find_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is the first of CUDA, MPS and CPU that is there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, usable in there.items() if usable)
    if not there[name]:
        raise UsageError(f"device={name}: torch sees no such device here; device=auto takes what there is.")
    return torch.device(name)


def processor() -> str:
    """Return the kind of this CPU: its name, torch's kernels for it, and a hash of what else decides bits."""
    told = _told(_CPUINFO)
    kind = {name: value for name, value in told.items() if _KIND.fullmatch(name)}
    features = sorted(filter(_ARITHMETIC.match, (told.get("flags") or told.get("Features") or "").split()))
    name = told.get("model name") or platform.processor() or platform.machine()
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {kernels}, {sha256(repr((sorted(kind.items()), features)).encode())[:8]}"


def _told(path: Path) -> dict[str, str]:
    """Return what Linux tells of the first CPU; nothing elsewhere."""
    first = path.read_text(errors="replace").split("\n\n")[0] if path.exists() else ""
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def computes_in_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether a backbone computes in bfloat16; ``auto``: on CUDA devices that are made for it."""
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bf16"


def put(network: Network, device: str, precision: str) -> Network:
    """Put a network where it shall compute."""
    network.to(find_device(device))
    network.in_bfloat16 = computes_in_bfloat16(precision, network.device)
    return network


def in_pieces(network: Network, size: int) -> Callable[[Tensor], Prediction]:
    """Return the network as one that never holds the activations of more than ``size`` images; 0: as it is.

    A batch passes in pieces that forget their activations. The loss is that of the whole batch, and each
    piece is computed once more when its gradient is asked for. So the step is the whole batch's but for
    the order of sums, whatever the loss is; it costs one more forward pass.
    """

    def forward(images: Tensor) -> Prediction:
        if len(images) <= size:
            return network(images)  # type: ignore[no-any-return]
        parts = [
            torch.utils.checkpoint.checkpoint(network, piece, use_reentrant=False)
            for piece in torch.split(images, size)
        ]
        return Prediction(torch.cat([p.features for p in parts]), torch.cat([p.logits for p in parts]))

    return forward if size else network


@contextmanager
def device_memory() -> Iterator[None]:
    """Say how a batch can be made to fit where a device has too little memory for it.

    Nothing is halved of itself: what else is on a device must not decide the bits of a result.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfSpace(
            "the device has too little memory for a batch: set micro_batch to half of batch_size or less "
            "(the same step in pieces), or workers=1."
        ) from error
