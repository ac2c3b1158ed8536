"""Dataclasses as JSON and back: strict for those who rely on a record, lenient for those who show it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscal.core.convert import Misfit, convert, dump, rest
from fedscal.experiment.records import ClientRecord, RoundRecord, RoundScores, Scores, Seconds, Traffic

NUMBERS = st.floats(0, 100) | st.integers(0, 100)
NAMES = st.text(max_size=5)
SCORES = st.dictionaries(NAMES.filter(lambda name: name != "average"), NUMBERS, max_size=3).map(Scores)


@dataclass(frozen=True)
class Inner:
    """A part."""

    size: float
    name: str = "plain"


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Every kind of field."""

    count: int
    side: int | None
    flag: bool = False
    ratio: float = math.nan
    pair: tuple[float, float] = (0.0, 1.0)
    words: Sequence[str] = ()
    parts: Mapping[str, Inner] = field(default_factory=dict)
    others: Mapping[str, object] = rest()


WHOLE = {
    "count": 3,
    "side": None,
    "flag": True,
    "ratio": 0.5,
    "pair": [1.0, 2],
    "words": ["a", "b"],
    "parts": {"x": {"size": 1}, "y": {"size": 2.5, "name": "odd"}},
    "new": {"deep": [1, None]},
}


def test_a_record_is_read_and_written_as_it_was() -> None:
    made = convert(WHOLE, Outer)
    assert made.parts["x"] == Inner(1)
    assert made.others == {"new": {"deep": [1, None]}}
    assert json.dumps(dump(made)) == json.dumps(WHOLE), "numbers, names and their order"


def test_defaults_are_not_written_but_null_is_where_it_has_no_default() -> None:
    assert dump(convert({"count": 1}, Outer)) == {"count": 1, "side": None}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"count": "3"}, "count is no whole number"),
        ({"count": True}, "count is no whole number"),
        ({"count": 3.0}, "count is no whole number"),
        ({"ratio": False}, "ratio is no number"),
        ({"flag": 1}, "flag is no yes or no"),
        ({"side": "a"}, "side is no whole number"),
        ({"pair": [1.0]}, "pair is no list of 2"),
        ({"words": "ab"}, "words is no list"),
        ({"words": ["a", 1]}, "words[1] is no text"),
        ({"parts": []}, "parts is no table"),
        ({"parts": {"x": {"size": None}}}, "parts.x.size is no number"),
        ({"parts": {"x": {}}}, "parts.x has no size"),
    ],
)
def test_a_strict_reader_says_where_a_value_does_not_fit(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("[", r"\[")) as refused:
        convert({**WHOLE, **change}, Outer)
    assert str(refused.value) == said
    if "count" in change:
        return
    faults: list[Misfit] = []
    kept = convert({**WHOLE, **change}, Outer, faults=faults)
    assert kept.count == 3, "a lenient reader keeps the rest"
    assert faults == [] if "has no" in said else said in map(str, faults)


def test_what_is_missing_is_blank_for_a_lenient_reader_unless_nothing_can_stand_for_it() -> None:
    values: list[object] = [{}, {"side": 3}, []]
    for value in values:
        with pytest.raises(ValueError, match=r"it (has no count|is no table)"):
            convert(value, Outer, faults=[])
    faults: list[Misfit] = []
    record = convert(
        {"round": 1, "seconds": "soon", "signals": {"a": 1.0, "b": math.inf}}, RoundRecord, faults=faults
    )
    assert math.isnan(record.seconds.adapt)
    assert (record.participants, record.clients, record.signals) == ((), {}, {"a": 1.0})
    assert sorted(map(str, faults)) == ["seconds is no table", "signals.b is not finite"]


CLIENTS = st.builds(
    ClientRecord,
    domain=NAMES,
    accuracy=NUMBERS,
    images=NUMBERS,
    signals=st.dictionaries(st.sampled_from(["entropy", "snd"]), NUMBERS),
    effective_classes=NUMBERS,
    epochs=st.none() | st.lists(st.dictionaries(NAMES, NUMBERS, max_size=2), max_size=2).map(tuple),
)


@given(
    st.builds(
        RoundRecord,
        round=st.integers(0, 9),
        lr=NUMBERS,
        participants=st.lists(NAMES, max_size=2).map(tuple),
        accuracy=st.builds(RoundScores, SCORES, SCORES),
        pseudo_label_accuracy=SCORES,
        signals=st.dictionaries(NAMES, NUMBERS, max_size=2),
        clients=st.dictionaries(NAMES, CLIENTS, max_size=2),
        warnings=st.lists(NAMES, max_size=2).map(tuple),
        failures=st.dictionaries(NAMES, NAMES, max_size=2),
        seconds=st.builds(Seconds, adapt=NUMBERS, evaluate=NUMBERS),
        bytes=st.none() | st.builds(Traffic, NUMBERS, NUMBERS),
        selected_round=st.none() | st.integers(0, 9),
    )
)
def test_every_round_comes_back(record: RoundRecord) -> None:
    plain = json.loads(json.dumps(dump(record)))
    assert dump(convert(plain, RoundRecord)) == dump(record)
    assert convert(plain, RoundRecord, faults=[]) == convert(plain, RoundRecord)


def test_one_of_some_words_is_read_and_another_refused() -> None:
    assert convert("a", Literal["a", "b"]) == "a"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="it is none of a, b"):
        convert("c", Literal["a", "b"])  # type: ignore[arg-type]
