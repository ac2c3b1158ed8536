"""Where a network computes and how precisely, and what to do where a batch does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fedscal.errors import OutOfSpace, UsageError
from fedscal.models.network import Network
from fedscal.types import Prediction


def find_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is the first of CUDA, MPS and CPU that is there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, usable in there.items() if usable)
    if not there[name]:
        raise UsageError(f"device={name}: torch sees no such device here; device=auto takes what there is.")
    return torch.device(name)


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
        parts = [checkpoint(network, piece, use_reentrant=False) for piece in torch.split(images, size)]
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
