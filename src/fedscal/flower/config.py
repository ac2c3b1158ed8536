"""A run's configuration, as Flower hands it to the server and to simulated sites."""

from __future__ import annotations

import shlex
from pathlib import Path

from flwr.app import Context

from fedscal.experiment.experiment import Experiment
from fedscal.experiment.source import source_model
from fedscal.experiment.spec import RunSpec, parse_assignments


def run_directory(context: Context) -> Path:
    """Return the directory of a run: the one that was named, or one of the run's own."""
    return Path(str(context.run_config["out"]) or f"runs/flower-{context.run_id}")


def run_spec(words: str) -> RunSpec:
    """Return the spec of ``key=value`` words; a source model that is not given is trained."""
    spec = RunSpec.make(**parse_assignments(shlex.split(words)))
    return (
        spec
        if spec.source_model
        else spec.replace(source_model=str(source_model(Experiment.build(spec)).path))
    )
