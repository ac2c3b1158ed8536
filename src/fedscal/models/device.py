"""Device and precision of a network, and batches that do not fit into its memory."""

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
"""CPU features by which libraries choose their arithmetic; the rest of the list varies with the kernel."""


def find_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is the first available of CUDA, MPS and CPU."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, usable in available.items() if usable)
    if not available[name]:
        raise UsageError(f"device={name}: torch sees no such device here; device=auto takes what there is.")
    return torch.device(name)


def processor() -> str:
    """Return the kind of this CPU: its name, torch's kernels for it, and a hash of what else decides bits."""
    cpu = _cpuinfo(_CPUINFO)
    kind = {name: value for name, value in cpu.items() if _KIND.fullmatch(name)}
    features = sorted(filter(_ARITHMETIC.match, (cpu.get("flags") or cpu.get("Features") or "").split()))
    name = cpu.get("model name") or platform.processor() or platform.machine()
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {kernels}, {sha256(repr((sorted(kind.items()), features)).encode())[:8]}"


def _cpuinfo(path: Path) -> dict[str, str]:
    """Return Linux's description of the first CPU; empty on other systems."""
    first = path.read_text(errors="replace").split("\n\n")[0] if path.exists() else ""
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def computes_in_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether a backbone computes in bfloat16; ``auto``: on CUDA devices that support it."""
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bf16"


def to_device(network: Network, device: str, precision: str) -> Network:
    """Move a network to a device and set its precision."""
    network.to(find_device(device))
    network.in_bfloat16 = computes_in_bfloat16(precision, network.device)
    return network


def microbatched(network: Network, size: int) -> Callable[[Tensor], Prediction]:
    """Return a forward pass that holds the activations of at most ``size`` images; 0: the network itself.

    A batch passes in pieces with activation checkpointing: the loss is that of the whole batch, and each
    piece is computed again for its gradient. So for any loss the step is the whole batch's but for the
    order of sums; it costs one more forward pass.
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
def oom_hint() -> Iterator[None]:
    """Say how to make a batch fit when the device runs out of memory.

    Nothing is halved automatically: what else is on a device must not change the bits of a result.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfSpace(
            "the device has too little memory for a batch: set micro_batch to half of batch_size or less "
            "(the same step in pieces), or workers=1."
        ) from error
