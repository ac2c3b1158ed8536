"""``fedscal reproduce`` on small trees laid out as the paper's data sets are on disk."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import pytest
import torch
from harness import Words, Zygote
from typer.testing import CliRunner

import layouts
from fedscal.cli import app
from fedscal.compare import execute as compare
from fedscal.data.folders.benchmark import SUBSETS
from fedscal.experiment.run import adapt
from fedscal.paper import rehearsal
from fedscal.paper.tables import FIGURES, TABLES, WHOLE

SMALL = [
    "workers=1",
    "image_size=32",
    "rounds=1",
    "local_epochs=1",
    "pretrain_epochs=1",
    "batch_size=8",
    "clients_per_domain=1",
]
PART = ["methods=source-only,fedloa", "seeds=0", "--jobs", "1"]
HERE = "import fedscal.compare.execute as c, fedscal.experiment.run as r\n"
HERE += "one = lambda cell, running: r.adapt(cell.spec, cell.directory.path) and None\n"
"""Runs without the seconds that a process of its own takes to start."""
MORE_THAN_TEN = ("aircraft_carrier", *SUBSETS["domainnet-10"])
ENDINGS = ("csv", "json", "html")


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a small tree in the layout of each data set."""
    base = tmp_path_factory.mktemp("trees")
    return {
        "office-home": layouts.drawn_tree(base / "OfficeHomeDataset", layouts.OFFICE_HOME),
        "office-31": layouts.drawn_tree(base / "office31", layouts.OFFICE_31, inside="images"),
        "domainnet": layouts.drawn_tree(
            base / "DomainNet", layouts.DOMAINNET, images=2, classes=MORE_THAN_TEN
        ),
    }


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a ViT of two layers, as transformers saves it."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 24}
    folder = tmp_path_factory.mktemp("vit")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.ViTConfig(**sizes, image_size=32, patch_size=16)
        transformers.ViTModel(config).save_pretrained(folder)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "table", "source"),
    [
        ("office-home", "main-office-home", "RealWorld"),
        ("office-31", "supp-office-31", "DSLR"),
        ("domainnet", "main-domainnet", "Real"),
    ],
)
def test_a_table_has_every_row_and_column_of_the_paper(
    trees: dict[str, Path],
    vit: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    table: str,
    source: str,
) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compare, "_run", lambda cell, _: adapt(cell.spec, cell.directory.path) and None)
    words = [*SMALL, *PART, f"model=hf:{vit}", f"sources={source}", "--out", str(tmp_path)]
    ended = CliRunner().invoke(app, ["reproduce", name, "--data", str(trees[name]), *words])
    assert ended.exit_code == 0, ended.output
    found = {(r["method"], r["source"], r["target"]): r for r in rows_of(tmp_path / f"{name}.csv")}
    text = (resources.files("fedscal.paper") / "results.csv").read_text()
    printed = [row for row in csv.DictReader(text.splitlines()) if row["table"] == table]
    assert printed
    for row in printed:
        ours = found[row["method"], row["source"], row["target"]]
        assert float(ours["printed"]) == float(row["accuracy"])
        assert bool(ours["ours"]) == ((row["method"], row["source"]) == ("FedLoA", source))
    assert found["Source only", source, "average"]["ours"]
    for form in (ended.output, *((tmp_path / f"{name}.{end}").read_text() for end in ("csv", "html"))):
        assert "NOT A REPRODUCTION: " in form
        assert "is not a ViT-S/16 with trained weights; batch_size=8 instead of 64" in form.replace("\n", " ")
    assert json.loads((tmp_path / f"{name}.json").read_text())["reproduction"] is False


@pytest.mark.long
def test_killed_between_runs_and_repeated_it_comes_to_the_same_files(
    fedscal: Zygote, trees: dict[str, Path], tmp_path: Path
) -> None:
    words: Words = ["reproduce", "office-31", "--data", trees["office-31"], *SMALL, *PART, "model=convnet"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert fedscal(*words, "--out", whole, before=HERE + "c._run = one").code == 0
    stop = f"""{HERE}
import os, pathlib
done, table = [], pathlib.Path({str(killed / "office-31.json")!r})
def _run(cell, running):
    done.append(cell)
    while len(done) > 2:  # killed when the table with the second run is written
        "2 of 6 runs" in table.read_text() and os.kill(os.getpid(), 9)
    return one(cell, running)
c._run = _run
"""
    assert fedscal(*words, "--out", killed, before=stop).code == -signal.SIGKILL
    assert len(list((killed / "cells").glob("*/summary.json"))) == 2
    halfway = json.loads((killed / "office-31.json").read_text())
    assert "2 of 6 runs finished." in halfway["notes"], "the table is written after every run"
    again = fedscal(*words, "--out", killed, before=HERE + "c._run = one")
    assert "6 runs, 2 finished already, 1 at a time" in again.out
    for ending in ENDINGS:
        assert (killed / f"office-31.{ending}").read_bytes() == (whole / f"office-31.{ending}").read_bytes()
    no_more = fedscal(
        *words, "--out", killed, "--json", before="import fedscal.compare.execute as c; c._run = None"
    )
    assert json.loads(no_more.out) == json.loads((whole / "office-31.json").read_text())


@pytest.mark.slow
def test_figures_are_drawn_from_finished_runs(
    fedscal: Zygote, trees: dict[str, Path], tmp_path: Path
) -> None:
    words: Words = ["reproduce", "figures", "--data", trees["office-home"], *SMALL, "model=convnet"]
    words += ["sources=Art", "seeds=0", "methods=fedloa,fedscal", "--jobs", "1", "--out", tmp_path]
    ended = fedscal(*words, before=HERE + "c._run = one", timeout=240)
    assert ended.code == 0, ended.err
    first = (tmp_path / "figures.html").read_text()
    for title in (
        "source Art: average accuracy by method",
        "pseudo-label accuracy of FedSCAl minus",
        "average accuracy over tau_init",
        "Entropy of two clients&#39; predictions: ",
        "wrong labels of client and server",
        "t-SNE of the features: Clipart-0, source Art, seed 0",
    ):
        assert title in first
    names = {"bars", "label-gaps", "entropies", "tau", "tsne", "errors"}
    assert first.count("<svg") == len(names)
    made = {path.name for path in (tmp_path / "figures").iterdir()}
    assert made == {f"{name}.{ending}" for name in names for ending in ("svg", "pdf", "png")}
    assert "Not given by --data, so not run: DomainNet" in first
    assert fedscal(*words, "--no-run", before="import fedscal.compare.execute as c; c._run = None").code == 0
    assert (tmp_path / "figures.html").read_text() == first, "the same runs, the same drawings"
    before = (tmp_path / "figures" / "tau.pdf").read_bytes()
    words[1] = "figure-tau"
    words.remove("methods=fedloa,fedscal")
    assert fedscal(*words, before="import fedscal.compare.execute as c; c._run = None").code == 0, (
        "none is left"
    )
    alone = (tmp_path / "figure-tau.html").read_text()
    assert (alone.count("<svg"), "average accuracy over tau_init" in alone) == (1, True)
    assert (tmp_path / "figures" / "tau.pdf").read_bytes() == before


def test_an_estimate_says_hours_and_leaves_nothing(
    fedscal: Zygote, trees: dict[str, Path], tmp_path: Path
) -> None:
    words: Words = ["reproduce", "ablation", "--data", trees["office-home"], "model=convnet", "image_size=32"]
    ended = fedscal(*words, "--estimate", "--jobs", "1", "--out", tmp_path / "out")
    assert ended.code == 0, ended.err
    assert "main-ablation: server alignment" in ended.out
    assert "48 runs to do, 0 finished: about " in ended.out
    assert not (tmp_path / "out").exists()


def test_a_rehearsal_needs_no_data_and_comes_to_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a table needs is drawn and built; what it leaves cannot be taken for a table."""
    monkeypatch.setattr(compare, "_run", lambda cell, _: adapt(cell.spec, cell.directory.path) and None)
    words = ["reproduce", "office-31", "--rehearse", "--share", "0.001", "--jobs", "1"]
    words += [
        "methods=fedloa,ladd",
        "sources=DSLR",
        "pretrain_epochs=1",
        "rounds=1",
        "workers=1",
        "--out",
        str(tmp_path / "out"),
    ]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    assert "to draw for Office-31: 93 images, about " in ended.output
    assert "REHEARSAL, NOT A REPRODUCTION: drawn images" in ended.output
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {
        *("cache", "cells", "data", "model", "rehearsal.json"),
        *(f"rehearsal-office-31.{ending}" for ending in ENDINGS),
    }
    found = {(r["method"], r["source"], r["target"]): r for r in rows_of(out / "rehearsal-office-31.csv")}
    assert found["LADD", "DSLR", "Webcam"]["ours"]
    again = CliRunner().invoke(app, words)
    assert "to draw" not in again.output
    assert "2 runs, 2 finished already" in again.output
    data = ["--data", str(out / "data" / "share-0.001" / "office31")]
    real = ["reproduce", "office-31", *data, "--no-run", "model=convnet", "image_size=32"]
    refused = CliRunner().invoke(app, [*real, "--out", str(out)])
    assert "holds a rehearsal" in str(refused.exception)
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    marked = CliRunner().invoke(app, [*real, "--out", str(tmp_path / "real")])
    assert "NOT A REPRODUCTION: the images are drawings for a rehearsal" in marked.output.replace("\n", " ")


def test_the_network_is_a_small_vit_and_always_the_same(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    names = [str(rehearsal.keys(TABLES["office-31"], {}, tmp_path / place)["model"]) for place in "ab"]
    one, two = (Path(name.removeprefix("hf:")) for name in names)
    config = json.loads((one / "config.json").read_text())
    assert (config["model_type"], config["patch_size"], config["image_size"]) == ("vit", 16, 32)
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("load", "said"), [(0.2, ""), (3.14, "this machine is busy (load 3.1)")])
def test_timed_runs_are_made_one_at_a_time_and_a_busy_machine_is_named(
    trees: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, said: str
) -> None:
    asked: list[int] = []

    def execute(cells: Sequence[compare.Cell], jobs: int, *_: object) -> list[object]:
        asked.append(jobs)
        return []

    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compare, "execute", execute)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    words = ["reproduce", "cost", "--data", str(trees["office-home"]), "model=convnet", "image_size=32"]
    ended = CliRunner().invoke(app, [*words, "seeds=0", "--out", str(tmp_path / "out")])
    assert ended.exit_code == 0, ended.output
    assert asked == [1]
    assert said in ended.stderr
    assert bool(said) == ("warning" in ended.stderr)


def test_all_tables_and_figures_are_rehearsed_where_none_is_named(tmp_path: Path) -> None:
    """Every page is there at once, empty where nothing is run, and the files of none lack the mark."""
    words = ["reproduce", "--rehearse", "--share", "0.0001", "--no-run", "--json", "model=convnet"]
    ended = CliRunner().invoke(app, [*words, "sources=Art,Quickdraw,Amazon", "--out", str(tmp_path)])
    assert ended.exit_code == 0, ended.output
    documents = json.loads(ended.output)
    assert [document["table"] for document in documents] == list(WHOLE)
    assert all(document["rehearsal"] for document in documents)
    names = {f"rehearsal-{table}.{ending}" for table in WHOLE for ending in ENDINGS}
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {*names, "rehearsal.json"}


@pytest.mark.long
@pytest.mark.timeout(3700)
def test_every_table_and_figure_is_rehearsed_to_its_end(fedscal: Zygote, tmp_path: Path) -> None:
    words: Words = ["reproduce", "--rehearse", "--jobs", "1", "sources=Art,Quickdraw,Amazon", "workers=1"]
    ended = fedscal(*words, "--out", tmp_path / "out", before=HERE + "c._run = one", timeout=3600)
    assert ended.code == 0, ended.err
    for table in WHOLE:
        document = json.loads((tmp_path / "out" / f"rehearsal-{table}.json").read_text())
        done, _, runs, *_ = document["notes"][0].split()
        assert done == runs != "0"
    assert (tmp_path / "out" / "rehearsal-figures.html").read_text().count("<svg") == len(FIGURES)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "TABLE is missing: office-home, domainnet"),
        (["office-31", "--rehearse", "--data", "office-31"], 2, "leave --data away"),
        (["office-31", "--data", "office-31", "--share", "0.5"], 2, "--share is a rehearsal's"),
        (["--rehearse", "sources=Artt"], 2, "no source of the table; did you mean 'Art'"),
        (["cost", "--data", "office-home", "--jobs", "2"], 2, "one at a time: leave --jobs away"),
        (["office_home"], 2, "did you mean 'office-home'"),
        (["figure-taus"], 2, "did you mean 'figure-tau'"),
        (["office-home"], 2, "--data DIR is missing"),
        (["office-home", "--data", "office-31"], 3, "holds the folders amazon, dslr, webcam; needed: Art"),
        (["office-31", "--data", "office-31", "rouns=3"], 2, "did you mean 'rounds'"),
    ],
)
def test_what_cannot_be_a_table_is_refused_in_a_sentence(
    fedscal: Zygote, trees: dict[str, Path], tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    given = [str(trees.get(word, word)) if words[:1] != [word] or n else word for n, word in enumerate(words)]
    ended = fedscal("reproduce", *given, "--out", tmp_path / "out")
    assert ended.code == code
    assert message in ended.error
    assert not (tmp_path / "out").exists()
