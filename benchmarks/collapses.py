"""What FedSite delivers where training is broken on purpose.

    python -m benchmarks.collapses OUT [key=value ...]        # seeds 0, 1, 2 from outline and color

A learning rate times 30, alignment times 1000, and a source model whose card tells images to be normalised by
other numbers than those it was trained with: each run is compared with the source model as it came, which in
the last case is the wrongly normalised one. Finished runs in OUT are not repeated. Keys are those of a run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from benchmarks.delivery import delivered
from fedscal.core import files
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.run import adapt
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.source import source_model
from fedscal.experiment.spec import RunSpec, parse_assignments

SEEDS = (0, 1, 2)
SOURCES = ("outline", "color")
BROKEN: Mapping[str, Mapping[str, object]] = {
    "lr=0.9": {"lr": 0.9},
    "lambda_local=1000 lambda_server=1000": {"lambda_local": 1000, "lambda_server": 1000},
    "wrong normalisation": {},
}
_WRONG = {"mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0]}
"""Values from 0 to 1, as a user leaves them who forgot to normalise."""


def specs(what: str, keys: Mapping[str, object], out: Path) -> Iterator[RunSpec]:
    """Yield a broken run of every source and seed."""
    for source in SOURCES:
        for seed in SEEDS:
            spec = RunSpec.make(**{"method": "fedsite", **keys, "source": source, "seed": seed})
            spec = spec.replace(**BROKEN[what])
            yield _with_wrong_card(spec, out) if what == "wrong normalisation" else spec


def _with_wrong_card(spec: RunSpec, out: Path) -> RunSpec:
    """Train the source model of a run, change its card, and return the run with that model."""
    folder = out / f"model-{spec.source}-{spec.seed}"
    if not folder.exists():
        trained = source_model(Experiment.build(spec)).path
        for file in sorted(trained.iterdir()):
            files.write_bytes(folder / file.name, file.read_bytes())
        card = json.loads((folder / "model.json").read_text())
        card["views"] |= _WRONG
        (folder / "model.json").write_text(json.dumps(card))
    return spec.replace(source_model=str(folder))


def finished(spec: RunSpec, out: Path) -> RunDirectory:
    """Return the finished run of a spec, made now if it is not there."""
    directory = RunDirectory(out / f"{spec.source}-{spec.method}-s{spec.seed}-{spec.digest()[:8]}")
    return directory if directory.finished else adapt(spec, directory.path)


def gains(what: str, keys: Mapping[str, object], out: Path) -> Iterator[tuple[float, float, float, str]]:
    """Yield the source model as it came, the last round, what is delivered, and the verdict, run by run."""
    for spec in specs(what, keys, out):
        run = finished(spec, out)
        summary, delivery = run.summary(), run.summary().delivery
        assert delivery, "fedsite chooses what it delivers"
        came = finished(spec.replace(method="source-only", statistics="shared", lr=0.03), out).summary()
        given = delivered(run.rounds(), delivery)
        yield came.accuracy.last.average, summary.accuracy.last.average, given, delivery.verdict


def main(out: Path, keys: Mapping[str, object]) -> None:
    """Print a row for every way to break a run."""
    print("| broken by | source model as it came | last round | delivered | least gain | verdicts |")
    print("|---|---:|---:|---:|---:|---|")
    for what in BROKEN:
        rows = list(gains(what, keys, out))
        least = min(given - came for came, _, given, _ in rows)
        verdicts = ", ".join(sorted(verdict for *_, verdict in rows))
        means = " | ".join(f"{fmean(column):.1f}" for column in list(zip(*rows, strict=True))[:3])
        print(f"| {what} | {means} | {least:+.1f} | {verdicts} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), parse_assignments(sys.argv[2:]))
