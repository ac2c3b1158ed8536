"""State-dict algebra: means in float64, digests that see every bit, bytes without pickle."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedscal.core import weights
from fedscal.core.errors import ModelRefused
from fedscal.core.types import Weights
from toys import model, tiny_network

DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8)


@st.composite
def state_dicts(draw: st.DrawFn) -> dict[str, Tensor]:
    names = draw(st.lists(st.text("abc._/0é", min_size=1, max_size=8), unique=True, max_size=4))
    found = {}
    for name in names:
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        found[name] = torch.randint(0, 100, shape, generator=generator).to(draw(st.sampled_from(DTYPES)))
    return found


def same(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def test_the_mean_is_summed_in_double_precision() -> None:
    # In float32, 2^24 + 1 is 2^24 again: 1e8 + 1 - 1e8 gives 0 instead of 1, and the mean 0 instead of 1/3.
    models = [{"w": torch.tensor([value])} for value in (1e8, 1.0, -1e8)]
    assert torch.stack([m["w"] for m in models]).sum().item() == 0
    assert weights.mean(models)["w"].item() == pytest.approx(1 / 3, rel=1e-6)


def test_statistics_are_averaged_and_counters_take_the_maximum() -> None:
    found = weights.mean([model(1.0, counter=7), model(4.0, counter=3)])
    assert found["w"].tolist() == [2.5, -2.5]
    assert found["norm.running_mean"].tolist() == [25.0]
    assert found["norm.num_batches_tracked"].item() == 7
    assert found["norm.num_batches_tracked"].dtype == torch.int64
    assert found["w"].dtype == torch.float32


def test_shares_weigh_the_models() -> None:
    # 1/4 * 1 + 3/4 * 5 = 4.
    assert weights.mean([model(1.0), model(5.0)], [0.25, 0.75])["w"].tolist() == [4.0, -4.0]


def test_one_share_too_few_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        weights.mean([model(1.0), model(5.0)], [1.0])


def test_the_mean_of_one_model_is_that_model_in_fresh_tensors() -> None:
    only = model(0.1, counter=2)
    found = weights.mean([only])
    assert same(found, only)
    assert all(found[name].data_ptr() != only[name].data_ptr() for name in only)


def test_distance_is_euclidean_over_parameters_alone() -> None:
    # The weights differ by (3, -3) and "v" by 4, sqrt(9 + 9 + 16); statistics and counters do not count.
    a, b = (
        model(1.0, counter=1) | {"v": torch.tensor([0.0])},
        model(4.0, counter=9) | {"v": torch.tensor([4.0])},
    )
    assert weights.distance(a, b) == pytest.approx(34**0.5)
    assert weights.distance(a, a) == 0


def test_the_digest_does_not_depend_on_the_order_of_names_or_on_strides() -> None:
    first = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(1)}
    turned = {"b": torch.tensor(1), "a": torch.arange(6.0).view(2, 3).T.contiguous().T}
    assert weights.digest(first) == weights.digest(turned)


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w | {"a": torch.nextafter(w["a"], torch.tensor(9.0))},
        lambda w: w | {"a": w["a"].view(3, 2)},
        lambda w: w | {"a": w["a"].view(torch.int32)},
        lambda w: w | {"a": -w["a"]},
        lambda w: w | {"b": w["b"] + 1},
        lambda w: {"c" if name == "a" else name: tensor for name, tensor in w.items()},
        lambda w: {"a": w["a"]},
    ],
    ids=["last bit", "shape", "dtype", "sign of zero", "integer", "name", "missing"],
)
def test_the_digest_sees_every_change(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    base = {"a": torch.zeros(2, 3), "b": torch.tensor(1)}
    assert weights.digest(change(base)) != weights.digest(base)


def test_a_snapshot_lives_apart_from_the_network() -> None:
    network = tiny_network()
    kept = weights.snapshot(network.state_dict())
    before = weights.digest(kept)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    assert weights.digest(kept) == before != weights.digest(network.state_dict())
    assert not any(tensor.requires_grad for tensor in kept.values())


def test_bytes_and_first_tensor_that_is_not_finite() -> None:
    good = {"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.int64)}
    assert weights.byte_count(good) == 3 * 4 + 2 * 8
    assert weights.first_not_finite(good) is None
    assert weights.first_not_finite(good | {"c": torch.tensor([0.0, torch.inf])}) == "c"
    assert weights.first_not_finite(good | {"c": torch.tensor([torch.inf, -torch.inf])}) == "c"
    assert weights.first_not_finite({"c": torch.tensor([torch.nan]), **good}) == "c"


def test_finite_numbers_whose_sum_is_not_are_finite() -> None:
    most = torch.finfo(torch.float32).max
    assert weights.first_not_finite({"a": torch.full((9,), most)}) is None
    assert weights.first_not_finite({"a": torch.full((9,), 1e300, dtype=torch.float64)}) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_distance_leaves_both_models_as_they_are(dtype: torch.dtype) -> None:
    a, b = {"w": torch.tensor([3.0, 1.0], dtype=dtype)}, {"w": torch.tensor([0.0, 5.0], dtype=dtype)}
    before = weights.digest(a), weights.digest(b)
    assert weights.distance(a, b) == 5
    assert (weights.digest(a), weights.digest(b)) == before


@given(state_dicts())
def test_bytes_round_trip(state: dict[str, Tensor]) -> None:
    back = weights.from_bytes(weights.to_bytes(state), "here")
    assert same(back, state)
    assert weights.digest(back) == weights.digest(state)


@given(st.dictionaries(st.text("ab:", min_size=1, max_size=3), state_dicts().filter(bool), max_size=3))
def test_groups_flatten_and_come_back(groups: dict[str, dict[str, Tensor]]) -> None:
    back = weights.unflatten(weights.flatten(groups))
    assert back.keys() == groups.keys()
    assert all(same(back[name], groups[name]) for name in groups)


def test_a_tensor_under_two_names_and_one_with_odd_strides_are_written_whole() -> None:
    shared = torch.arange(4.0).view(2, 2)
    state = {"a": shared, "b": shared, "c": shared.T}
    assert same(weights.from_bytes(weights.to_bytes(state), "here"), state)


class Bomb:
    """A pickle of this would run code when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("the pickle was executed",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Bomb()),
        pickle.dumps({"w": [1.0]}),
        weights.to_bytes(model(1.0))[:-1],
        weights.to_bytes(model(1.0))[:20],
        b"",
        b"not a model",
    ],
    ids=["pickled code", "pickle", "last byte gone", "cut in the header", "empty", "text"],
)
def test_anything_but_whole_safetensors_is_refused(data: bytes) -> None:
    with pytest.raises(ModelRefused, match=r"some/file\.bin is not a whole safetensors file"):
        weights.from_bytes(data, "some/file.bin")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_tensors_that_are_not_finite_are_refused_by_name(value: float) -> None:
    data = weights.to_bytes(model(1.0) | {"head.bias": torch.tensor([0.0, value])})
    with pytest.raises(ModelRefused, match=r"here: tensor 'head\.bias' holds NaN or infinity"):
        weights.from_bytes(data, "here")


@given(st.data())
def test_damaged_bytes_are_read_or_refused_but_never_crash(data: st.DataObject) -> None:
    whole = bytearray(weights.to_bytes(model(1.0)))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    try:
        weights.from_bytes(bytes(whole), "here")
    except ModelRefused as error:
        assert "here" in str(error)  # noqa: PT017


def test_tensors_that_share_memory_are_written_apart() -> None:
    whole = torch.arange(4.0)
    found = weights.from_bytes(weights.to_bytes({"whole": whole, "same": whole, "rest": whole[1:]}), "here")
    assert found["whole"].tolist() == found["same"].tolist() == [0, 1, 2, 3]
    assert found["rest"].tolist() == [1, 2, 3]
