"""What a method, data set or backbone of your own imports: everything public for extension, in one place.

A module of yours registers its parts when it is imported:

    from fedscal.extend import Average, Method, register_method
    register_method("mine", Method("Mine", Average, (MyTerm,), "what it does", "where it comes from"))

``fedscal run plugins=my_module method=mine --allow-code`` imports it, in every process of the run. A package
that names the module under the entry points ``fedscal.plugins`` needs neither key nor permission.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from fedscal.client.start import Received, Start
from fedscal.client.step import Step
from fedscal.client.term import Adaptation, Need, Objective, State, Term
from fedscal.core.errors import UsageError
from fedscal.core.options import Option, option, options_of
from fedscal.core.types import Package, Prediction, Reply, Sweep, Views, Weights
from fedscal.data.benchmark import Benchmark
from fedscal.data.registry import BENCHMARKS
from fedscal.data.views import AugmentedViews
from fedscal.methods import ADAPTATIONS, METHODS, Method, hyperparameters
from fedscal.models.registry import MODELS, Shape, network_around
from fedscal.server.aggregation import Aggregation
from fedscal.server.optimizer import ServerOptimizer
from fedscal.server.rule import Briefing, ServerRule, ServerState
from fedscal.server.rules.average import Average
from fedscal.server.screen import NormLimit

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "Adaptation",
    "Aggregation",
    "AugmentedViews",
    "Average",
    "Benchmark",
    "Briefing",
    "Method",
    "Need",
    "NormLimit",
    "Objective",
    "Package",
    "Prediction",
    "Received",
    "Reply",
    "ServerOptimizer",
    "ServerRule",
    "ServerState",
    "Start",
    "State",
    "Step",
    "Sweep",
    "Term",
    "Views",
    "Weights",
    "option",
    "register_adaptation",
    "register_backbone",
    "register_benchmark",
    "register_method",
]
T = TypeVar("T")


def register_method(name: str, method: Method) -> None:
    """Add a method: ``method=<name>``."""
    for part in method.regularizers:
        _check_part(part, Term)
    _check_part(method.rule, ServerRule)
    _add(METHODS, name, method, "method")


def register_adaptation(name: str, adaptation: type[Adaptation]) -> None:
    """Add a local adaptation: ``adaptation=<name>``."""
    _check_part(adaptation, Adaptation)
    _add(ADAPTATIONS, name, adaptation, "adaptation")


def register_benchmark(benchmark: Benchmark) -> None:
    """Add a data set: ``benchmark=<its name>``."""
    _add(BENCHMARKS, benchmark.name, benchmark, "benchmark")


def register_backbone(name: str, factory: Callable[[Shape], nn.Module]) -> None:
    """Add a backbone: ``model=<name>``.

    Args:
        name: what the user types.
        factory: takes the images' (channels, height, width), returns a module from images to features (n, d).
            Its attribute ``backbone_rate`` is its share of the learning rate; 0.1 if it has none.
    """
    _add(MODELS, name, network_around(name, factory), "model")


def _add(registry: dict[str, T], name: str, entry: T, kind: str) -> None:
    if name in registry and registry[name] != entry:
        raise UsageError(f"there is a {kind} '{name}' already; give yours another name.")
    registry[name] = entry


def _check_part(part: type, base: type) -> None:
    if not issubclass(part, base):
        raise UsageError(f"{part.__name__} must be derived from fedscal.extend.{base.__name__}.")
    _check_options(part)


def _check_options(part: type) -> None:
    """Refuse an option that another part declares with another type or bounds: a key has one meaning."""
    declared = hyperparameters()
    for name, mine in options_of(part).items():
        for other, theirs in declared.get(name, []):
            if _meaning(mine) != _meaning(theirs):
                raise UsageError(
                    f"{part.__name__} declares the option '{name}' as {_words(mine)}, and {other.__name__} "
                    f"as {_words(theirs)}: give it another name."
                )


def _meaning(option_: Option) -> tuple[object, ...]:
    return option_.kind, option_.low, option_.high, option_.above, option_.choices


def _words(option_: Option) -> str:
    bounds = {"at least": option_.low, "more than": option_.above, "at most": option_.high}
    limits = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
    return " ".join([option_.kind.__name__, *limits, *(f"'{choice}'" for choice in option_.choices)])
