"""``fedscal keys``: what can be set, in groups, as it is typed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from fedscal.cli.output import console, print_json, print_plain
from fedscal.core.errors import UsageError, shown, some
from fedscal.core.options import Option, as_typed, options_of
from fedscal.core.user_code import load_plugins
from fedscal.experiment.spec import RunSpec
from fedscal.methods import ADAPTATIONS, METHODS, hyperparameters, method, parts_of

_GROUPS = {
    "data": "benchmark source clients classes image_size framing mirror crops on_bad class_skew",
    "network": "model source_model trunk thaw feature_views",
    "source training": "pretrain_epochs pretrain_steps pretrain_lr pretrain_views pretrain_styles "
    "pretrain_dropout",
    "federation": "method adaptation rounds local_epochs participation least_participants "
    "clients_per_domain lr lr_schedule batch_size view_passes label_view statistics statistics_prior "
    "class_shares site_share select judge_clients judge_every judge_together transport",
}
"""The keys that every run has; a test sees that none is missing."""
_LAST = {"execution": "seed workers threads device precision micro_batch plugins"}
_MOST_NAMED = 4
_MARGIN, _WIDEST = 30, 100


@dataclass(frozen=True)
class Key:
    """A key as it is shown: one line of a group."""

    group: str
    option: Option
    default: str
    """As it is typed; of a hyper-parameter that several parts declare, after each part's name."""

    @property
    def range(self) -> str:
        """What it may be, in short."""
        bounds = {"> ": self.option.above, ">= ": self.option.low, "<= ": self.option.high}
        limits = [f"{sign}{bound:g}" for sign, bound in bounds.items() if bound is not None]
        return " | ".join(self.option.choices) or ", ".join(limits)

    def has(self, word: str) -> bool:
        """Whether a word is in its name or in its help."""
        return word.lower() in f"{self.option.name} {self.option.text}".lower()

    def lines(self, width: int) -> str:
        """Return it for a screen: name and default, then meaning and range."""
        several = ", " in self.default
        start = f"  {self.option.name}={'' if several else self.default}"
        notes = [self.range, f"default: {self.default}" if several else ""]
        text = " ".join([self.option.text, *(f"[{note}]" for note in notes if note)])
        apart = f"{start:<{_MARGIN}}" if len(start) < _MARGIN else f"{start}\n{' ' * _MARGIN}"
        wrapped = textwrap.wrap(text, width - _MARGIN, break_long_words=False, break_on_hyphens=False)
        return apart + f"\n{' ' * _MARGIN}".join(wrapped)


def keys(
    word: Annotated[str, typer.Argument(help="Only keys with this in their name or meaning.")] = "",
    of_method: Annotated[
        str,
        typer.Option("--method", metavar="NAME", help="Only what this method and its adaptation declare."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the keys that run, compare and pretrain take, with default, meaning and range."""
    load_plugins()
    known = list(_declared_by(of_method) if of_method else _all())
    found = [key for key in known if key.has(word)]
    if as_json:
        print_json([_record(key) for key in found])
    elif found:
        _show(found)
    elif word:
        raise UsageError(f"no key has '{shown(word)}' in its name or meaning; fedscal keys lists all.")
    else:
        print_plain(f"{of_method} declares no keys of its own.")


def _all() -> Iterator[Key]:
    yield from _of_every_run(_GROUPS)
    yield from sorted(_of_methods(), key=lambda key: key.group)  # stable: as declared inside a group
    yield from _of_every_run(_LAST)


def _of_every_run(groups: Mapping[str, str]) -> Iterator[Key]:
    own = options_of(RunSpec)
    for group, names in groups.items():
        yield from (Key(group, own[name], as_typed(own[name].default)) for name in names.split())


def _of_methods() -> Iterator[Key]:
    for declared in hyperparameters().values():
        defaults = [(part.__name__, as_typed(option.default)) for part, option in declared]
        same = len({default for _, default in defaults}) == 1
        text = defaults[0][1] if same else ", ".join(f"{part} {default}" for part, default in defaults)
        yield Key(_users({part for part, _ in declared}), declared[0][1], text)


def _users(parts: set[type]) -> str:
    """Name the adaptations or the methods that have one of these parts."""
    adaptations = [name for name, part in ADAPTATIONS.items() if part in parts]
    methods = [name for name, row in METHODS.items() if parts & {*row.regularizers, row.rule}]
    kinds = {"adaptation": adaptations, "method": methods}
    return ", ".join(f"{kind} {some(names, _MOST_NAMED)}" for kind, names in kinds.items() if names)


def _declared_by(name: str) -> Iterator[Key]:
    for part in parts_of(name, method(name).adaptation):
        for option in options_of(part).values():
            yield Key(part.__name__, option, as_typed(option.default))


def _record(key: Key) -> dict[str, str]:
    told = {"key": key.option.name, "default": key.default, "range": key.range, "help": key.option.text}
    return {**told, "group": key.group}


def _show(found: list[Key]) -> None:
    width = min(max(console.width, 2 * _MARGIN), _WIDEST)
    group = ""
    for key in found:
        if key.group != group:
            print_plain(key.group if not group else f"\n{key.group}")
            group = key.group
        print_plain(key.lines(width))
