"""What Flower costs: the same work on one machine, embedded and as a federation of real processes.

    python -m benchmarks.flower                                     # four sites with digits, two rounds
    python -m benchmarks.flower clients_per_domain=1 local_epochs=5

Seconds a round, by part. "clients" is what the slowest client of a round needed to train, "training wave" and
"evaluation wave" are what the server waited for. The difference is processes that Flower starts for every
message, and its polling: a SuperNode looks for them every 3 s. The accuracy (%) is the last round's average;
it is the same, unless ``transport=fp16`` or ``bf16`` rounds what travels.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from fedscal.build import build_layout
from fedscal.drivers.flower import machines
from fedscal.drivers.flower.demo import federation
from fedscal.metrics import Line
from fedscal.record import RunDirectory
from fedscal.run import adapt
from fedscal.source import source_model
from fedscal.spec import RunSpec, parse_assignments

DATA = {"benchmark": "digits", "source": "mnist"}
KEYS = {"participation": 1, "rounds": 2, "local_epochs": 1}
LIMITS = {"wait": 600, "round-timeout": 600}


def seconds(lines: list[Line]) -> dict[str, float]:
    """Return the mean seconds of a round, by part."""
    rounds = lines[1:]
    slowest = [max(row["seconds"] for row in r["clients"].values() if "seconds" in row) for r in rounds]
    return {
        "clients": fmean(slowest),
        "training wave": fmean(r["seconds"]["adapt"] for r in rounds),
        "evaluation wave": fmean(r["seconds"]["evaluate"] for r in rounds),
    }


def main() -> None:
    """Print the table."""
    given: dict[str, Any] = parse_assignments(sys.argv[1:])
    data: dict[str, Any] = {**DATA, "clients_per_domain": given.pop("clients_per_domain", 2)}
    model = source_model(RunSpec.make(**data)).path
    names = build_layout(RunSpec.make(**data)).clients
    transport = given.pop("transport", "fp32")
    keys = {**KEYS, **given, "source_model": str(model)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        here = adapt(RunSpec.make(**data, **keys, workers=1), folder / "embedded")
        with federation(folder, names, data, model) as address:
            far = {**keys, "transport": transport, "clients": "flower:" + "+".join(names)}
            machines.run(address, far, folder / "flower", LIMITS, resume=False, say=lambda text: None)
        found = {"embedded": here, "flower": RunDirectory(folder / "flower")}
        print("| driver | clients | training wave | evaluation wave | accuracy |\n|---|---:|---:|---:|---:|")
        for driver, directory in found.items():
            parts = " | ".join(f"{part:.2f}" for part in seconds(directory.lines()).values())
            print(f"| {driver} | {parts} | {directory.summary()['accuracy']['last']['average']:.2f} |")


if __name__ == "__main__":
    main()
