"""Parts from outside over real processes: each machine imports what its own command names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower_processes import START, Federation
from flower_world import KEYS, SITES, World
from harness import program, summary

GUESTS = Path(__file__).parents[1] / "guests"
PLUGIN = ["plugins=guest_parts", "--allow-code"]
RUN = ["method=guest", "nu_guest=0.3", "caution=0.25"]


@pytest.mark.long
def test_a_federation_of_guests_ends_with_the_bits_of_one_machine(
    world: World, tmp_path: Path, cache: Path
) -> None:
    shutil.copy(GUESTS / "guest_parts.py", tmp_path)
    trained = [
        f"benchmark={world.folder / 'source'}",
        "source=source",
        "model=convnet",
        "image_size=32",
        "pretrain_epochs=5",
    ]
    made = program(cache, "pretrain", *trained, "model=corner-mlp", *PLUGIN, "--out", "model", cwd=tmp_path)
    assert made.code == 0, made.err
    machines = Federation(world, tmp_path, cache)
    try:
        names = ",".join(SITES)
        assert machines.start("certs", "certs", "keys", "--sites", names).wait(START) == 0
        machines.server("--allow-code")
        for name in SITES:
            machines.site(name, *PLUGIN, model=tmp_path / "model")
        words = [*(f"{key}={value}" for key, value in KEYS.items()), *RUN, *PLUGIN]
        what = ["--model", tmp_path / "model", "--sites", names, "--out", "far", "--wait", 400]
        run = machines.start("run", "run", *words, *what)
        assert run.wait(400) == 0, run.text
    finally:
        machines.close()
    here = [f"clients={world.folder / 'sites'}", "source_model=model", "workers=1", "--quiet", "--no-report"]
    ended = program(cache, "run", *words, *here, "--out", "near", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert summary(tmp_path / "far")["weights_sha256"] == summary(tmp_path / "near")["weights_sha256"]
