"""What somebody's own images are run with unless he says otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedscal.core.errors import DataRefused, UsageError
from fedscal.data.folders.benchmark import PHOTOGRAPHS, Folder
from fedscal.data.views import AugmentedViews
from fedscal.experiment import spec as spec_module
from fedscal.experiment.experiment import load_data
from fedscal.experiment.spec import RunSpec
from fedscal.models.store import ModelCard, model_files
from fedscal.server.rounds import Schedule
from layouts import empty_tree


@pytest.fixture
def photos(tmp_path: Path) -> str:
    return str(empty_tree(tmp_path / "photos", {"a": 4, "b": 4}, ["x", "y"]))


@pytest.fixture
def toy_model(tmp_path: Path) -> Path:
    card = ModelCard(model="convnet", shape=(3, 64, 64), classes=("x", "y"), benchmark=None, source=None)
    for name, data in model_files("model", {"a": torch.zeros(1)}, card).items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


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
    network = (spec.model, spec.trunk, spec.image_size, spec.site_share, spec.pretrain_dropout)
    expected = (
        ("efficientnet-lite0", "frozen", 160, 0.9, 0.7) if installed else ("convnet", "trained", 64, 0.9, 0)
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


@pytest.mark.parametrize("method", ["fedsite", "fedscal", "loa"])
def test_up_to_ten_clients_with_images_of_their_own_all_take_part(photos: str, method: str) -> None:
    spec = RunSpec.make(benchmark=photos, source="a", method=method)
    schedule = Schedule(spec.rounds, spec.participation, spec.lr, least=spec.least_participants)
    numbers = {count: len(schedule.sample(list(map(str, range(count))), 0, 1)) for count in (2, 10, 11, 60)}
    assert numbers == {2: 2, 10: 10, 11: 10, 60: 18}


@pytest.mark.parametrize("clients", ["flower:a+b", "sites"])
def test_sites_are_run_like_folders(
    clients: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_model: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites" / "a").mkdir(parents=True)
    spec = RunSpec.make(clients=clients, source_model=str(toy_model))
    assert (spec.method, spec.statistics, spec.least_participants) == ("fedsite", "site", 10)
    assert RunSpec.make(clients=clients, source_model=str(toy_model), method="fedscal").statistics == "shared"


def test_sites_with_folders_of_years_are_read_without_labels(tmp_path: Path, toy_model: Path) -> None:
    sites = empty_tree(tmp_path / "sites", {"a": 4, "b": 4}, ["2024", "2025"])
    data = load_data(RunSpec.make(clients=str(sites), source_model=str(toy_model)))
    assert isinstance(data.folder, Folder)
    assert data.classes == ("x", "y")
    assert {file.label for files in data.folder.tree.domains.values() for file in files} == {None}


def test_sites_of_other_machines_are_not_looked_into(toy_model: Path) -> None:
    data = load_data(RunSpec.make(clients="flower:a+b", source_model=str(toy_model)))
    assert (data.domains, data.classes) == (("a", "b"), ("x", "y"))


def test_a_folder_with_classes_that_a_model_does_not_know_is_no_folder_of_sites(
    photos: str, toy_model: Path
) -> None:
    (Path(photos) / "a" / "odd").mkdir()
    (Path(photos) / "a" / "odd" / "1.jpg").touch()
    with pytest.raises(DataRefused, match="different classes"):
        load_data(RunSpec.make(clients=photos, source_model=str(toy_model)))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"clients": "nothere"}, "clients=nothere: there is no such folder"),
        ({"benchmark": "photos/nothere"}, "there is no benchmark 'photos/nothere', nor such a folder"),
    ],
)
def test_a_folder_that_is_not_there_is_called_that(keys: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RunSpec.make(**keys, source_model="model")


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


def test_epochs_that_are_asked_for_are_not_raised_to_the_methods_steps() -> None:
    assert RunSpec.make(method="fedsite").pretrain_steps > 0
    assert RunSpec.make(method="fedsite", pretrain_epochs=3).pretrain_steps == 0
    assert RunSpec.make(method="fedsite", pretrain_epochs=3, pretrain_steps=9).pretrain_steps == 9
    written = RunSpec.make(**RunSpec.make(method="fedsite", pretrain_epochs=3).all_keys())
    assert (written.pretrain_epochs, written.pretrain_steps) == (3, 0)
