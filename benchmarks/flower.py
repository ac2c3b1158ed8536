"""What Flower costs: the same work on one machine, embedded, simulated by Ray, and as real processes.

    python -m benchmarks.flower                                     # four sites with digits, four rounds
    python -m benchmarks.flower clients_per_domain=1 local_epochs=5
    python -m benchmarks.flower other=../before                     # beside another checkout, in turn
    python -m benchmarks.flower only=deployment                     # and what a round's seconds went into

Seconds a round: "clients" is what the slowest client of a round needed to train, "a round" is all that the
server waited for, judging included, and "beyond" what that is beyond the embedded run. The accuracy (%) is
the last round's average; it is the same, unless ``transport=fp16`` or ``bf16`` rounds what travels. Without
Ray its row is left out. The second table follows the messages of a deployment's rounds, see ``LEGS``.
"""

from __future__ import annotations

import importlib.util
import json
import math
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
KEYS = {"method": "fedscal", "participation": 1, "rounds": 4, "local_epochs": 1}
LIMITS = {"wait": 600, "round-timeout": 600}


LEGS = {
    "until it is its turn to be sent": ("begun", "train", "ours: one after the other"),
    "sent, until the site's node sees it": ("train", "noticed", "Flower, with our pauses"),
    "to the node, and from it to our executor": ("noticed", "fetched", "Flower; ours to ask"),
    "judged and trained": ("fetched", "answered", "the work"),
    "back to the node": ("answered", "pushed", "Flower"),
    "to the server, and read": ("pushed", "read", "Flower, with our pauses"),
}
"""The way of a message and its response: from which mark to which, and whose doing it is."""


def seconds(records: Sequence[RoundRecord]) -> dict[str, float]:
    """Return the mean seconds of a round: of the slowest client, and of all."""
    rounds = records[1:]
    slowest = [max(row.seconds for row in r.clients.values() if row.epochs is not None) for r in rounds]
    return {
        "clients": fmean(slowest),
        "a round": sum(r.seconds.adapt + r.seconds.evaluate for r in rounds) / len(rounds),
    }


def legs(path: Path) -> dict[str, tuple[float, float]]:
    """Return the seconds of every leg in the rounds of a deployment: the mean over sites, and the longest."""
    waves: list[dict[tuple[str, str], float]] = []
    for line in path.read_text().splitlines():
        mark = json.loads(line)
        if mark["what"] == "begun":
            waves.append({("begun", ""): mark["time"]})
        elif waves:
            waves[-1][mark["what"], mark["who"]] = mark["time"]
    trained = [wave for wave in waves if any(what == "train" for what, _ in wave)]
    found: dict[str, tuple[float, float]] = {}
    for leg, (start, end, _) in LEGS.items():
        spent = [
            at - wave.get((start, who), wave["begun", ""])
            for wave in trained
            for (what, who), at in wave.items()
            if what == end
        ]
        found[leg] = fmean(spent), max(spent)
    return found


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


def play(
    folder: Path, data: dict[str, Any], given: dict[str, Any], only: str
) -> Iterator[tuple[str, RunDirectory]]:
    """Do the same work three times; yield the driver's name and its run."""
    experiment = Experiment.build(RunSpec.make(**data))
    model = source_model(experiment).path
    names = experiment.clients_of_data().clients
    transport = given.pop("transport", "fp32")
    keys = {**KEYS, **given, "source_model": str(model)}
    if only in ("", "embedded"):
        yield "embedded", adapt(RunSpec.make(**data, **keys, workers=1), folder / "embedded")
    if importlib.util.find_spec("ray") and only in ("", "simulation"):
        simulate(folder, {**data, **keys}, len(names))
        yield "simulation", RunDirectory(folder / "simulation")
    if only in ("", "deployment"):
        with federation(folder, names, data, model) as address:
            far = {**keys, "transport": transport, "clients": "flower:" + "+".join(names)}
            launch.run_federation(
                address, far, folder / "flower", LIMITS, resume=False, say=lambda text: None
            )
        yield "deployment", RunDirectory(folder / "flower")


def beside(other: Path, words: Sequence[str], alone: float) -> None:
    """Print the row of another checkout's deployment, made by this file with that one's package."""
    env = {**os.environ, "PYTHONPATH": str(other / "src")}
    argv = [sys.executable, __file__, *words, "only=deployment", "trace=no"]
    made = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=True)
    _, _, clients, whole, _, accuracy, _ = made.stdout.splitlines()[-1].split("|")
    beyond = f"{float(whole) - alone:.2f}"
    print(f"| deployment of {other.name} |{clients}|{whole}| {beyond} |{accuracy}|", flush=True)


def main() -> None:
    """Print the tables."""
    given: dict[str, Any] = parse_assignments(sys.argv[1:])
    data: dict[str, Any] = {**DATA, "clients_per_domain": given.pop("clients_per_domain", 2)}
    other, only, trace = (given.pop(key, "") for key in ("other", "only", "trace"))
    print("| driver | clients | a round | beyond | accuracy |\n|---|---:|---:|---:|---:|")
    alone = math.nan
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "trace.jsonl"
        os.environ["FEDSCAL_TRACE"] = str(path)
        for driver, directory in play(Path(name), data, given, only):
            parts = seconds(directory.rounds())
            alone = parts["a round"] if driver == "embedded" else alone
            shown = [*parts.values(), parts["a round"] - alone, directory.summary().accuracy.last.average]
            print(f"| {driver} | {' | '.join(f'{one:.2f}' for one in shown)} |", flush=True)
        if other:
            beside(Path(other), [word for word in sys.argv[1:] if not word.startswith("other=")], alone)
        if path.exists() and trace != "no":
            print("\n| leg | whose | mean | longest |\n|---|---|---:|---:|")
            for leg, (mean, longest) in legs(path).items():
                print(f"| {leg} | {LEGS[leg][2]} | {mean:.2f} | {longest:.2f} |")


if __name__ == "__main__":
    main()
