"""Replies that do not fit into memory: the same models from a file without a name, and never many at once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from io import FileIO
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedscal.core import weights
from fedscal.core.errors import OutOfSpace
from fedscal.core.layout import in_order
from fedscal.core.spool import Spool, SpooledModel
from fedscal.core.types import ClientId, Failure, Package, Reply, Weights
from fedscal.server import aggregation
from fedscal.server.aggregation import Aggregation
from fedscal.server.rounds import Schedule, Storage, federate
from fedscal.server.rule import Briefing
from fedscal.server.rules.average import Average
from toys import FakeDriver, model, reply

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


SHAPES = ((3, 2), (), (5,), (0, 4), (2, 3, 2, 2))


def some_model(seed: int, shapes: Sequence[Sequence[int]] = SHAPES) -> Weights:
    draw = torch.Generator().manual_seed(seed)
    floats = {f"f{i}": torch.randn(tuple(shape), generator=draw) for i, shape in enumerate(shapes)}
    return {**floats, "n": torch.tensor(seed), "norm.running_var": torch.rand(4, generator=draw) + 0.1}


def spooled(models: Iterable[Weights]) -> list[Weights]:
    spool = Spool(room=0)
    return [spool.keep(one) for one in models]


@given(
    st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=4),
    st.sampled_from(TYPES),
    st.integers(0, 70),
    st.integers(0, 70),
)
def test_a_model_comes_back_as_it_was_whole_and_in_parts(
    shapes: list[list[int]], dtype: torch.dtype, start: int, stop: int
) -> None:
    first, second = ({n: t.to(dtype) for n, t in some_model(seed, shapes).items()} for seed in (1, 2))
    for kept, was in zip(spooled([first, second]), (first, second), strict=True):
        assert isinstance(kept, SpooledModel)
        assert list(kept) == list(was)
        assert len(kept) == len(was)
        assert weights.digest(kept) == weights.digest(was)
        assert weights.byte_count(kept) == weights.byte_count(was)
        for name, tensor in was.items():
            assert weights.part(kept, name, start, stop).equal(in_order(tensor)[start:stop])


def test_what_is_read_is_the_reader_s_own() -> None:
    (kept,) = spooled([{"w": torch.ones(3)}])
    kept["w"].zero_()
    assert kept["w"].tolist() == [1, 1, 1]


def test_a_tensor_that_is_a_view_of_a_larger_one_is_written_as_it_looks() -> None:
    (kept,) = spooled([{"w": torch.arange(6.0).reshape(2, 3).T}])
    assert kept["w"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_first_ones_stay_in_memory_and_no_file_is_made_for_them(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "run", room=2 * weights.byte_count(model(1.0)))
    kept = [spool.keep(model(value)) for value in (1.0, 2.0)]
    assert [type(one) for one in kept] == [dict, dict]
    assert not (tmp_path / "run").exists()
    assert isinstance(spool.keep(model(3.0)), SpooledModel)
    assert list((tmp_path / "run").iterdir()) == [], "a file without a name: a kill leaves nothing"


def test_a_file_is_written_again_when_no_model_is_read_from_it_any_more() -> None:
    spare: list[FileIO] = []

    def kept(value: float) -> Weights:
        return Spool(room=0, spare=spare).keep(model(value))

    first, second = kept(1.0), kept(2.0)
    assert spare == []
    assert weights.digest(first) == weights.digest(model(1.0))
    del first
    (file,) = spare
    third = kept(3.0)
    assert spare == []
    assert {weights.digest(second), weights.digest(third)} == {weights.digest(model(v)) for v in (2.0, 3.0)}
    del third
    assert spare == [file]


def test_a_disk_without_room_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutOfSpace, match="cannot write"):
        Spool(tmp_path / "file", room=0).keep(model(1.0))


@pytest.mark.parametrize("block", [1, 7, 2**20])
@pytest.mark.parametrize("name", ["uniform", "size", "median", "trimmed-mean", "krum"])
def test_no_rule_s_bits_depend_on_where_the_replies_are(
    name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _aggregate(name, [some_model(seed) for seed in range(6)])
    monkeypatch.setattr(aggregation, "_BLOCK", block)
    found = _aggregate(name, spooled(some_model(seed) for seed in range(6)))
    assert weights.digest(found) == weights.digest(expected)


def _aggregate(name: str, models: Sequence[Weights]) -> Weights:
    replies = [reply(str(i), one, examples=i + 1) for i, one in enumerate(models)]
    return Aggregation(name)(replies, some_model(99))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["uniform", "median"])
def test_a_round_holds_a_few_models_whatever_the_number_of_clients(name: str) -> None:
    """Counted: how many of the tensors that clients sent are alive while the others answer and are merged."""
    alive: set[int] = set()
    most = 0

    def answers(client: ClientId, package: Package) -> list[Reply | Failure]:
        nonlocal most
        tensor = torch.full((1000,), float(client))
        alive.add(id(tensor))
        weakref.finalize(tensor, alive.discard, id(tensor))
        most = max(most, len(alive))
        return [reply(client, {"w": tensor})]

    clients = [f"{number:03}" for number in range(200)]
    rule = Average(Aggregation(name))  # type: ignore[arg-type]
    state = rule.init(Briefing({"w": torch.zeros(1000)}, "w"))
    storage = Storage(lambda: Spool(room=3 * 4000))
    driver = FakeDriver(clients, answers)
    (done,) = federate(rule, driver, state, Schedule(1, 1.0, 0.1), seed=0, storage=storage)
    assert len(done.replies) == 200
    assert done.state.models["server"]["w"].tolist() == pytest.approx([99.5] * 1000)
    assert 3 < most <= 6, "three in memory, and those in the hands of the driver and the screen"
