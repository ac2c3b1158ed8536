"""The recipes of CONTRIBUTING.md work as they are printed."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fedscal.core.options import construct, options_of
from fedscal.server.rule import Briefing
from toys import fixed_step, model, reply

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
BLOCKS = re.findall(r"^ *```python\n(.*?)^ *```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def module(holding: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the one recipe that defines a class, as a module."""
    (source,) = [textwrap.dedent(block) for block in BLOCKS if f"class {holding}(" in block]
    made = ModuleType(f"recipe_{holding.lower()}")
    monkeypatch.setitem(sys.modules, made.__name__, made)  # where dataclasses look for annotations
    exec(source, vars(made))
    return made


def test_the_recipe_of_a_term(monkeypatch: pytest.MonkeyPatch) -> None:
    term = module("FeatureNorm", monkeypatch).FeatureNorm
    value, _ = term(nu=0.5).loss(fixed_step(torch.tensor([[3.0, 4.0], [0.0, 1.0]])), {})
    assert value.item() == pytest.approx(0.5 * (25 + 1) / 2)
    assert (term().null, term(nu=0.0).null) == (False, True)


def test_the_recipe_of_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    # The median of 1, 8 and 900 is 8; the mean of it and 0 is 4.
    rule_class = module("RunningMean", monkeypatch).RunningMean
    assert set(options_of(rule_class)) == {"aggregation", "attackers", "mean_rate"}
    rule = construct(rule_class, {"aggregation": "median"})
    replies = [reply(client, model(value)) for client, value in zip("abc", (1.0, 8.0, 900.0), strict=True)]
    state = rule.merge(rule.init(Briefing(model(0.0), "w")), replies)
    assert rule.least_replies() == 3
    assert rule.send(state, "a")["server"]["w"].tolist() == [8.0, -8.0]
    assert rule.deployed(state, "a")["w"].tolist() == [4.0, -4.0]
