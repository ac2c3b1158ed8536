"""Predictions of several clients' images in batches that they share: a batch of five costs half of one of 32.

Every image is predicted by itself in evaluation mode, but the kernels of small batches add in another order.
So a shared batch is filled up to a multiple of 32 rows: from 16 rows on, measured with several kernels and
networks (docs/scale.md), an image's answer has the same bits whatever else is in its batch. Who shares a
batch with whom, and so the number of workers, then decides nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from fedscal.core.types import ClientId, Images, Prediction
from fedscal.models.network import Network, predict

_ROWS = 256
_MULTIPLE = 32


def predict_together(
    network: Network, images: Mapping[ClientId, Images], view: Callable[[Tensor], Tensor]
) -> Iterator[tuple[ClientId, Prediction]]:
    """Yield each client's predictions by the model that the network holds; one of many images goes alone."""
    for group in _groups({client: len(own) for client, own in images.items()}):
        sizes = [len(images[client]) for client in group]
        if sum(sizes) > _ROWS:
            yield group[0], predict(network, images[group[0]], view, _ROWS)
            continue
        batch = torch.cat([part for client in group for part in images[client].split(_ROWS)])
        made = predict(network, _filled(batch), view, _ROWS)
        ends = list(itertools.accumulate(sizes, initial=0))
        for client, begin, end in zip(group, ends, ends[1:], strict=False):
            yield client, made[torch.arange(begin, end)]


def _groups(sizes: Mapping[ClientId, int]) -> Iterator[list[ClientId]]:
    """Yield clients in their order, as many at a time as fill a batch."""
    group: list[ClientId] = []
    for client, size in sizes.items():
        if group and sum(sizes[other] for other in group) + size > _ROWS:
            yield group
            group = []
        group.append(client)
    if group:
        yield group


def _filled(batch: Tensor) -> Tensor:
    """Repeat the last image until the rows are a multiple."""
    return torch.cat([batch, batch[-1:].expand(-len(batch) % _MULTIPLE, *batch.shape[1:])])
