"""The clients' images are read when they are asked for, and few of them stay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedscal.data.views import AugmentedViews
from fedscal.experiment.client_images import ClientImages
from toys import tensor_of

DOMAINS = {name: torch.full((6, 1, 4, 4), number, dtype=torch.uint8) for number, name in enumerate("abc")}
ROWS = {
    "a-0": ("a", torch.tensor([0, 2])),
    "a-1": ("a", torch.tensor([1])),
    "b-0": ("b", torch.tensor([5])),
    "c-0": ("c", torch.arange(6)),
}


@pytest.fixture
def read() -> list[str]:
    return []


@pytest.fixture
def data(read: list[str]) -> ClientImages:
    def images(domain: str) -> Tensor:
        read.append(domain)
        return DOMAINS[domain] + torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1) * 10

    return ClientImages(ROWS, images, AugmentedViews(mean=(0.5,), std=(0.25,), flip=False))


def test_every_client_has_its_rows_of_its_domain(data: ClientImages) -> None:
    assert (list(data), len(data)) == (list(ROWS), 4)
    seen = {client: tensor_of(data[client].images)[:, 0, 0, 0].tolist() for client in data}
    assert seen == {"a-0": [0, 20], "a-1": [10], "b-0": [51], "c-0": [2, 12, 22, 32, 42, 52]}


def test_domains_that_are_few_bytes_are_read_once(data: ClientImages, read: list[str]) -> None:
    for _ in range(2):
        assert all(len(data[client].images) for client in data)
    assert read == ["a", "b", "c"]


def test_of_many_bytes_the_oldest_are_read_again(
    data: ClientImages, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedscal.experiment.client_images._KEPT", 2 * DOMAINS["a"].nbytes - 1)
    assert all(len(data[client].images) for client in data)
    assert read == ["a", "b", "c"]
    assert [len(data[client].images) for client in ("c-0", "b-0", "a-0")] == [6, 1, 2]
    assert read == ["a", "b", "c", "a"], "the first one had to go"
