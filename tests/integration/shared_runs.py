"""One cache and one finished run of each kind for all integration tests, whichever process runs them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from flower_world import SITES, World, make_world
from harness import TINY, Copy, Zygote, once, program

if TYPE_CHECKING:
    from flower_processes import Federation
    from local_grid import LocalGrid


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A directory that all pytest-xdist workers of this session share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "fedscal-shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def cache(shared: Path) -> Path:
    """The session's cache: the digits and a source model of one epoch."""
    folder = shared / "cache"

    def build() -> None:
        ended = program(folder, "pretrain", "source=mnist", "pretrain_epochs=1")
        assert ended.code == 0, ended.err

    return once(folder, build)


@pytest.fixture(scope="session")
def fedscal(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """The program, forked after its imports; ``fedscal("run", ...)`` returns how it ended."""
    zygote = Zygote(shared / "cache", tmp_path_factory.mktemp("zygote"))
    yield zygote
    zygote.close()


@pytest.fixture(scope="session")
def tiny_runs(shared: Path, fedscal: Zygote) -> dict[str, Path]:
    """A finished run on tiny of each method that is killed and damaged; not to be changed."""
    found = {}
    for method in ("fedscal", "fedmoon"):
        folder = shared / method

        def make(folder: Path = folder, method: str = method) -> None:
            ended = fedscal("run", *TINY, f"method={method}", "--out", folder, "--no-report")
            assert ended.code == 0, ended.err

        found[method] = once(folder, make)
    return found


@pytest.fixture
def copy_of(tmp_path: Path) -> Copy:
    """Return a copy of a run that a test may damage."""

    def copy(run: Path) -> Path:
        return Path(shutil.copytree(run, tmp_path / run.name))

    return copy


@pytest.fixture(scope="session")
def world(shared: Path, fedscal: Zygote) -> World:
    """Three sites with a folder of small images each, a source model, and what runs on one machine give."""
    folder = shared / "world"
    return World(once(folder, lambda: make_world(folder, fedscal)), fedscal)


@pytest.fixture
def grid(world: World, tmp_path: Path, fedscal: Zygote, monkeypatch: pytest.MonkeyPatch) -> LocalGrid:
    """Three sites in this process, each with a state folder of its own."""
    from local_grid import LocalGrid, new_service  # needs the extra, which most tests do not

    monkeypatch.setenv("FEDSCAL_CACHE", str(fedscal.cache))
    return LocalGrid({n: new_service(world, tmp_path, site) for n, site in enumerate(SITES, 1)})


@pytest.fixture(scope="module")
def machines(world: World, fedscal: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server and its three sites as real processes, one federation for the tests of a file."""
    from flower_processes import federation  # needs the extra, which most tests do not

    with federation(world, tmp_path_factory.mktemp("machines"), fedscal.cache) as found:
        yield found
