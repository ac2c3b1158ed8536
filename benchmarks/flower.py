"""What Flower costs: the same work on one machine, embedded, simulated by Ray, and as real processes.

    python -m benchmarks.flower                                     # four sites with digits, two rounds
    python -m benchmarks.flower clients_per_domain=1 local_epochs=5

Seconds a round, by part. "clients" is what the slowest client of a round needed to train, "training wave" and
"evaluation wave" are what the server waited for. The difference is processes that Flower starts for every
message, and its polling: a SuperNode looks for them every 3 s. The accuracy (%) is the last round's average;
it is the same, unless ``transport=fp16`` or ``bf16`` rounds what travels. Without Ray its row is left out.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any

from fedscal.experiment.experiment import Experiment
from fedscal.experiment.records import RoundRecord
from fedscal.experiment.run import adapt
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.source import source_model
from fedscal.experiment.spec import RunSpec, dump_toml, parse_assignments
from fedscal.flower import launch, processes
from fedscal.flower.demo import federation

DATA = {"benchmark": "digits", "source": "mnist"}
KEYS = {"participation": 1, "rounds": 2, "local_epochs": 1}
LIMITS = {"wait": 600, "round-timeout": 600}


def seconds(records: Sequence[RoundRecord]) -> dict[str, float]:
    """Return the mean seconds of a round, by part."""
    rounds = records[1:]
    slowest = [max(row.seconds for row in r.clients.values() if row.epochs is not None) for r in rounds]
    return {
        "clients": fmean(slowest),
        "training wave": fmean(r.seconds.adapt for r in rounds),
        "evaluation wave": fmean(r.seconds.evaluate for r in rounds),
    }


def simulate(folder: Path, keys: dict[str, Any], count: int) -> None:
    """Run under Ray, by Flower's own client; its SuperLink would outlive it."""
    config: dict[str, Any] = {
        "keys": launch.format_assignments(keys),
        "out": str(folder / "simulation"),
        **LIMITS,
    }
    (folder / "run.toml").write_text(dump_toml(config))
    home = folder / "flwr"
    app = resources.files("fedscal.flower") / "app"
    nodes = f"num-supernodes={count} client-resources-num-cpus=1"
    words = ["run", str(app), "--stream", "--run-config", str(folder / "run.toml")]
    try:
        subprocess.run(
            [processes.flower_program("flwr"), *words, "--federation-config", nodes],
            env=processes.environment(home),
            stdout=subprocess.DEVNULL,
            check=True,
        )
    finally:
        for line in subprocess.run(["pgrep", "-f", str(home)], capture_output=True, text=True).stdout.split():
            os.kill(int(line), signal.SIGTERM)


def play(folder: Path, data: dict[str, Any], given: dict[str, Any]) -> Iterator[tuple[str, RunDirectory]]:
    """Do the same work three times; yield the driver's name and its run."""
    experiment = Experiment.build(RunSpec.make(**data))
    model = source_model(experiment).path
    names = experiment.clients_of_data().clients
    transport = given.pop("transport", "fp32")
    keys = {**KEYS, **given, "source_model": str(model)}
    yield "embedded", adapt(RunSpec.make(**data, **keys, workers=1), folder / "embedded")
    if importlib.util.find_spec("ray"):
        simulate(folder, {**data, **keys}, len(names))
        yield "simulation", RunDirectory(folder / "simulation")
    with federation(folder, names, data, model) as address:
        far = {**keys, "transport": transport, "clients": "flower:" + "+".join(names)}
        launch.run_federation(address, far, folder / "flower", LIMITS, resume=False, say=lambda text: None)
    yield "deployment", RunDirectory(folder / "flower")


def main() -> None:
    """Print the table."""
    given: dict[str, Any] = parse_assignments(sys.argv[1:])
    data: dict[str, Any] = {**DATA, "clients_per_domain": given.pop("clients_per_domain", 2)}
    print("| driver | clients | training wave | evaluation wave | accuracy |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        for driver, directory in play(Path(name), data, given):
            parts = " | ".join(f"{part:.2f}" for part in seconds(directory.rounds()).values())
            last = directory.summary().accuracy.last.average
            print(f"| {driver} | {parts} | {last:.2f} |", flush=True)


if __name__ == "__main__":
    main()
