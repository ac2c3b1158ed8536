"""What somebody's own images are run with unless he says otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedscal.core.errors import UsageError
from fedscal.data.folders.benchmark import PHOTOGRAPHS
from fedscal.data.views import AugmentedViews
from fedscal.experiment import spec as spec_module
from fedscal.experiment.spec import RunSpec
from layouts import empty_tree


@pytest.fixture
def photos(tmp_path: Path) -> str:
    return str(empty_tree(tmp_path / "photos", {"a": 4, "b": 4}, ["x", "y"]))


@pytest.fixture(params=[True, False], ids=["pretrained", "none installed"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(spec_module, "pretrained_is_installed", lambda: request.param)
    return bool(request.param)


def test_a_folder_is_run_with_our_method_and_the_best_network_that_is_there(
    photos: str, installed: bool
) -> None:
    spec = RunSpec.make(benchmark=photos, source="a")
    assert (spec.method, spec.adaptation, spec.statistics, spec.select) == (
        *("fedsite", "ucon", "site", "agreement"),
    )
    network = (spec.model, spec.trunk, spec.image_size, spec.hyper["source_share"], spec.pretrain_dropout)
    expected = (
        ("efficientnet-lite0", "frozen", 160, 0.7, 0.7) if installed else ("convnet", "trained", 64, 0.5, 0)
    )
    assert network == expected
    assert spec.framing == "whole"


def test_a_recipe_of_a_run_makes_the_same_run(photos: str, installed: bool) -> None:
    spec = RunSpec.make(benchmark=photos, source="a")
    assert RunSpec.make(**spec.all_keys()).digest() == spec.digest()


def test_a_method_of_the_paper_is_run_as_the_paper_does(photos: str, installed: bool) -> None:
    spec = RunSpec.make(benchmark=photos, source="a", method="fedscal")
    assert (spec.model, spec.trunk, spec.image_size, spec.framing) == ("convnet", "trained", 0, "paper")
    assert (spec.statistics, spec.select, spec.pretrain_views) == ("shared", "infomax", "weak")


def test_a_network_of_ones_own_keeps_its_size(photos: str, installed: bool) -> None:
    spec = RunSpec.make(benchmark=photos, source="a", model="hf:/models/vit")
    assert (spec.trunk, spec.image_size, spec.framing) == ("trained", 0, "whole")


def test_a_benchmark_is_no_folder(installed: bool) -> None:
    assert RunSpec.make(benchmark="digits", source="font").method == "fedscal"


def test_whole_images_are_seen_to_their_edges() -> None:
    image = torch.full((1, 3, 40, 40), 200, dtype=torch.uint8)
    image[:, :, :2] = 0  # a black upper edge
    plain, whole = (views.evaluate(image)[0, 0] for views in (_bare(), _bare().shown_whole()))
    assert plain.shape == whole.shape == (32, 32)
    assert plain.min() > 0.7, "the middle of the image has no edge"
    assert whole[0].max() < 0.4


def test_beyond_a_whole_image_lies_the_colour_of_its_edge() -> None:
    white = torch.full((64, 3, 32, 32), 255, dtype=torch.uint8)
    views = _bare().shown_whole()
    seen = views.strong(white, torch.Generator().manual_seed(0))
    black = _bare().strong(white, torch.Generator().manual_seed(0))
    assert (black < 0.01).any(), "rotated and shifted views show what lies beyond"
    dark = (seen.flatten(1).amin(dim=1) < 0.01).float().mean()
    assert dark < (black.flatten(1).amin(dim=1) < 0.01).float().mean()


def _bare() -> AugmentedViews:

    return replace(PHOTOGRAPHS, mean=(0.0,) * 3, std=(1.0,) * 3, side=32)


def test_a_method_that_describes_images_is_refused_where_features_stand_for_them() -> None:
    with pytest.raises(UsageError, match="ladd describes clients by their images"):
        RunSpec.make(benchmark="icons-64", source="solid", method="ladd", trunk="frozen")
