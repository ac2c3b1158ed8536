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
from fedscal.compare.audit_verdict import site_audit, verdict_on
from fedscal.core import weights
from fedscal.core.convert import dump
from fedscal.core.errors import DataRefused, UsageError
from fedscal.core.files import sha256_of
from fedscal.data.benchmark import Benchmark
from fedscal.deploy.audit import audit, trained_files
from fedscal.deploy.card import card_text, run_of
from fedscal.deploy.classifier import Classifier
from fedscal.experiment.audits import ALL, Audit, SiteAudit
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
    found = Audit(
        model_sha256=Classifier.open(model).card.weights_sha256,
        sites=[site_audit(evil, [False], [True])],
        verdict="worse",
        sentence=f"Worse at {evil}.",
    )
    (model / "audit.json").write_text(json.dumps(dump(found)))
    card = card_of(model)
    places = ["classes", "sites", "warnings", "sites of the audit", "its sentence", "its warning"]
    assert card.count("&lt;script&gt;alert(1)") == len(places)
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


def answer(fixed: int, regressed: int, both: int, neither: int = 0, site: str = "north") -> SiteAudit:
    before = [False] * fixed + [True] * regressed + [True] * both + [False] * neither
    after = [True] * fixed + [False] * regressed + [True] * both + [False] * neither
    return site_audit(site, after, before)


@pytest.mark.parametrize(
    ("sites", "verdict", "said"),
    [
        (
            [answer(15, 2, 60, 23)],
            "better",
            "The adapted model is better: 75.0 % against 62.0 % of 100 images are right, p = 0.0023.",
        ),
        (
            [answer(1, 12, 20, 7)],
            "worse",
            "The adapted model is worse at north (52.5 % against 80.0 % of 40 images are right, p = 0.0034): "
            "do not use it there.",
        ),
        (
            [answer(1, 1, 20, 18)],
            "unsure",
            "No difference beyond chance can be seen: 52.5 % against 52.5 % of 40 images are right, p = 1. "
            "About 120 more labelled images would show a difference of 5 points; then audit again.",
        ),
        (
            [answer(5, 5, 300, 90)],
            "unsure",
            "No difference beyond chance can be seen: 76.2 % against 76.2 % of 400 images are right, p = 1. "
            "A difference of 5 points would probably have been seen.",
        ),
    ],
)
def test_an_audit_ends_in_a_sentence(sites: list[SiteAudit], verdict: str, said: str) -> None:
    assert verdict_on(sites) == (verdict, said)


def test_a_site_that_lost_is_named_first_though_all_together_gained() -> None:
    sites = [answer(40, 1, 20, site="south"), answer(0, 9, 20, site="north"), answer(40, 10, 40, site=ALL)]
    verdict, said = verdict_on(sites)
    assert verdict == "worse"
    assert said.startswith("The adapted model is worse at north (")
    assert said.endswith("Over all sites: 88.9 % against 55.6 % of 90 images are right, p = 2.4e-05.")


def test_without_a_source_model_nothing_is_compared() -> None:
    verdict, said = verdict_on([site_audit("ward", [True, False], [])])
    assert verdict == "unsure"
    assert "there is no source model" in said


def fake_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **hashes: list[str]) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    for key, known in hashes.items():
        rows = [{"path": "x", "sha256": sha, "even": False, "bad": None} for sha in known]
        (tmp_path / "cache" / "images" / key).mkdir(parents=True)
        (tmp_path / "cache" / "images" / key / "index.json").write_text(json.dumps(rows))


def begun_with(model: Path, **images: str) -> None:
    (model / "spec.toml").write_text('method = "fedsite"\nsource = "art"\n')
    facts = {"images": images, "data_sha256": "", "spec_sha256": ""}
    (model / "environment.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("image", "adapted_to", "source", "said"),
    [("site", 1, 0, "1 of 9 images are files that the run adapted to"), ("art", 0, 1, "with their labels")],
)
def test_images_that_the_run_had_are_known_by_their_hash(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    image: str,
    adapted_to: int,
    source: int,
    said: str,
) -> None:
    draw(tmp_path / "ward", Classifier.open(model).classes, 9)
    had = sha256_of(next((tmp_path / "ward").rglob("*.png")))
    fake_cache(monkeypatch, tmp_path, **{"site": ["0" * 64], "art": ["1" * 64], image: [had]})
    begun_with(model, site="site", art="art")
    run = run_of(Classifier.open(model))
    seen = audit(opened(model, True), None, tmp_path / "ward", trained_files(run)).seen
    assert (seen.adapted_to, seen.source) == (adapted_to, source)
    assert said in seen.sentence(9)
    begun_with(model, site="site")
    foreign = audit(
        opened(model, True), None, tmp_path / "ward", trained_files(run_of(Classifier.open(model)))
    )
    assert foreign.seen.source is None
    assert "What the source model was trained on is not known here." in foreign.seen.sentence(9)


def test_what_cannot_be_known_is_said(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cache(monkeypatch, tmp_path, k=["0" * 64])
    assert "not part of a run" in str(trained_files(None))
    begun_with(model)
    assert "no folder of images" in str(trained_files(run_of(Classifier.open(model))))
    begun_with(model, here="k", gone="other")
    assert "no longer in the cache" in str(trained_files(run_of(Classifier.open(model))))
    draw(tmp_path / "ward", Classifier.open(model).classes, 9)
    found = audit(opened(model, True), None, tmp_path / "ward", trained_files(None))
    assert "cannot be known: the model is not part of a run." in found.table().notes[1]


def test_the_report_of_a_run_shows_its_audit_and_is_written_anew(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jinja2")
    draw(tmp_path / "ward", Classifier.open(model).classes, 9)
    (model / "spec.toml").write_text('method = "fedsite"\nsource = "a"\n')
    (model / "report.html").write_text("stale")
    use.audit(model, tmp_path / "ward")
    facts = json.loads((model / "audit.json").read_text())
    assert facts["verdict"] == "unsure", "a value for programs, whatever it is"
    assert facts["sentence"] in " ".join(capsys.readouterr().out.split())
    page = (model / "report.html").read_text()
    assert "Audit on labelled images" in page
    assert facts["sentence"] in page


def test_an_export_does_not_overwrite_another_model_s_file(
    model: Path, toy_benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    use.export(model, use.Format.SAFETENSORS)
    use.export(model, use.Format.SAFETENSORS)  # the same once more
    kept = Path("last.safetensors").read_bytes()
    save(tmp_path / "other" / "model", "last", tiny_network(seed=7), toy_benchmark)
    with pytest.raises(UsageError, match=r"last\.safetensors is there already.*--out"):
        use.export(tmp_path / "other", use.Format.SAFETENSORS)
    assert Path("last.safetensors").read_bytes() == kept
    with pytest.raises(UsageError, match=r"last\.safetensors is there already.*--force"):
        use.export(tmp_path / "other", use.Format.SAFETENSORS, out=Path("last.safetensors"))
    use.export(tmp_path / "other", use.Format.SAFETENSORS, out=Path("last.safetensors"), force=True)
    assert Path("last.safetensors").read_bytes() != kept
    Path("notes.md").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.md is there already"):
        use.export(model, use.Format.SAFETENSORS, out=Path("notes.safetensors"))
    assert Path("notes.md").read_text() == "mine"
    assert not Path("notes.safetensors").exists()


@pytest.mark.parametrize(
    ("audited", "warned"), [("", True), ("unsure", True), ("better", False), ("worse", True)]
)
def test_a_doubtful_run_warns_whoever_uses_its_model_until_an_audit_knows_better(
    model: Path, audited: str, warned: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (model / "spec.toml").write_text('method = "fedsite"\n')
    delivery = {"round": 1, "verdict": "unsure", "reasons": ["more than half changed at north"]}
    facts = {"rounds": 1, "accuracy": {}, "seconds": {"adapt": 1.0}, "delivery": delivery}
    (model / "summary.json").write_text(json.dumps(facts))
    classifier = Classifier.open(model)
    if audited:
        facts = {"model_sha256": classifier.card.weights_sha256, "sites": []}
        facts |= {"verdict": audited, "sentence": "Worse at north."}
        (model / "audit.json").write_text(json.dumps(facts))
    draw(tmp_path / "ward", classifier.classes, 3)
    use.predict(model, tmp_path / "ward")
    said = capsys.readouterr().err
    assert ("warning: " in said) == warned
    expected = {"better": "", "worse": "audited: Worse at north."}
    assert expected.get(audited, f"fedscal audit {model} FOLDER") in said
