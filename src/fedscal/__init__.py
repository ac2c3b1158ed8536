"""FedSCAl: federated source-free domain adaptation of image classifiers.

The server holds a model that was trained on a source data set which is gone; each client holds
unlabelled images of its own domain; together they adapt one model. A short tour:

>>> import fedscal
>>> spec = fedscal.RunSpec.make(benchmark="digits", source="mnist", method="fedscal")
>>> run = fedscal.adapt(spec, out="runs/first", progress=True)   # doctest: +SKIP
>>> run                                                          # doctest: +SKIP
>>> fedscal.write_report(run)                                    # doctest: +SKIP
>>> fedscal.audit(run, "checked")                                # doctest: +SKIP
>>> fedscal.predict(run, "new-images")                           # doctest: +SKIP
>>> fedscal.export(run, "model.onnx")                            # doctest: +SKIP
>>> fedscal.compare_runs(["runs/first", "runs/second"])          # doctest: +SKIP

An audit asks about ``checked/<site>/<class>/<image>``, predictions about files or a tensor. What you have at
hand is adapted without a spec, a trained ``nn.Module`` or a model's path to tensors, loaders or a folder:

>>> run = fedscal.adapt(module, {"a": images, "b": loader}, classes=names, out="runs/mine")  # doctest: +SKIP

``adapt`` makes a run, ``resume`` goes on with it, ``load`` opens its model. ``fedscal.extend`` has what
methods, data sets and backbones of your own are made of, ``fedscal.trackers`` those who follow a run:
TensorBoard, MLflow, Weights & Biases. ``fedscal.report`` and ``fedscal.compare`` are packages; the functions
are ``write_report``, ``compare_runs`` and ``write_comparison``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedscal.core.version import __version__ as __version__

if TYPE_CHECKING:  # isort: off
    from fedscal import losses as losses, trackers as trackers
    from fedscal.client.term import Need as Need, Objective as Objective, Term as Term
    from fedscal.client.training import ClientData as ClientData, Training as Training
    from fedscal.client.training import local_update as local_update
    from fedscal.compare.shown import Comparison as Comparison, compare_runs as compare_runs
    from fedscal.core.errors import FedscalError as FedscalError
    from fedscal.core.types import Views as Views
    from fedscal.core.user_code import allow_code as allow_code
    from fedscal.data.benchmark import Benchmark as Benchmark
    from fedscal.data.registry import BENCHMARKS as BENCHMARKS
    from fedscal.deploy.classifier import Classifier as Classifier
    from fedscal.deploy.predict import Predictions as Predictions
    from fedscal.deploy.use import audit as audit, export as export, load as load, predict as predict
    from fedscal.experiment.audits import Audit as Audit
    from fedscal.experiment.callbacks import Callback as Callback
    from fedscal.experiment.experiment import Experiment as Experiment
    from fedscal.experiment.own import adapt as adapt
    from fedscal.experiment.run import resume as resume
    from fedscal.experiment.run_directory import RunDirectory as RunDirectory
    from fedscal.experiment.spec import RunSpec as RunSpec
    from fedscal.methods import ADAPTATIONS as ADAPTATIONS, METHODS as METHODS, Method as Method
    from fedscal.models.module import register_module as register_module
    from fedscal.report import write_comparison as write_comparison, write_report as write_report
    from fedscal.server.rounds import Driver as Driver, Schedule as Schedule, federate as federate
    from fedscal.server.rule import ServerRule as ServerRule, ServerState as ServerState

_HOMES = {
    "fedscal.client.training": ("ClientData", "Training", "local_update"),
    "fedscal.core.types": ("Views",),
    "fedscal.compare.shown": ("Comparison", "compare_runs"),
    "fedscal.data.benchmark": ("Benchmark",),
    "fedscal.data.registry": ("BENCHMARKS",),
    "fedscal.deploy.classifier": ("Classifier",),
    "fedscal.deploy.predict": ("Predictions",),
    "fedscal.deploy.use": ("audit", "export", "load", "predict"),
    "fedscal.experiment.audits": ("Audit",),
    "fedscal.core.errors": ("FedscalError",),
    "fedscal.server.rounds": ("Driver", "Schedule", "federate"),
    "fedscal.methods": ("ADAPTATIONS", "METHODS", "Method"),
    "fedscal.core.user_code": ("allow_code",),
    "fedscal.client.term": ("Need", "Objective", "Term"),
    "fedscal.experiment.run_directory": ("RunDirectory",),
    "fedscal.report": ("write_comparison", "write_report"),
    "fedscal.experiment.callbacks": ("Callback",),
    "fedscal.experiment.experiment": ("Experiment",),
    "fedscal.experiment.own": ("adapt",),
    "fedscal.experiment.run": ("resume",),
    "fedscal.models.module": ("register_module",),
    "fedscal.server.rule": ("ServerRule", "ServerState"),
    "fedscal.experiment.spec": ("RunSpec",),
}
_MODULES = ("losses", "trackers")
__all__ = sorted(name for names in (*_HOMES.values(), _MODULES, ("__version__",)) for name in names)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a program that only passes messages on needs no torch."""
    if name in _MODULES:
        return import_module(f"fedscal.{name}")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'fedscal' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return the public names, imported or not, so that they complete."""
    return __all__
