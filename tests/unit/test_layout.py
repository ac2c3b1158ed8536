"""Models whose numbers lie side by side: which tensors go together, and that each is found again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedscal.core.layout import (
    FlatModel,
    Layout,
    in_order,
    in_shape,
    is_statistic,
    numbers_in,
    numbers_of,
    statistic,
)
from fedscal.core.types import Weights

DTYPES = (torch.float32, torch.float64, torch.int64)
NAMES = ("a.weight", "b.bias", "n.running_mean", "n.running_var", "n.num_batches_tracked", "z")


def example() -> dict[str, Tensor]:
    return {
        "z": torch.arange(3.0),
        "n.running_var": torch.tensor([4.0, 5.0]),
        "n.num_batches_tracked": torch.tensor(7),
        "a.weight": torch.arange(4.0).reshape(2, 2) + 10,
        "n.running_mean": torch.tensor([8.0, 9.0]),
        "ids": torch.arange(2),
    }


def test_tensors_of_a_type_lie_together_parameters_first_each_kind_in_the_order_of_names() -> None:
    layout = Layout.of(example())
    assert set(layout.runs) == {
        ("a.weight", "z", "n.running_mean", "n.running_var"),
        ("ids", "n.num_batches_tracked"),
    }
    assert [stretch.names for stretch in layout.stretches[""]] == [("a.weight", "z"), ("ids",)]


@pytest.mark.parametrize("kept", [FlatModel.copy_of, dict])
@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("running_mean", [[8, 9]]),
        ("running_var", [[4, 5]]),
        ("num_batches_tracked", [[7]]),
        ("", [[10, 11, 12, 13, 0, 1, 2], [0, 1]]),
    ],
)
def test_numbers_of_a_kind_are_found_in_their_stretches(
    kept: Callable[[Weights], Weights], kind: str, numbers: list[list[int]]
) -> None:
    model = kept(example())
    stretches = Layout.of(model).stretches[kind]
    assert [numbers_in(model, stretch).tolist() for stretch in stretches] == numbers


def test_a_kind_that_does_not_fit_into_one_run_has_several_stretches() -> None:
    half = torch.empty(2**17)
    names = ("a.weight", "b.weight", "n.running_mean", "n.running_var", "o.running_var")
    stretches = Layout.of(dict.fromkeys(names, half)).stretches
    assert [s.names for s in stretches[""]] == [("a.weight", "b.weight")]
    assert [s.names for s in stretches["running_var"]] == [("n.running_var",), ("o.running_var",)]
    assert [(s.start, s.stop) for s in stretches["running_var"]] == [(2**17, 2**18), (0, 2**17)]


def test_large_tensors_lie_alone_and_small_ones_up_to_a_megabyte_together() -> None:
    large, half = torch.empty(2**19), torch.empty(2**17)
    runs = Layout.of({"a": large, "b": half, "c": half, "d": half, "e": large}).runs
    assert runs == [("a",), ("b", "c"), ("d",), ("e",)]


def test_models_of_a_kind_share_one_layout_whatever_their_numbers() -> None:
    other = {name: tensor + 1 for name, tensor in example().items()}
    assert Layout.of(example()) is Layout.of(other) is FlatModel.copy_of(other).layout


@pytest.mark.parametrize(("number", "name"), [(0, "b"), (1, "b"), (2, "d"), (4, "d"), (5, "e")])
def test_a_number_of_a_run_has_the_name_of_its_tensor_and_empty_ones_have_none(
    number: int, name: str
) -> None:
    sizes = {"a": 0, "b": 2, "c": 0, "d": 3, "e": 1, "f": 0}
    layout = Layout.of({each: torch.empty(size) for each, size in sizes.items()})
    (stretch,) = layout.stretches[""]
    assert layout.name_at(stretch, number) == name


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.tuples(st.lists(st.integers(0, 3), max_size=4), st.sampled_from(DTYPES)),
        min_size=1,
    )
)
def test_a_flat_model_has_the_tensors_that_it_is_a_copy_of(
    kinds: dict[str, tuple[list[int], torch.dtype]],
) -> None:
    model: Weights = {name: torch.randn(shape).mul(9).to(dtype) for name, (shape, dtype) in kinds.items()}
    flat = FlatModel.copy_of(model)
    assert list(flat) == list(model)
    assert all(flat[name].equal(model[name]) and flat[name].dtype == model[name].dtype for name in model)
    assert all(numbers_of(flat, run).equal(numbers_of(model, run)) for run in flat.layout.runs)


@pytest.mark.parametrize("shapes", [[(2, 3)], [(2, 3), (4,)]])
def test_a_flat_model_lives_apart_from_what_it_is_a_copy_of(shapes: list[tuple[int, ...]]) -> None:
    model = {str(number): torch.ones(shape) for number, shape in enumerate(shapes)}
    flat = FlatModel.copy_of(model)
    for tensor in model.values():
        tensor.zero_()
    assert all(bool((tensor == 1).all()) for tensor in flat.values())


def test_kernels_of_a_convolution_lie_with_their_channels_last_and_are_copied_as_they_lie() -> None:
    kernels = torch.arange(12.0).reshape(1, 3, 2, 2)
    numbers = [0.0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    assert in_order(kernels).tolist() == numbers
    assert in_shape(in_order(kernels), kernels.shape).equal(kernels)
    turned = kernels.contiguous(memory_format=torch.channels_last)
    assert in_order(turned).data_ptr() == turned.data_ptr()
    (run,) = Layout.of({"kernels": kernels}).runs
    assert numbers_of({"kernels": kernels}, run).tolist() == numbers
    assert FlatModel.copy_of({"kernels": turned})["kernels"].stride() == turned.stride()


def test_how_a_kernel_lies_does_not_depend_on_its_type() -> None:
    kernels = torch.arange(2**18).reshape(2**14, 4, 2, 2)
    lies = [in_order(kernels.to(dtype)).long() for dtype in DTYPES]
    assert lies[0].equal(lies[1])
    assert lies[1].equal(lies[2])


def test_a_kernel_too_large_for_a_run_lies_as_in_a_file() -> None:
    kernels = torch.randn(2**17, 1, 3, 3).to(memory_format=torch.channels_last).expand(-1, 2, -1, -1)
    kept = FlatModel.copy_of({"kernels": kernels})["kernels"]
    assert kept.equal(kernels)
    assert kept.is_contiguous()
    assert in_shape(in_order(kernels), kernels.shape).equal(kernels)


def test_odd_strides_are_laid_out_as_they_look() -> None:
    turned = torch.arange(6.0).reshape(2, 3).T
    patches = torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last)
    flat = FlatModel.copy_of({"turned": turned, "patches": patches})
    assert flat["turned"].equal(turned)
    assert flat["patches"].equal(patches)


@pytest.mark.parametrize(
    ("name", "kind", "running"),
    [
        ("layer.0.running_mean", "running_mean", True),
        ("layer.0.running_var", "running_var", True),
        ("layer.0.num_batches_tracked", "num_batches_tracked", False),
        ("running_mean.weight", "", False),
        ("head.bias", "", False),
    ],
)
def test_what_a_normalisation_layer_does_not_learn_is_known_by_its_last_name(
    name: str, kind: str, running: bool
) -> None:
    assert statistic(name) == kind
    assert is_statistic(name) is running
