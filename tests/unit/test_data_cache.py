"""The cache: built once and whole, verified at every reading, labels apart."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedscal.core import files
from fedscal.core.errors import DataRefused, UsageError
from fedscal.data import cache
from fedscal.data.benchmark import Benchmark
from fedscal.data.labels import labels
from fedscal.data.registry import BENCHMARKS, benchmark
from fedscal.data.views import AugmentedViews
from toys import tensor_of


class CountedBuild:
    """Builds four small images a domain, and remembers for which domains it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, domain: str) -> tuple[Tensor, Tensor]:
        self.asked.append(domain)
        pixels = torch.arange(16, dtype=torch.uint8).view(4, 1, 2, 2) + len(domain)
        return pixels, torch.tensor([0, 1, 1, 0])


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path))
    return Benchmark(
        name="toy",
        title="Toy",
        classes=("left", "right"),
        domains=("sea", "land"),
        shape=(1, 2, 2),
        views=AugmentedViews((0.5,), (0.5,)),
        build=CountedBuild(),
        version=3,
        packages=("torch",),
        extra="toys",
        defaults={},
    )


def builds(benchmark: Benchmark) -> list[str]:
    assert isinstance(benchmark.build, CountedBuild)
    return benchmark.build.asked


def flip_a_bit(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_what_was_built_is_read_back_and_built_once(toy: Benchmark, tmp_path: Path) -> None:
    assert cache.prepare(toy) == tmp_path / "data" / "toy-v3"
    for domain in toy.domains:
        pixels, truth = CountedBuild()(domain)
        assert torch.equal(tensor_of(cache.images(toy, domain)), pixels)
        assert torch.equal(tensor_of(labels(toy, domain)), truth)
    assert builds(toy) == ["sea", "land"]


def test_the_manifest_says_what_and_from_where(toy: Benchmark) -> None:
    directory = cache.prepare(toy)
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["classes"] == ["left", "right"]
    assert manifest["packages"] == {"torch": torch.__version__}
    assert manifest["images"] == {"sea": 4, "land": 4}
    hashed = {name: files.sha256((directory / name).read_bytes()) for name in manifest["sha256"]}
    assert manifest["sha256"] == hashed
    assert {path.name for path in directory.iterdir()} == {*hashed, "manifest.json"}


def test_images_are_read_without_the_labels(toy: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.prepare(toy)
    opened: list[str] = []
    plain = os.open

    def heard(path: Path, *how: int) -> int:
        opened.append(Path(path).name)
        return plain(path, *how)

    monkeypatch.setattr(os, "open", heard)
    cache.images(toy, "sea")
    assert set(opened) == {"manifest.json", "sea.images.safetensors"}


@pytest.mark.parametrize("name", ["sea.images.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["bit", "truncated", "deleted"])
def test_damage_is_named_and_mended_never_used(
    toy: Benchmark, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = cache.prepare(toy) / name
    if damage == "bit":
        # In the manifest the last digit of the content digest, in the images the last pixel.
        flip_a_bit(path, -4 if name == "manifest.json" else -1)
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        path.unlink()
    assert cache.status(toy).damaged == (name,)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(tensor_of(cache.images(toy, "sea")), CountedBuild()("sea")[0])
    assert name in caplog.text
    assert builds(toy) == ["sea", "land"] * 2
    assert cache.status(toy).damaged == ()


def test_damaged_labels_are_mended_too(toy: Benchmark, caplog: pytest.LogCaptureFixture) -> None:
    flip_a_bit(cache.prepare(toy) / "land.labels.safetensors")
    assert tensor_of(labels(toy, "land")).tolist() == [0, 1, 1, 0]
    assert "land.labels.safetensors" in caplog.text


def test_a_disk_that_keeps_nothing_is_refused(toy: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "write_dir", lambda path, contents: None)
    with pytest.raises(DataRefused, match="Check the disk"):
        cache.images(toy, "sea")
    with pytest.raises(DataRefused, match="Check the disk"):
        cache.content_digest(toy)


def test_many_readers_at_once_build_once(toy: Benchmark) -> None:
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda _: tensor_of(cache.images(toy, "land")), range(8)))
    assert builds(toy) == ["sea", "land"]
    assert all(torch.equal(pixels, read[0]) for pixels in read)


def test_a_killed_build_leaves_no_half_cache(toy: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes = files.write_bytes

    def die_at_land(path: Path, data: bytes) -> None:
        if path.name.startswith("land"):
            os._exit(9)  # as a kill would: no handler, no clean-up, the lock still held
        write_bytes(path, data)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(files, "write_bytes", die_at_land)
        cache.prepare(toy)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not cache.status(toy).built
    assert len(cache.images(toy, "land")) == 4
    assert cache.status(toy).damaged == ()


def test_status_of_what_is_not_built_builds_nothing(toy: Benchmark) -> None:
    assert cache.status(toy).built is False
    assert builds(toy) == []
    directory = cache.prepare(toy)
    status = cache.status(toy)
    assert status.built
    assert status.images == {"sea": 4, "land": 4}
    assert status.bytes == sum(path.stat().st_size for path in directory.iterdir())


def test_the_content_digest_follows_the_content_and_not_the_packages(toy: Benchmark) -> None:
    digest = cache.content_digest(toy)
    assert cache.content_digest(replace(toy, version=4, packages=("numpy",))) == digest
    other = replace(
        toy, version=5, build=lambda domain: (CountedBuild()(domain)[0] + 1, torch.zeros(4).long())
    )
    assert cache.content_digest(other) != digest


def test_a_missing_package_names_the_extra(toy: Benchmark) -> None:
    with pytest.raises(
        UsageError, match=r"^benchmark=\w+ needs no-such-package: pip install 'fedscal\[toys\]'$"
    ):
        cache.prepare(replace(toy, packages=("no-such-package",)))
    assert not cache.status(toy).built


def test_an_unknown_domain_is_refused_with_a_guess(toy: Benchmark) -> None:
    with pytest.raises(UsageError, match="did you mean 'land'"):
        cache.images(toy, "lamd")


PIXELS, TRUTH = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("pixels", "truth"),
    [
        (PIXELS.float(), TRUTH),
        (PIXELS[:, :, :1], TRUTH),
        (PIXELS, TRUTH.int()),
        (PIXELS, TRUTH + 1),
        (PIXELS, TRUTH[:1]),
    ],
)
def test_a_builder_that_breaks_its_word_is_refused(toy: Benchmark, pixels: Tensor, truth: Tensor) -> None:
    with pytest.raises(DataRefused, match="toy/sea"):
        cache.prepare(replace(toy, build=lambda domain: (pixels, truth)))


def test_groups_have_a_file_of_their_own_only_where_there_are_groups(toy: Benchmark) -> None:
    assert cache.groups(toy, "sea") is None
    grouped = replace(toy, version=9, groups=lambda domain: torch.tensor([3, 3, len(domain), 1]))
    assert tensor_of(cache.groups(grouped, "land")).tolist() == [3, 3, 4, 1]
    assert (cache.prepare(grouped) / "sea.groups.safetensors").is_file()
    assert not list(cache.prepare(toy).glob("*groups*"))
    assert cache.content_digest(grouped) != cache.content_digest(toy)


@pytest.mark.parametrize("wrong", [torch.tensor([0, 1, 2]), torch.tensor([0.0, 1, 2, 3])])
def test_groups_that_do_not_fit_the_images_are_refused(toy: Benchmark, wrong: Tensor) -> None:
    with pytest.raises(DataRefused, match="toy/sea"):
        cache.prepare(replace(toy, groups=lambda domain: wrong))


def test_other_tensors_under_an_old_name_and_version_are_not_served_from_its_cache(
    toy: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"count": 1}

    def build(domain: str) -> tuple[Tensor, Tensor]:
        return torch.zeros(held["count"], 1, 2, 2, dtype=torch.uint8), torch.zeros(held["count"]).long()

    monkeypatch.setitem(BENCHMARKS, "toy", replace(toy, packages=(), build=build))
    assert cache.image_count(benchmark("toy"), "sea") == 1
    held["count"] = 200
    assert cache.image_count(benchmark("toy"), "sea") == len(cache.images(benchmark("toy"), "sea")) == 200
    held["count"] = 1
    assert cache.image_count(benchmark("toy"), "sea") == 1


def test_what_packages_decide_or_the_maker_names_is_not_built_to_be_found(
    toy: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in (toy, replace(toy, packages=(), content="release 1")):
        monkeypatch.setitem(BENCHMARKS, "toy", row)
        assert benchmark("toy") == row
    assert builds(toy) == []
    assert cache.prepare(replace(toy, content="1")) != cache.prepare(replace(toy, content="2"))
