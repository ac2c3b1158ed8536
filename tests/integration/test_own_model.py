"""A model of the user's own through the whole program: refused by every command unless code is allowed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness import TINY, Words, Zygote, once, same_result, summary
from PIL import Image

CODE = """
from torch import nn

def small(shape):
    made = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2] // 16, 12))
    made.backbone_rate = 1.0
    return made
"""
OWN = [*TINY, "model=mine:small", "rounds=2", "pretrain_epochs=2", "micro_batch=3"]
ALLOWED = "--allow-code"


@pytest.fixture(scope="session")
def own_run(shared: Path, fedscal: Zygote) -> Path:
    """A folder with the module ``mine`` and a finished run of it by two workers; not to be changed."""
    folder = shared / "own"

    def make() -> None:
        folder.mkdir()
        (folder / "mine.py").write_text(CODE)
        words = [*OWN, "workers=2", "participation=0.5", ALLOWED, "--quiet", "--no-report", "--out", "run"]
        ended = fedscal("run", *words, cwd=folder)
        assert ended.code == 0, ended.err

    return once(folder, make)


@pytest.mark.slow
def test_two_workers_run_it_and_a_run_resumed_with_the_flag_ends_with_the_same_bits(
    fedscal: Zygote, own_run: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(own_run, tmp_path / "copy"))
    assert summary(copy / "run")["warnings"] == []
    (copy / "run" / "summary.json").unlink()
    shutil.rmtree(copy / "run" / "checkpoints" / "round-0002")
    words = ["run", "--resume", "run", "workers=1", "--quiet", "--no-report"]
    refused = fedscal(*words, cwd=copy)
    assert (refused.code, "--allow-code" in refused.error) == (2, True)
    ended = fedscal(*words, ALLOWED, cwd=copy)
    assert ended.code == 0, ended.err
    assert same_result(copy / "run", own_run / "run")


@pytest.mark.parametrize("command", ["run", "compare", "pretrain"])
def test_every_command_that_trains_refuses_code_before_anything_is_made(
    fedscal: Zygote, tmp_path: Path, command: str
) -> None:
    (tmp_path / "mine.py").write_text("open('trace', 'w')\n" + CODE)
    ended = fedscal(command, *OWN, "--out", "made", cwd=tmp_path)
    assert ended.code == 2
    assert "model=mine:small would run code" in ended.error
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_a_recipe_cannot_allow_itself(fedscal: Zygote, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('model = "os:system"\nallow_code = true\n')
    ended = fedscal("run", "r.toml", cwd=tmp_path)
    assert ended.code == 2
    assert "unknown key 'allow_code'" in ended.error


@pytest.mark.slow
@pytest.mark.long
def test_the_cells_of_a_comparison_get_the_flag(fedscal: Zygote, own_run: Path, tmp_path: Path) -> None:
    shutil.copy(own_run / "mine.py", tmp_path)
    words = [*OWN, "source=a", "methods=fedloa", "seeds=0", "--jobs", "1", "--quiet", "--out", "grid"]
    ended = fedscal("compare", *words, ALLOWED, cwd=tmp_path, timeout=240)
    assert ended.code == 0, ended.err
    assert len(list((tmp_path / "grid").glob("*/summary.json"))) == 1


@pytest.mark.parametrize("rest", [["predict", "run", "a.png"], ["export", "run", "--format", "safetensors"]])
def test_using_the_model_needs_the_flag_too(
    fedscal: Zygote, own_run: Path, tmp_path: Path, rest: list[str]
) -> None:
    copy = Path(shutil.copytree(own_run, tmp_path / "copy"))
    Image.new("L", (32, 32), 90).save(copy / "a.png")
    refused = fedscal(*rest, cwd=copy)
    assert (refused.code, "--allow-code" in refused.error) == (2, True)
    ended = fedscal(*rest, ALLOWED, cwd=copy)
    assert ended.code == 0, ended.err


def test_a_device_that_is_not_there_is_refused_by_every_command(
    fedscal: Zygote, own_run: Path, tmp_path: Path
) -> None:
    gone = "import torch; torch.cuda.is_available = lambda: False"
    for command in ("run", "pretrain"):
        ended = fedscal(command, *TINY, "device=cuda", "--out", tmp_path / "made", before=gone)
        assert (ended.code, "device=cuda: torch sees no such device" in ended.error) == (2, True)
        assert not (tmp_path / "made").exists()
    words: Words = ["predict", own_run / "run", own_run, "--device", "cuda", ALLOWED]
    ended = fedscal(*words, cwd=own_run, before=gone)
    assert (ended.code, "device=cuda" in ended.error) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_full_device_ends_the_run_with_a_way_out(fedscal: Zygote, tmp_path: Path, workers: int) -> None:
    full = """
import torch, fedscal.models.network as module
real = module.Network.forward
def forward(network, images):
    if network.training: raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    return real(network, images)
module.Network.forward = forward"""
    words = [*TINY, f"workers={workers}", "clients_per_domain=1", "participation=1", "rounds=1", "--quiet"]
    assert fedscal("pretrain", *words).code == 0
    ended = fedscal("run", *words, "--out", tmp_path / "run", before=full, env={"TEST_BEFORE": full})
    assert (ended.code, "set micro_batch" in ended.error) == (7, True)
    ended = fedscal("run", "--resume", tmp_path / "run", "workers=1", "--quiet", "--no-report")
    assert ended.code == 0, ended.err
