"""FedSCAl: federated source-free domain adaptation of image classifiers.

The server holds a model that was trained on a source data set which is gone; each client holds
unlabelled images of its own domain; together they adapt one model.

>>> import fedscal
>>> spec = fedscal.RunSpec.make(benchmark="digits", source="mnist", method="fedscal")
>>> run = fedscal.adapt(spec, out="runs/first")      # doctest: +SKIP
>>> run.summary()["accuracy"]["last"]                # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedscal.version import __version__

if TYPE_CHECKING:
    from fedscal.client import ClientData, Training, local_update
    from fedscal.data.benchmark import Benchmark, Views
    from fedscal.data.registry import BENCHMARKS
    from fedscal.errors import FedscalError
    from fedscal.federation import Driver, Schedule, federate
    from fedscal.methods import ADAPTATIONS, METHODS, Method
    from fedscal.models.own import allow_code
    from fedscal.objective.term import Need, Objective, Term
    from fedscal.record import RunDirectory
    from fedscal.report import write_comparison, write_report
    from fedscal.run import adapt, resume
    from fedscal.server.rule import ServerRule, ServerState
    from fedscal.spec import RunSpec

__all__ = [
    "ADAPTATIONS",
    "BENCHMARKS",
    "METHODS",
    "Benchmark",
    "ClientData",
    "Driver",
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
    "resume",
    "write_comparison",
    "write_report",
]

_HOMES = {
    "fedscal.client": ("ClientData", "Training", "local_update"),
    "fedscal.data.benchmark": ("Benchmark", "Views"),
    "fedscal.data.registry": ("BENCHMARKS",),
    "fedscal.errors": ("FedscalError",),
    "fedscal.federation": ("Driver", "Schedule", "federate"),
    "fedscal.methods": ("ADAPTATIONS", "METHODS", "Method"),
    "fedscal.models.own": ("allow_code",),
    "fedscal.objective.term": ("Need", "Objective", "Term"),
    "fedscal.record": ("RunDirectory",),
    "fedscal.report": ("write_comparison", "write_report"),
    "fedscal.run": ("adapt", "resume"),
    "fedscal.server.rule": ("ServerRule", "ServerState"),
    "fedscal.spec": ("RunSpec",),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a program that only passes messages on needs no torch."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'fedscal' has no attribute '{name}'")
