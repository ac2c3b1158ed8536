"""From a table's name and a folder to runs, to numbers, to files; results are written by hand, not run."""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import layouts
from fedscal.core.errors import DataRefused, UsageError
from fedscal.data.registry import benchmark
from fedscal.methods import METHODS
from fedscal.paper import tables
from fedscal.paper.claims import claims
from fedscal.paper.datasets import DATASETS, MARK, Copy, locate
from fedscal.paper.result import Result, flaws, is_vit_small
from fedscal.paper.scores import Score, scores
from fedscal.paper.tables import SYSTEMS, TABLES, Block, Entry, datasets_of, distinct_cells, entries, table

Plan = Callable[..., tuple[list[Entry], dict[str, Copy]]]


@pytest.fixture(scope="module")
def office_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "OfficeHome"
    return layouts.empty_tree(root, dict.fromkeys(layouts.OFFICE_HOME, 4), ["Bed", "Mug"])


@pytest.fixture
def plan(office_home: Path, tmp_path: Path) -> Plan:
    """Return the entries of a table on the folder, and its copies."""

    def make(name: str, **given: Any) -> tuple[list[Entry], dict[str, Copy]]:
        copies = locate(datasets_of(table(name)), [office_home])
        return entries(table(name), copies, given, tmp_path), copies

    return make


def finish(entry: Entry, accuracy: Mapping[str, float], **facts: Any) -> None:
    """Write the summary of a run."""
    found = {**accuracy, "average": -1.0}  # averages are recomputed, so this must not be seen
    folder = entry.cell.directory.path
    folder.mkdir(parents=True)
    moments = dict.fromkeys(("source_only", "last", "selected", "best"), found)
    (folder / "summary.json").write_text(
        json.dumps({"rounds": 100, "seconds": {"adapt": 1.0}, "accuracy": moments, **facts})
    )


def pick(found: list[Score], method: str, source: str, target: str) -> Score:
    (score,) = [s for s in found if (s.method, s.source, s.target) == (method, source, target)]
    return score


# ---- the data


def test_folders_are_known_however_they_are_written(tmp_path: Path) -> None:
    names = {"art": 1, "Clip Art": 1, "PRODUCT": 1, "real_world": 1}
    root = layouts.empty_tree(tmp_path, names, ["Bed"])
    folders = locate([DATASETS["office-home"]], [root])["office-home"].folders
    assert dict(folders) == {
        "Art": "art",
        "Clipart": "Clip Art",
        "Product": "PRODUCT",
        "RealWorld": "real_world",
    }


def test_a_folder_with_other_domains_is_refused_with_the_names_needed(tmp_path: Path) -> None:
    layouts.empty_tree(tmp_path / "pets", {"cats": 1, "dogs": 1}, ["x"])
    with pytest.raises(
        DataRefused, match=r"holds the folders cats, dogs; needed: Art, .*RealWorld \(Office-H"
    ):
        locate([DATASETS["office-home"]], [tmp_path / "pets"])
    with pytest.raises(DataRefused, match="there is no folder"):
        locate([DATASETS["office-home"]], [tmp_path / "nowhere"])


@pytest.mark.parametrize(("name", "inside"), [("office-31", "images"), ("domainnet", "")])
def test_the_published_folders_have_no_flaw_and_one_image_less_is_one(
    tmp_path: Path, name: str, inside: str
) -> None:
    data = DATASETS[name]
    counts = {domain.lower(): images or 20 for domain, images in data.domains.items()}
    root = layouts.empty_tree(tmp_path / "all", counts, data.classes, inside)
    copy = locate([data], [root])[name]
    assert list(copy.flaws(benchmark(str(root)))) == []
    fewer = root.rename(tmp_path / "less")  # a folder is read once a process, so it needs another name
    next((fewer / next(iter(counts))).rglob("19.jpg")).unlink()
    found = list(locate([data], [fewer])[name].flaws(benchmark(str(fewer))))
    assert found == (["Amazon of Office-31 has 2,817 images, amazon here 2,816"] if inside else [])


def test_drawn_images_are_a_flaw_even_in_the_published_numbers(tmp_path: Path) -> None:
    data = DATASETS["domainnet"]
    root = layouts.empty_tree(tmp_path, dict.fromkeys(layouts.DOMAINNET, 20), data.classes)
    (root / MARK).touch()
    assert list(locate([data], [root])["domainnet"].flaws(benchmark(str(root)))) == [
        "the images are drawings for a rehearsal and not DomainNet's ten classes of FedBN"
    ]


def test_other_classes_and_other_domains_are_flaws(tmp_path: Path) -> None:
    names = {**dict.fromkeys(layouts.DOMAINNET, 2), "photo": 2}
    root = layouts.empty_tree(tmp_path, names, ["bird", "cow"])
    assert list(locate([DATASETS["domainnet"]], [root])["domainnet"].flaws(benchmark(str(root)))) == [
        "DomainNet's ten classes of FedBN has no domain photo",
        "DomainNet's ten classes of FedBN has 10 classes, the folder 2, without feather, headphones, "
        "ice_cream, teapot, tiger and 4 more",
    ]


# ---- the runs


def test_a_table_is_every_method_from_every_source_with_three_seeds_first_seed_first(plan: Plan) -> None:
    runs, _ = plan("office-home")
    assert len(runs) == 9 * 4 * 3
    assert [entry.cell.spec.seed for entry in runs] == sorted(entry.cell.spec.seed for entry in runs)
    spec = next(entry.cell.spec for entry in runs if entry.source == "RealWorld")
    assert (spec.source, spec.rounds, spec.clients_per_domain, spec.lr) == ("Real World", 60, 5, 0.03)
    ladd = next(entry.cell.spec for entry in runs if entry.variant.title == "LADD")
    assert ladd.adaptation == "self-training"


def test_tables_share_their_runs(plan: Plan) -> None:
    main, ablation = (
        {c.directory.path for c in distinct_cells(plan(n)[0])} for n in ("office-home", "ablation")
    )
    assert len(ablation) == 4 * 4 * 3
    assert len(ablation - main) == 2 * 4 * 3  # neither and both are rows of the main table


def test_a_figure_is_drawn_from_the_runs_that_it_needs_and_no_others(plan: Plan) -> None:
    names = ("figure-label-gaps", "figure-entropies", "figure-tau", "figure-tsne", "figure-errors")
    paths = {name: {cell.directory.path for cell in distinct_cells(plan(name)[0])} for name in names}
    assert [len(paths[name]) for name in names] == [24, 12, 72, 24, 12]
    main = {cell.directory.path for cell in distinct_cells(plan("office-home")[0])}
    assert {name: len(found - main) for name, found in paths.items() if found - main} == {"figure-tau": 60}


def test_data_that_are_not_given_are_not_run(plan: Plan) -> None:
    runs, _ = plan("bmd")
    assert {entry.block.dataset for entry in runs} == {"office-home"}
    assert {entry.cell.spec.adaptation for entry in runs} == {"bmd"}
    assert len(runs) == 2 * len(distinct_cells(runs))  # the main text's table and the supplement's


def test_a_part_of_a_table_can_be_run(plan: Plan) -> None:
    runs, _ = plan("office-home", methods="fedloa, fedscal", sources="art,real-world", seeds="4", rounds="2")
    assert {(e.variant.title, e.source) for e in runs} == {
        (method, source) for method in ("FedLoA", "FedSCAl") for source in ("Art", "RealWorld")
    }
    assert {(e.cell.spec.seed, e.cell.spec.rounds) for e in runs} == {(4, 2)}


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("office-home", {"benchmark": "digits"}, "given by --data"),
        ("office-home", {"adaptation": "bmd"}, "what the table is about"),
        ("ablation", {"lambda_local": "2"}, "what the table is about"),
        ("office-home", {"methods": "fedsca"}, "did you mean 'fedscal'"),
        ("office-home", {"sources": "Clipart,Webcam"}, "sources=Webcam: no source of the table"),
        ("office-home", {"rounds": "1,2"}, "spans several runs"),
        ("office-home", {"rouns": "1"}, "did you mean 'rounds'"),
    ],
)
def test_what_would_make_another_table_of_it_is_refused(
    plan: Plan, name: str, given: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        plan(name, **given)


def test_the_nearest_table_is_named() -> None:
    with pytest.raises(UsageError, match="did you mean 'office-home'"):
        table("officehome")


# ---- what may be called a reproduction


def test_a_few_images_and_other_settings_are_no_reproduction(plan: Plan) -> None:
    given = {"rounds": "2", "threads": "2", "seeds": "0,1", "mu": "0.01"}
    runs, copies = plan("office-home", **given)
    found = flaws(runs, copies, given)
    assert found[0].startswith("Office-Home has 65 classes, the folder 2")
    assert found[1] == "Art of Office-Home has 2,427 images, Art here 4"
    assert found[5:] == ["rounds=2 instead of 60", "mu=0.01 instead of 1", "2 of at least 3 seeds"]


def test_a_rows_own_keys_are_no_flaw(plan: Plan) -> None:
    runs, copies = plan("ablation")
    assert all("of Office-Home has" in flaw or "65 classes" in flaw for flaw in flaws(runs, copies, {}))


def test_the_papers_network_is_known_by_its_shape(tmp_path: Path) -> None:
    usual = "hf:some/vit-small"
    assert is_vit_small(usual, usual)
    assert not is_vit_small("convnet", usual)
    assert not is_vit_small(f"hf:{tmp_path}", usual)
    small = {"hidden_size": 384, "num_hidden_layers": 12, "patch_size": 16}
    (tmp_path / "config.json").write_text(json.dumps(small))
    assert not is_vit_small(f"hf:{tmp_path}", usual), "it holds no weights"
    (tmp_path / "model.safetensors").touch()
    assert is_vit_small(f"hf:{tmp_path}", usual)
    (tmp_path / "config.json").write_text(json.dumps({**small, "hidden_size": 192}))
    assert not is_vit_small(f"hf:{tmp_path}", usual)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("vit_small_patch16_224@pretrained", True),
        ("vit_small_patch16_224.augreg_in1k@pretrained", True),
        ("vit_small_patch16_224@weights.safetensors", True),
        ("vit_small_patch16_224", False),  # random weights
        ("vit_small_patch16_224@", False),
        ("vit_small_patch16_224.augreg_in1k", False),
        ("vit_small_patch16_224_gap@pretrained", False),  # another network
        ("vit_tiny_patch16_224@pretrained", False),
    ],
)
def test_timms_network_counts_only_with_weights(name: str, counts: bool) -> None:
    assert is_vit_small(f"timm:{name}", "hf:some/vit-small") == counts


# ---- the numbers


def test_ours_stand_beside_the_papers(plan: Plan) -> None:
    runs, copies = plan("office-home", methods="fedloa", seeds="0,1")
    (block,) = table("office-home")
    for entry in runs:
        bonus = 2.0 * entry.cell.spec.seed
        others = [folder for folder in layouts.OFFICE_HOME if folder != entry.cell.spec.source]
        if entry.source != "Product":
            finish(entry, {folder: 60.0 + 10 * place + bonus for place, folder in enumerate(others)})
    found = scores(block, runs, copies)
    assert len(found) == 9 * (4 * 4 + 1)
    clipart = pick(found, "FedLoA", "Art", "Clipart")
    assert (clipart.paper, clipart.mean()) == (56.69, 61.0)  # (60 + 62) / 2
    assert clipart.deviation() == pytest.approx(2**0.5)
    assert clipart.difference() == pytest.approx(61.0 - 56.69)
    average = pick(found, "FedLoA", "Art", "average")
    assert average.mean() == pytest.approx(71.0)  # (60 + 70 + 80) / 3, and 2 more for the other seed
    assert average.paper == pytest.approx((56.69 + 83.56 + 86.38) / 3)
    assert pick(found, "FedLoA", "RealWorld", "Product").mean() == 81.0
    assert pick(found, "FedLoA", "Product", "average").ours["last"] == []
    assert pick(found, "FedLoA", "all", "average").ours["last"] == []  # Product has no run
    assert pick(found, "FedSCAl", "Art", "Clipart").paper == 61.22


def made(block: Block, method: str, source: str, paper: float | None, ours: float) -> Score:
    return Score(block, method, source, "average", paper, paper, {"last": [ours], "best": [ours + 1.0]})


def test_claims_are_judged_only_where_all_is_there() -> None:
    (block,) = TABLES["office-home"]
    found = [made(block, "FedLoA", "Art", 75.0, 74.0), made(block, "FedLoA", "Clipart", 83.0, 80.0)]
    found += [made(block, "FedSCAl", "Art", 79.0, 78.0), made(block, "FedSCAl", "Clipart", 86.0, 79.0)]
    assert claims(found) == [
        "main-office-home: FedSCAl is better than FedLoA on 1 of 2 sources, by +1.50 points on average.",
        "main-office-home: 2 of 4 averages are within 2 points of the paper's in the last round, 3 in the "
        "best one.",
    ]
    found[3] = Score(block, "FedSCAl", "Clipart", "average", 86.0, 86.0, {"last": []})
    assert claims(found) == []


# ---- the files


@pytest.mark.parametrize("reasons", [[], ["too few images", "rounds=1 instead of 60"]])
def test_every_file_says_whether_it_is_a_reproduction(plan: Plan, tmp_path: Path, reasons: list[str]) -> None:
    runs, copies = plan("office-home", methods="fedloa", sources="Art", seeds="0")
    finish(runs[0], {"Clipart": 60.0, "Product": 70.0, "Real World": 80.0})
    result = Result("office-home", runs, copies, reasons)
    text, data, page = (path.read_text() for path in result.write(tmp_path))
    heading = "NOT A REPRODUCTION: too few images; rounds=1 instead of 60."
    name = "void_difference" if reasons else "difference"
    assert [heading in form for form in (text, data, page)] == (
        [True, False, True] if reasons else [False] * 3
    )
    assert json.loads(data)["not_a_reproduction"] == reasons
    assert json.loads(data)["reproduction"] is not bool(reasons)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    assert len(rows) == 9 * 17
    row = next(r for r in rows if (r["method"], r["source"], r["target"]) == ("FedLoA", "Art", "Clipart"))
    assert (row["printed"], row["paper"], row["ours"], row["seeds"]) == ("56.69", "56.69", "60.0", "1")
    assert float(row[name]) == pytest.approx(3.31)
    empty = next(r for r in rows if (r["method"], r["target"]) == ("FedSCAl", "Clipart"))
    assert (empty["paper"], empty["ours"], empty[name]) == ("61.22", "", "")
    assert "1 of 1 run finished." in page


def test_reconstructions_are_marked_in_every_form(plan: Plan, tmp_path: Path) -> None:
    runs, copies = plan("office-home", methods="ladd", sources="Art", seeds="0")
    result = Result("office-home", runs, copies, [])
    text, data, page = (path.read_text() for path in result.write(tmp_path))
    marked = {row[0] for part in result.tables() for row in part.rows if row[0].endswith("†")}
    assert marked == {"FedWCA †", "LADD †", "DualAdapt †"}
    footnote = f"† FedWCA: {METHODS['fedwca'].caveat}; LADD: {METHODS['ladd'].caveat}; "
    assert footnote in " ".join(result.notes())
    assert footnote in page.replace("&#39;", "'")
    assert "LADD †" in page
    assert footnote in " ".join(json.loads(data)["notes"])
    for rows in (json.loads(data)["rows"], list(csv.DictReader(text.splitlines()))):
        assert {row["method"]: row["caveat"] for row in rows} == {
            METHODS[name].title: METHODS[name].caveat for name in SYSTEMS
        }


def test_a_table_without_reconstructions_has_no_dagger(plan: Plan, tmp_path: Path) -> None:
    runs, copies = plan("ablation")
    for path in Result("ablation", runs, copies, []).write(tmp_path):
        assert not any(sign in path.read_text() for sign in ("†", r"\u2020"))


def test_a_rehearsal_says_so_in_every_file_and_in_their_names(plan: Plan, tmp_path: Path) -> None:
    runs, copies = plan("office-home", methods="fedloa", sources="Art", seeds="0")
    result = Result("office-home", runs, copies, ["drawn images"], rehearsed=True)
    paths = result.write(tmp_path)
    assert [path.name for path in paths] == [f"rehearsal-office-home.{e}" for e in ("csv", "json", "html")]
    text, data, page = (path.read_text() for path in paths)
    assert text.startswith("# REHEARSAL, NOT A REPRODUCTION: drawn images.\n")
    rows = list(csv.DictReader(text.splitlines()[1:]))
    assert {row["table"] for row in rows} == {"rehearsal-main-office-home"}
    assert json.loads(data)["rehearsal"] is True
    assert {row["table"] for row in json.loads(data)["rows"]} == {"rehearsal-main-office-home"}
    assert "<h1>Rehearsal of office-home" in page
    assert "REHEARSAL, NOT A REPRODUCTION" in page


def test_the_systems_are_the_paper_s_and_not_the_package_s() -> None:
    """Fixed by name: a method that is added to the package must move nothing here."""
    tree = ast.parse(Path(tables.__file__).read_text())
    (value,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "SYSTEMS"
    ]
    assert ast.literal_eval(value) == SYSTEMS
    assert len(SYSTEMS) == 9
