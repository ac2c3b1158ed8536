"""Random streams: named, stable, and out of each other's way."""

from __future__ import annotations

import pytest
import torch

from fedscal.core.rng import Streams, compute_threads, stream, stream_seed


def numbers(generator: torch.Generator) -> list[float]:
    return torch.rand(4, generator=generator).tolist()


def test_the_seed_of_a_stream_never_changes() -> None:
    # The first 63 bits of sha256("0 US weak US mnist-0 US 3"), US the unit separator. Results of old runs
    # depend on it: if this fails, the changelog must say that results change.
    assert stream_seed(0, "weak", "mnist-0", 3) == 1582909921827860762


def test_every_part_of_the_name_makes_another_stream() -> None:
    names: list[tuple[int, str, *tuple[int | str, ...]]] = [
        (0, "weak", "a", 1),
        (1, "weak", "a", 1),
        (0, "strong", "a", 1),
        (0, "weak", "b", 1),
        (0, "weak", "a", 2),
    ]
    ambiguous: list[tuple[int, str, *tuple[int | str, ...]]] = [
        (0, "weak", "a1"),
        (0, "weaka", "1"),
        (0, "weak", "a", 11),
        (0, "weak", "a1", 1),
    ]
    assert len({stream_seed(*name) for name in [*names, *ambiguous]}) == len(names) + len(ambiguous)
    assert all(0 <= stream_seed(*name) < 2**63 for name in names)


def test_a_stream_starts_afresh_and_draws_from_one_do_not_move_another() -> None:
    streams = Streams(0, "a", 1)
    first = numbers(streams("weak"))
    strong = streams("strong")
    torch.rand(100, generator=strong)
    torch.rand(100)
    assert numbers(streams("weak")) == first == numbers(stream(0, "weak", "a", 1))
    assert numbers(streams("strong")) != first


def test_layers_draw_from_their_own_stream_and_leave_the_global_one_alone() -> None:
    before = torch.get_rng_state()
    with Streams(0, "a", 1).for_layers():
        inside = torch.rand(4).tolist()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    with Streams(0, "a", 1).for_layers():
        assert torch.rand(4).tolist() == inside
    with Streams(0, "b", 1).for_layers():
        assert torch.rand(4).tolist() != inside


def test_the_number_of_threads_is_restored_even_after_an_error() -> None:
    before = torch.get_num_threads()
    with compute_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    with pytest.raises(ZeroDivisionError), compute_threads(before + 1):
        _ = 1 / 0
    assert torch.get_num_threads() == before
