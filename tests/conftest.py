"""What tests share: every benchmark built once, and a toy benchmark that is small enough to run."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import once
from hypothesis import settings
from torch import Tensor

import icon_packages
import toys
from fedscal.data import cache
from fedscal.data.benchmark import Benchmark
from fedscal.data.registry import BENCHMARKS
from fedscal.models.registry import MODELS

# A busy machine is no failure, and a failure must come back: no deadlines, no luck.
settings.register_profile("calm", deadline=None, derandomize=True)
settings.load_profile("calm")

pytest_plugins = ["shared_runs"]  # the fixtures of tests/integration


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have slow tests: one that begins last would end long after all others."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


_DOMAINS = ("plain", "dim", "dark")


@pytest.fixture(scope="session")
def built_benchmarks(shared: Path) -> Path:
    """Build every registered benchmark once, icons from generated drawings; return the cache directory."""
    directory = shared / "benchmarks"

    def build() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FEDSCAL_CACHE", str(directory))
            icon_packages.write_archives()
            for row in BENCHMARKS.values():
                cache.prepare(row)

    return once(directory, build)


@pytest.fixture
def shared_cache(built_benchmarks: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use the session's cache in this test."""
    monkeypatch.setenv("FEDSCAL_CACHE", str(built_benchmarks))
    return built_benchmarks


def _build(domain: str) -> tuple[Tensor, Tensor]:
    number = _DOMAINS.index(domain)
    return toys.blobs(30, seed=number, brightness=120 - 30 * number)


@pytest.fixture
def toy_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """Register ``benchmark=toy`` and ``model=tiny``: three domains of 30 images, in a cache of their own."""
    row = Benchmark(
        name="toy",
        title="Toy",
        classes=("top", "middle", "bottom"),
        domains=_DOMAINS,
        shape=(1, toys.SIDE, toys.SIDE),
        views=toys.NoiseViews(),
        build=_build,
        version=1,
        packages=(),
        extra="toys",
        defaults={
            "source": "plain",
            "model": "tiny",
            "rounds": 2,
            "local_epochs": 1,
            "clients_per_domain": 2,
        },
    )
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(BENCHMARKS, "toy", row)
    monkeypatch.setitem(MODELS, "tiny", lambda shape, classes: toys.tiny_network())
    return row


@pytest.fixture
def sites_go_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every site have changed too many answers, but not all of them together: each keeps the source."""
    monkeypatch.setattr("fedscal.experiment.delivery._SITE_AGREES", 2.0)  # every site
    monkeypatch.setattr("fedscal.experiment.delivery._AGREE", 0.0)  # but not the run
    monkeypatch.setattr("fedscal.experiment.metrics._FEWEST_IMAGES", 1)
