"""FedSCAl: federated source-free domain adaptation of image classifiers.

The server holds a model that was trained on a source data set which is gone; each client holds
unlabelled images of its own domain; together they adapt one model.

>>> import fedscal
>>> spec = fedscal.RunSpec.make(benchmark="digits", source="mnist", method="fedscal")
>>> run = fedscal.adapt(spec, out="runs/first")      # doctest: +SKIP
>>> run.summary()["accuracy"]["last"]                # doctest: +SKIP
"""

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
from fedscal.version import __version__

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
