"""A user's folders, as they are on disk: check, run, predict, export."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from harness import Words, Zygote, rows, summary
from PIL import Image

from fedscal.models.store import read_card

SMALL = ["model=convnet", "image_size=32", "rounds=2", "local_epochs=1", "pretrain_epochs=8", "batch_size=16"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three domains of three classes: a bright bar at the left, in the middle or at the right."""
    root, random = tmp_path_factory.mktemp("tree"), np.random.default_rng(0)
    for domain, ground in {"Art": 20, "Clip art": 60, "Photo": 100}.items():
        for place, label in enumerate(("left", "middle", "right")):
            folder = root / domain / label
            folder.mkdir(parents=True)
            for number in range(12):
                pixels = random.integers(0, ground, (40, 48, 3), dtype=np.uint8)
                pixels[:, 16 * place : 16 * place + 16] += 120
                Image.fromarray(pixels).save(folder / f"{number}.{'png' if number % 2 else 'jpg'}")
    return root


@pytest.fixture(scope="module")
def run(fedscal: Zygote, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("folders") / "run"
    ended = fedscal("run", f"benchmark={tree}", "source=Art", *SMALL, "workers=1", "--out", out)
    assert ended.code == 0, ended.err
    return out


def test_a_run_on_folders_judges_every_domain(run: Path) -> None:
    found = summary(run)["accuracy"]["last"]
    assert found.keys() == {"Clip art", "Photo", "average"}
    card = json.loads((run / "model" / "last.json").read_text())
    assert card["classes"] == ["left", "middle", "right"]


def test_the_model_answers_for_single_files(fedscal: Zygote, run: Path, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.csv"
    ended = fedscal("predict", run, tree / "Photo" / "left", "--out", out)
    assert ended.code == 0, ended.err
    answers = list(csv.DictReader(out.open()))
    assert len(answers) == 12
    assert {row["label"] for row in answers} <= {"left", "middle", "right"}


def test_a_folder_of_classes_trains_a_source_model_and_domains_have_to_be_named(
    fedscal: Zygote, tree: Path, tmp_path: Path
) -> None:
    words = [*SMALL, "pretrain_epochs=1", "--json", "--out"]
    alone = fedscal("pretrain", "--data", tree / "Art", *words, tmp_path / "alone")
    assert alone.code == 0, alone.err
    card = json.loads((tmp_path / "alone" / "model.json").read_text())
    assert (card["source"], card["classes"]) == ("Art", ["left", "middle", "right"])
    several = fedscal("pretrain", "--data", tree, *words, tmp_path / "several")
    assert several.code == 2
    assert "give source=Art or Clip art or Photo" in several.err


def test_an_audit_compares_with_the_source_model_and_the_card_tells_of_it(
    fedscal: Zygote, run: Path, tree: Path, tmp_path: Path
) -> None:
    ended = fedscal("audit", run, tree / "Photo", "--json")
    assert ended.code == 0, ended.err
    (site,) = json.loads(ended.out)["sites"]
    assert (site["site"], site["images"]) == ("Photo", 36)
    low, high = site["adapted"]["interval_95"]
    assert low < site["adapted"]["accuracy"] < high or site["adapted"]["right"] in (0, 36)
    exported = fedscal("export", run, "--format", "safetensors", "--out", tmp_path / "given.safetensors")
    assert exported.code == 0, exported.err
    card = (tmp_path / "given.md").read_text()
    assert "Audit on labelled images" in card
    assert summary(run)["weights_sha256"] in card
    assert json.loads((run / "model" / "source.json").read_text())["weights_sha256"] in card


def test_broken_files_are_refused_or_skipped(fedscal: Zygote, tree: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(tree, tmp_path / "tree"))
    (root / "Photo" / "left" / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    words = [f"benchmark={root}", "source=Art", *SMALL, "workers=1", "--quiet", "--no-report"]
    refused = fedscal("run", *words, "--out", tmp_path / "refused")
    assert refused.code == 3
    assert "1 of 37 files cannot be used" in refused.error
    assert "cut.jpg" in refused.error
    assert not (tmp_path / "refused" / "spec.toml").exists()
    assert fedscal("data", "check", root).code == 3
    assert fedscal("run", *words, "on_bad=skip", "--out", tmp_path / "skipped").code == 0


def test_a_source_without_class_folders_is_refused(fedscal: Zygote, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "tree" / "plain").mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (9, 9)).save(tmp_path / "tree" / "plain" / f"{number}.png")
    (tmp_path / "tree" / "Photo").symlink_to(tree / "Photo")
    words = [f"benchmark={tmp_path / 'tree'}", "source=plain", *SMALL, "workers=1", "--quiet"]
    ended = fedscal("run", *words, "--out", tmp_path / "run")
    assert ended.code == 3
    assert "has no labels" in ended.error


def test_domains_with_other_classes_are_refused_with_the_difference(
    fedscal: Zygote, tree: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(tree, tmp_path / "tree"))
    shutil.rmtree(root / "Photo" / "middle")
    ended = fedscal("run", f"benchmark={root}", "source=Art", *SMALL, "--out", tmp_path / "run")
    assert ended.code == 3
    assert "Photo lacks middle" in ended.error


def test_a_given_model_adapts_to_sites_without_labels(fedscal: Zygote, tree: Path, tmp_path: Path) -> None:
    """The practitioner's path: train here, adapt there, use the result; the sites have no class folders."""
    model, sites, out = tmp_path / "model", tmp_path / "sites", tmp_path / "run"
    words = [f"benchmark={tree}", "source=Art", "model=convnet", "image_size=32", "pretrain_epochs=8"]
    assert fedscal("pretrain", *words, "--out", model).code == 0
    for site, domain in {"hospital": "Photo", "lab": "Clip art"}.items():
        (sites / site).mkdir(parents=True)
        for number, path in enumerate(sorted((tree / domain).rglob("*.png"))):
            shutil.copy(path, sites / site / f"{number}.png")
    given: Words = [
        f"source_model={model}",
        f"clients={sites}",
        "rounds=2",
        "local_epochs=1",
        "participation=1",
    ]
    ended = fedscal("run", *given, "workers=1", "--out", out)
    assert ended.code == 0, ended.err
    found = summary(out)
    assert found["accuracy"] == {}, "no labels, no accuracy"
    assert set(rows(out)[-1]["clients"]) == {"hospital", "lab"}
    assert json.loads((out / "model" / "last.json").read_text())["classes"] == ["left", "middle", "right"]
    assert fedscal("predict", out, sites / "lab").code == 0
    ended = fedscal("export", out, "--format", "safetensors", "--out", tmp_path / "m.safetensors")
    assert ended.code == 0, ended.err


def test_sites_whose_folders_are_no_classes_of_the_model_are_read_without_labels_and_that_is_said(
    fedscal: Zygote, tree: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    words = [f"benchmark={tree}", "source=Art", "model=convnet", "image_size=32", "pretrain_epochs=8"]
    assert fedscal("pretrain", *words, "--out", model).code == 0
    folder = tmp_path / "sites" / "lab" / "upside down"
    folder.mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(folder / "1.png")
    given: Words = [f"source_model={model}", f"clients={tmp_path / 'sites'}", "--out", tmp_path / "run"]
    ended = fedscal("run", *given)
    assert ended.code == 0, ended.err
    said = "no folder in lab is called like a class of the model: read without labels"
    assert said in " ".join((ended.out + ended.err).split())


def test_sites_need_a_model(fedscal: Zygote, tree: Path, tmp_path: Path) -> None:
    ended = fedscal("run", f"clients={tree}", "--out", tmp_path / "run")
    assert ended.code == 2
    assert "source_model=MODEL" in ended.error


def test_init_writes_a_recipe_that_runs(fedscal: Zygote, tree: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    assert fedscal("init", tree, "--out", recipe).code == 0
    assert recipe.read_text().startswith("# ")
    words: Words = [recipe, *SMALL, "pretrain_steps=0", "trunk=trained", "clients_per_domain=1"]
    words += ["workers=1", "--quiet"]
    assert fedscal("run", *words, "--no-report", "--out", tmp_path / "run").code == 0
    again = fedscal("init", tree, "--out", recipe)
    assert again.code == 2
    assert "is there already" in again.error


def test_init_on_sites_asks_for_a_model(fedscal: Zygote, tmp_path: Path) -> None:
    (tmp_path / "sites" / "a").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "sites" / "a" / "1.png")
    assert fedscal("init", tmp_path / "sites", "--out", tmp_path / "r.toml").code == 0
    assert 'source_model = "MODEL"' in (tmp_path / "r.toml").read_text()
    ended = fedscal("run", tmp_path / "r.toml", "--out", tmp_path / "run")
    assert ended.code == 4
    assert "there is no run or model MODEL" in ended.error


def test_decoding_is_shown_unless_quiet(fedscal: Zygote, tree: Path, tmp_path: Path) -> None:
    words = [f"benchmark={tree}", "source=Art", "image_size=40", "pretrain_epochs=1", "rounds=1"]
    loud = fedscal("pretrain", *words)
    assert loud.code == 0, loud.err
    assert [line for line in loud.out.splitlines() if line.startswith("decoding")] == [
        "decoding Art",
        "decoding Clip art",
        "decoding Photo",
    ]
    again = fedscal("pretrain", *words)
    assert "decoding" not in again.out, "it is decoded once"
    quiet = fedscal("pretrain", *words, "image_size=41", "--quiet")
    assert (quiet.code, quiet.out) == (0, "")


def test_a_comparison_decodes_before_its_cells(fedscal: Zygote, tree: Path, tmp_path: Path) -> None:
    words = [
        f"benchmark={tree}",
        "source=Art",
        "model=convnet",
        "image_size=42",
        "pretrain_epochs=1",
        "rounds=1",
    ]
    more: Words = ["local_epochs=1", "methods=source-only", "--out", tmp_path / "grid"]
    ended = fedscal("compare", *words, *more)
    assert ended.code == 0, ended.err
    assert ended.out.index("decoding Photo") < ended.out.index("1 runs, 0 finished already")


def test_a_source_that_the_folder_does_not_have_is_refused_before_any_run(
    fedscal: Zygote, tree: Path, tmp_path: Path
) -> None:
    words = [f"benchmark={tree}", "sources=Art,Atr", "methods=source-only", "pretrain_epochs=1"]
    ended = fedscal("compare", *words, "--out", tmp_path / "grid")
    assert (ended.code, "source=Atr: no such domain" in ended.error) == (2, True)
    assert not list(tmp_path.glob("grid/*"))


def test_another_size_of_images_is_another_source_model(fedscal: Zygote, tree: Path) -> None:
    words = [f"benchmark={tree}", "source=Art", "pretrain_epochs=1", "--json"]
    found = [json.loads(fedscal("pretrain", *words, f"image_size={side}").out) for side in (32, 48)]
    assert found[0]["path"] != found[1]["path"]


def test_domainnet_with_lists_and_chosen_classes(fedscal: Zygote, tree: Path, tmp_path: Path) -> None:
    """Class folders of which the lists name a part, and of that the file of classes a part again."""
    root = tmp_path / "domainnet"
    for domain in ("Art", "Photo"):
        shutil.copytree(tree / domain, root / domain)
        for part, numbers in {"train": range(8), "test": range(8, 11)}.items():
            lines = [
                f"{domain}/{label}/{n}.{'png' if n % 2 else 'jpg'} {index}"
                for index, label in enumerate(("left", "middle", "right"))
                for n in numbers
            ]
            (root / f"{domain}_{part}.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "two.txt").write_text("right\nleft\n")
    checked = json.loads(fedscal("data", "check", root, "--classes", tmp_path / "two.txt", "--json").out)
    assert checked["counts"] == {"Art": {"left": 11, "right": 11}, "Photo": {"left": 11, "right": 11}}
    words = [f"benchmark={root}", "source=Art", f"classes={tmp_path / 'two.txt'}", *SMALL, "workers=1"]
    ended = fedscal("run", *words, "--quiet", "--no-report", "--out", tmp_path / "run")
    assert ended.code == 0, ended.err
    assert read_card(str(tmp_path / "run")).classes == ("left", "right")
    images = [row["images"] for row in rows(tmp_path / "run")[0]["clients"].values()]
    assert sum(images) == 22
