"""Open a model, ask it about files, hand it on as ONNX."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedscal.core import weights
from fedscal.core.errors import DataRefused, ModelRefused
from fedscal.data.benchmark import Benchmark
from fedscal.deploy.classifier import Classifier
from fedscal.deploy.onnx import export_onnx, parity
from fedscal.deploy.predict import ask, files_at, write_csv
from fedscal.models.store import ModelCard, find_model, model_files
from toys import SIDE, blobs, tiny_network


@pytest.fixture
def model(toy_benchmark: Benchmark, tmp_path: Path) -> Path:
    """A run directory with the model of its last round."""
    card = ModelCard(
        model="tiny", shape=(1, SIDE, SIDE), classes=toy_benchmark.classes, benchmark="toy", source=""
    )
    folder = tmp_path / "run" / "model"
    folder.mkdir(parents=True)
    for name, data in model_files("last", weights.snapshot(tiny_network().state_dict()), card).items():
        (folder / name).write_bytes(data)
    return tmp_path / "run"


def test_a_run_directory_a_folder_and_a_file_name_the_same_model(model: Path) -> None:
    file = model / "model" / "last.safetensors"
    assert find_model(model) == find_model(model / "model") == find_model(file) == file


def _named(folder: Path, *names: str) -> Path:
    (folder / "model").mkdir(parents=True)
    for name in names:
        (folder / "model" / f"{name}.safetensors").write_bytes(b"")
    return folder


def test_of_a_run_with_a_model_for_each_client_one_must_be_named(tmp_path: Path) -> None:
    own = [f"last-site-{number}" for number in range(10)]
    with pytest.raises(ModelRefused, match=r"name one of last-site-0\.safetensors, .* and 2 more"):
        find_model(_named(tmp_path, "source", *own))


def test_of_a_run_that_keeps_clients_models_beside_it_the_shared_one_is_taken(tmp_path: Path) -> None:
    run = _named(tmp_path, "source", "last-site-0", "last-server")
    assert find_model(run).stem == "last-server"


def test_a_run_that_rejected_its_last_models_delivers_the_one_it_chose(tmp_path: Path) -> None:
    assert find_model(_named(tmp_path, "source", "selected", "rejected")).stem == "selected"


def test_a_place_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="holds no model"):
        Classifier.open(tmp_path)


def test_a_damaged_model_is_refused(model: Path) -> None:
    path = model / "model" / "last.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ModelRefused, match="damaged"):
        Classifier.open(model)


def test_a_backbone_that_has_moved_can_be_named(model: Path) -> None:
    card = model / "model" / "last.json"
    card.write_text(card.read_text().replace('"tiny"', '"hf:/gone/vit"'))
    with pytest.raises(ModelRefused, match="hf:/gone/vit cannot be loaded"):
        Classifier.open(model)
    assert Classifier.open(model, model="tiny").shape == (1, SIDE, SIDE)


def test_answers_are_those_of_the_network_and_broken_files_are_named(model: Path, tmp_path: Path) -> None:
    images, _ = blobs(3)
    folder = tmp_path / "new"
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image[0].numpy()).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"")
    classifier = Classifier.open(model)
    out = io.StringIO()
    assert write_csv(ask(classifier, files_at(folder)), out) == 1
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    expected = classifier.probabilities(images)
    assert [Path(row["file"]).name for row in rows] == ["0.png", "1.png", "2.png", "broken.png"]
    assert [row["label"] for row in rows[:3]] == [classifier.classes[i] for i in expected.argmax(dim=1)]
    assert [float(row["confidence"]) for row in rows[:3]] == pytest.approx(
        expected.amax(dim=1).tolist(), abs=1e-5
    )
    assert rows[3]["problem"] == "empty"


def test_a_folder_without_images_is_named(model: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataRefused, match="holds no image files"):
        files_at(tmp_path / "nothing")


def test_an_export_is_the_model(model: Path, tmp_path: Path) -> None:
    classifier, (images, _) = Classifier.open(model), blobs(70)
    assert export_onnx(classifier, tmp_path / "model.onnx", images) < 1e-4
    onnx = pytest.importorskip("onnx")
    said = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert said["classes"].split("\n") == list(classifier.classes)
    classifier.module.network.head.weight.data.mul_(1.1)
    with pytest.raises(ModelRefused, match="differs from"):
        parity(classifier, (tmp_path / "model.onnx").read_bytes(), images)
    assert np.isfinite(classifier.probabilities(images).numpy()).all()
    assert torch.is_grad_enabled()
