"""FedSCAl: federated source-free domain adaptation of image classifiers.

The server holds a model that was trained on a source data set which is gone; each client holds
unlabelled images of its own domain; together they adapt one model.

>>> import fedscal
>>> spec = fedscal.RunSpec.make(benchmark="digits", source="mnist", method="fedscal")
>>> run = fedscal.adapt(spec, out="runs/first")      # doctest: +SKIP
>>> run.summary().accuracy.last.average             # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedscal.core.version import __version__

if TYPE_CHECKING:
    from fedscal import losses
    from fedscal.client.term import Need, Objective, Term
    from fedscal.client.training import ClientData, Training, local_update
    from fedscal.core.errors import FedscalError
    from fedscal.core.types import Views
    from fedscal.core.user_code import allow_code
    from fedscal.data.benchmark import Benchmark
    from fedscal.data.registry import BENCHMARKS
    from fedscal.experiment.callbacks import Callback
    from fedscal.experiment.experiment import Experiment
    from fedscal.experiment.run import adapt, resume
    from fedscal.experiment.run_directory import RunDirectory
    from fedscal.experiment.spec import RunSpec
    from fedscal.methods import ADAPTATIONS, METHODS, Method
    from fedscal.report import write_comparison, write_report
    from fedscal.server.rounds import Driver, Schedule, federate
    from fedscal.server.rule import ServerRule, ServerState

__all__ = [
    "ADAPTATIONS",
    "BENCHMARKS",
    "METHODS",
    "Benchmark",
    "Callback",
    "ClientData",
    "Driver",
    "Experiment",
    "FedscalError",
    "Method",
    "Need",
    "Objective",
    "RunDirectory",
    "RunSpec",
    "Schedule",
    "ServerRule",
    "ServerState",
    "Term",
    "Training",
    "Views",
    "__version__",
    "adapt",
    "allow_code",
    "federate",
    "local_update",
    "losses",
    "resume",
    "write_comparison",
    "write_report",
]

_HOMES = {
    "fedscal.client.training": ("ClientData", "Training", "local_update"),
    "fedscal.core.types": ("Views",),
    "fedscal.data.benchmark": ("Benchmark",),
    "fedscal.data.registry": ("BENCHMARKS",),
    "fedscal.core.errors": ("FedscalError",),
    "fedscal.server.rounds": ("Driver", "Schedule", "federate"),
    "fedscal.methods": ("ADAPTATIONS", "METHODS", "Method"),
    "fedscal.core.user_code": ("allow_code",),
    "fedscal.client.term": ("Need", "Objective", "Term"),
    "fedscal.experiment.run_directory": ("RunDirectory",),
    "fedscal.report": ("write_comparison", "write_report"),
    "fedscal.experiment.callbacks": ("Callback",),
    "fedscal.experiment.experiment": ("Experiment",),
    "fedscal.experiment.run": ("adapt", "resume"),
    "fedscal.server.rule": ("ServerRule", "ServerState"),
    "fedscal.experiment.spec": ("RunSpec",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a program that only passes messages on needs no torch."""
    if name == "losses":
        return import_module("fedscal.losses")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'fedscal' has no attribute '{name}'")
