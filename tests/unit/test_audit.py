"""An audit on labelled images, and the model card that shows it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from fedscal.cli import use
from fedscal.core import weights
from fedscal.core.errors import DataRefused
from fedscal.data.benchmark import Benchmark
from fedscal.deploy.audit import audit
from fedscal.deploy.card import card_text, run_of
from fedscal.deploy.classifier import Classifier
from fedscal.experiment.audits import ALL
from fedscal.models.network import Network
from fedscal.models.store import ModelCard, model_files
from toys import SIDE, blobs, tiny_network


class Bands(torch.nn.Module):
    """Tells a toy's class by the brightest pair of rows, or always says the first class."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.right = right

    def forward(self, pixels: Tensor) -> Tensor:
        bands = pixels.float().view(len(pixels), 3, -1).mean(dim=2)
        return bands if self.right else torch.tensor([[1.0, 0, 0]]).expand(len(pixels), 3)


def save(folder: Path, name: str, network: Network, benchmark: Benchmark) -> None:
    card = ModelCard(
        model="tiny", shape=(1, SIDE, SIDE), classes=benchmark.classes, benchmark="toy", source=""
    )
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in model_files(name, weights.snapshot(network.state_dict()), card).items():
        (folder / file).write_bytes(data)


@pytest.fixture
def model(toy_benchmark: Benchmark, tmp_path: Path) -> Path:
    for name, seed in (("last", 0), ("source", 1)):
        save(tmp_path / "run" / "model", name, tiny_network(seed=seed), toy_benchmark)
    return tmp_path / "run"


def draw(folder: Path, classes: tuple[str, ...], count: int, seed: int = 0) -> None:
    images, labels = blobs(count, seed)
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        place = folder / classes[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(place / f"{number}.png")


def opened(model: Path, right: bool) -> Classifier:
    classifier = Classifier.open(model)
    classifier.module.forward = Bands(right).forward  # type: ignore[method-assign]
    return classifier


def card_of(place: Path) -> str:
    classifier = Classifier.open(place)
    return card_text(classifier, run_of(classifier))


def test_right_answers_are_counted_site_by_site(model: Path, tmp_path: Path) -> None:
    good, poor = opened(model, True), opened(model, False)
    for site, count in (("north", 9), ("south", 12)):
        draw(tmp_path / "labelled" / site, good.classes, count, seed=count)
    north, south, both = audit(good, poor, tmp_path / "labelled").sites
    first = [int((blobs(count, count)[1] == 0).sum()) for count in (9, 12)]
    assert (north.site, south.site, both.site) == ("north", "south", ALL)
    assert (both.images, both.adapted.right) == (21, 21)
    assert (both.fixed, both.regressed) == (21 - sum(first), 0)
    assert south.adapted.accuracy == 100
    assert south.adapted.interval_95 == pytest.approx((75.75, 100), abs=0.01)  # 12 of 12
    assert south.source is not None
    assert south.source.right == first[1]
    assert both.cells()[3] == "100.0 % [84.5, 100.0]"


def test_folders_named_like_classes_are_one_site(model: Path, tmp_path: Path) -> None:
    good = opened(model, True)
    draw(tmp_path / "ward", good.classes, 9)
    (only,) = audit(good, None, tmp_path / "ward").sites
    assert (only.site, only.images, only.source, only.p) == ("ward", 9, None, None)
    assert only.cells()[2] == only.cells()[4] == ""


def test_a_folder_that_is_no_class_and_a_broken_file_are_named(model: Path, tmp_path: Path) -> None:
    good = opened(model, True)
    draw(tmp_path / "ward", good.classes, 6)
    broken = tmp_path / "ward" / good.classes[0] / "x.png"
    broken.write_bytes(b"")
    with pytest.raises(DataRefused, match=r"x\.png: empty"):
        audit(good, None, tmp_path / "ward")
    broken.unlink()
    (tmp_path / "ward" / "unheard").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "ward" / "unheard" / "1.png")
    with pytest.raises(DataRefused, match="'unheard' is no class of the model"):
        audit(good, None, tmp_path / "ward")


def test_the_card_holds_no_markup_of_names_that_users_chose(model: Path, toy_benchmark: Benchmark) -> None:
    evil = "<script>alert(1)</script> ![x](http://evil.example) |\n# x"
    renamed = replace(toy_benchmark, classes=(evil, "b", "c"))
    save(model / "model", "last", tiny_network(seed=0), renamed)
    (model / "spec.toml").write_text('method = "<b>"\n')
    said = {"clients": {evil: {"domain": evil, "images": 9}}, "participants": [], "warnings": [evil]}
    (model / "metrics.jsonl").write_text(json.dumps({"round": 0, **said}) + "\n")
    card = card_of(model)
    assert card.count("&lt;script&gt;alert(1)") == 3, "in the classes, the sites and the warnings"
    assert "<" not in card
    assert "[x](" not in card.replace("\\[", "")
    assert "\n# x" not in card


def test_the_command_keeps_its_numbers_and_the_card_shows_them(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes = Classifier.open(model).classes
    draw(tmp_path / "ward", classes, 9)
    (model / "spec.toml").write_text(
        'method = "fedwca"\nsource = "a"\nadaptation = "shot"\nbenchmark = "toy"\n'
    )
    clients = {"ward-0": {"domain": "ward", "images": 9, "entropy": 0.5, "effective_classes": 2.5}}
    said = {"clients": clients, "participants": [], "warnings": ["predictions collapse"]}
    lines = [json.dumps({"round": index, **said}) for index in (0, 1)]
    (model / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    use.audit(model, tmp_path / "ward", as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert facts == json.loads((model / "audit.json").read_text())
    (site,) = facts["sites"]
    assert site["images"] == 9
    assert {"source", "adapted", "fixed", "regressed", "p"} <= site.keys()
    card = card_of(model)
    assert ", ".join(classes) in card
    assert facts["model_sha256"] in card
    assert "| ward-0 | 9 | 0 | 0.50 | 0.50 | 2.5 |" in card, "no column of accuracies without labels"
    assert f"{site['adapted']['accuracy']:.1f} %" in card
    assert "also sends the share of each cluster model in its blend" in card
    assert "- the run warned: predictions collapse" in card
    selected = card_of(model / "model" / "source.safetensors")
    assert "Audit" not in selected.partition("## Limits")[0], "it was not this model's"


@pytest.mark.parametrize(
    ("made", "title", "cells"),
    [
        (0, "Accuracy of the source model", "| ward | 60.0 % | 60.0 % | 0.0 same |"),
        (1, "Accuracy in round 1 of 2", "| ward | 60.0 % | 70.0 % | +10.0 better |"),
        (2, "Accuracy in the last round", "| ward | 60.0 % | 55.0 % | \N{MINUS SIGN}5.0 WORSE |"),
    ],
)
def test_a_card_tells_how_its_own_model_did(model: Path, made: int, title: str, cells: str) -> None:
    place = model / "model" / "last.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "round": made}))
    (model / "spec.toml").write_text('method = "fedscal"\nsource = "a"\n')
    client = {"domain": "ward", "images": 9, "entropy": 0.5}
    lines = [
        {
            "round": index,
            "accuracy": {"server": {"ward": right, "average": right}},
            "clients": {"w-0": client},
        }
        for index, right in enumerate((60.0, 70.0, 55.0))
    ]
    (model / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert title in card_of(model)
    assert cells in card_of(model)


def test_a_model_alone_has_a_card_without_results(model: Path) -> None:
    card = card_of(model / "model" / "source.safetensors")
    assert "## Results" not in card
    assert "## Limits" in card
