"""What every row of BENCHMARKS and MODELS must keep, and that the shipped recipes are runs."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
import torch

from fedscal.compare.grid import union
from fedscal.core import weights
from fedscal.data import cache
from fedscal.data.benchmark import Benchmark
from fedscal.data.labels import labels
from fedscal.data.registry import BENCHMARKS
from fedscal.experiment.spec import RunSpec, all_options, read_recipe
from fedscal.models.network import predict
from fedscal.models.registry import MODELS, build_network
from toys import tensor_of

DOMAINS = [
    pytest.param(row, domain, id=f"{row.name}-{domain}")
    for row in BENCHMARKS.values()
    for domain in row.domains
]
RECIPES = sorted(
    entry.name
    for entry in resources.files("fedscal.experiment.recipes").iterdir()
    if entry.name.endswith(".toml")
)


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize(("row", "domain"), DOMAINS)
def test_a_domain_holds_what_its_benchmark_declares(row: Benchmark, domain: str) -> None:
    images, truth = tensor_of(cache.images(row, domain)), tensor_of(labels(row, domain))
    assert images.dtype == torch.uint8
    assert images.shape[1:] == row.shape
    assert images.float().std() > 0
    assert truth.dtype == torch.int64
    assert len(truth) == len(images) > 0
    assert set(truth.tolist()) == set(range(len(row.classes))), "every class is there, and no other"
    assert len(torch.unique(truth[: len(truth) // 2])) == len(row.classes), "images are not sorted by class"


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize(("row", "domain"), DOMAINS)
def test_views_are_finite_leave_the_images_and_repeat_with_their_generator(
    row: Benchmark, domain: str
) -> None:
    images = tensor_of(cache.images(row, domain))[:16]
    before = images.clone()

    def view(name: str, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        found: torch.Tensor = getattr(row.views, name)(images, generator)
        return found

    plain = row.views.evaluate(images)
    assert torch.equal(plain, row.views.evaluate(images))
    for name in ("weak", "strong"):
        first = view(name, 1)
        assert first.dtype == plain.dtype == torch.float32
        assert first.shape == plain.shape == images.shape
        assert torch.isfinite(first).all()
        assert torch.equal(first, view(name, 1))
        assert not torch.equal(first, view(name, 2))
        assert not torch.equal(first, plain)
    assert torch.equal(images, before)


@pytest.mark.parametrize("row", BENCHMARKS.values(), ids=BENCHMARKS.keys())
def test_a_benchmarks_row_is_complete_and_makes_a_run(row: Benchmark) -> None:
    assert BENCHMARKS[row.name] is row
    assert row.title.strip()
    assert row.extra.strip()
    assert len(row.domains) == len(set(row.domains)) > 1
    assert len(row.classes) == len(set(row.classes)) > 1
    assert not any("/" in domain for domain in row.domains), "domains name clients and files"
    assert row.defaults.keys() <= all_options().keys()
    for source in row.domains:
        assert RunSpec.make(benchmark=row.name, source=source).source == source


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("row", BENCHMARKS.values(), ids=BENCHMARKS.keys())
def test_every_model_classifies_every_benchmark_and_can_be_written(name: str, row: Benchmark) -> None:
    network = build_network(name, row.shape, len(row.classes))
    images = torch.randint(
        256, (2, *row.shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    found = predict(network, images, row.views.evaluate)
    assert found.logits.shape == (2, len(row.classes))
    assert len(found.features) == 2
    assert torch.isfinite(found.logits).all()
    state = weights.snapshot(network.state_dict())
    assert weights.digest(weights.from_bytes(weights.to_bytes(state), name)) == weights.digest(
        network.state_dict()
    )
    found.logits.requires_grad_(False)
    network.freeze_head()
    trainable = {id(p) for p in network.parameters() if p.requires_grad}
    assert {id(p) for group in network.parameter_groups(0.1) for p in group["params"]} == trainable


@pytest.mark.parametrize("name", RECIPES)
def test_every_shipped_recipe_is_a_run_or_a_grid_of_runs(name: str) -> None:
    with resources.as_file(resources.files("fedscal.experiment.recipes") / name) as path:
        keys = read_recipe(Path(path))
    specs = union(keys)
    assert keys
    assert specs
    if "grid" not in keys and not any(isinstance(value, list) for value in keys.values()):
        assert {key: RunSpec.make(**keys).all_keys()[key] for key in keys} == keys


def test_there_are_recipes() -> None:
    assert RECIPES


@pytest.mark.parametrize("declared", RunSpec.make().flat(), ids=str)
def test_every_key_of_a_run_has_help_and_takes_its_own_value(declared: str) -> None:
    found = all_options()[declared]
    value = RunSpec.make().flat()[declared]
    assert found.text.strip()
    assert found.parse(value) == found.parse(str(value)) == value
