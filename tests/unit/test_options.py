"""Options: text and values become checked values, or one sentence that says what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscal.core.errors import UsageError, nearest
from fedscal.core.options import Option, construct, option, options_of


@dataclass(frozen=True)
class Part:
    """One option of every kind."""

    rate: float = option(0.5, "a rate", above=0, high=1)
    count: int = option(2, "a count", low=1)
    flag: bool = option(True, "a flag")
    kind: Literal["soft", "hard"] = option("soft", "a kind")
    name: str = option("x", "a name")
    private: int = 7


OPTIONS = options_of(Part)


def test_a_dataclass_declares_its_options_once() -> None:
    assert list(OPTIONS) == ["rate", "count", "flag", "kind", "name"]
    assert OPTIONS["rate"] == Option("rate", float, 0.5, "a rate", None, 1, 0, ())
    assert OPTIONS["kind"].choices == ("soft", "hard")


@pytest.mark.parametrize(
    ("name", "given_", "expected"),
    [
        ("rate", "0.25", 0.25),
        ("rate", 1, 1.0),
        ("rate", "1e-3", 0.001),
        ("count", "3", 3),
        ("count", 3.0, 3),
        ("flag", "off", False),
        ("flag", "YES", True),
        ("flag", False, False),
        ("kind", "hard", "hard"),
        ("name", "any text", "any text"),
    ],
)
def test_values_are_converted(name: str, given_: Any, expected: Any) -> None:
    value = OPTIONS[name].parse(given_)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("name", "given_", "message"),
    [
        ("rate", "0", "rate=0.0 is too small: more than 0"),
        ("rate", "1.01", "rate=1.01 is too large: at most 1"),
        ("rate", "nan", "rate=nan: needs a finite number"),
        ("rate", "a lot", "rate=a lot: needs a number"),
        ("rate", True, "rate=True: needs a number"),
        ("rate", [1], "needs a number"),
        ("count", "0", "count=0 is too small: at least 1"),
        ("count", "2.5", "count=2.5: needs a whole number"),
        ("count", 2.5, "count=2.5: needs a whole number"),
        ("count", float("inf"), "needs a whole number"),
        ("count", True, "needs a whole number"),
        ("flag", "maybe", "flag=maybe: needs true or false"),
        ("flag", 1, "needs true or false"),
        ("kind", "hrad", "kind=hrad: no such choice; did you mean 'hard'?"),
        ("kind", "zzz", "kind=zzz: no such choice; known: hard, soft"),
    ],
)
def test_values_that_do_not_fit_are_refused(name: str, given_: Any, message: str) -> None:
    with pytest.raises(UsageError) as error:
        OPTIONS[name].parse(given_)
    assert message in str(error.value)


def test_bounds_are_inclusive_unless_open() -> None:
    assert OPTIONS["rate"].parse(1) == 1
    assert OPTIONS["count"].parse(1) == 1


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_number_is_accepted_exactly_if_it_lies_in_the_bounds(value: float) -> None:
    try:
        accepted = OPTIONS["rate"].parse(repr(value)) == value
    except UsageError:
        accepted = False
    assert accepted == (0 < value <= 1)


@given(
    st.text() | st.integers() | st.floats() | st.none() | st.lists(st.integers()),
    st.sampled_from(sorted(OPTIONS)),
)
def test_whatever_is_given_ends_in_a_value_of_the_kind_or_a_usage_error(given_: Any, name: str) -> None:
    declared = OPTIONS[name]
    try:
        assert isinstance(declared.parse(given_), declared.kind)
    except UsageError as error:
        assert str(error).startswith(f"{name}=")  # noqa: PT017


@dataclass(frozen=True)
class Whole:
    """A part, and an option of its own with every mark."""

    part: Part = field(default_factory=Part)
    scale: float = option(1.0, "a scale", weight=True, later=True)


def test_the_options_of_a_part_are_those_of_the_whole() -> None:
    assert list(options_of(Whole)) == [*OPTIONS, "scale"]
    assert construct(Whole, {"count": 5, "scale": 2.0}) == Whole(Part(count=5), 2.0)


def test_weights_and_later_options_are_marked() -> None:
    marked = options_of(Whole)["scale"]
    assert (marked.weight, marked.later) == (True, True)
    assert not any(declared.weight or declared.later for declared in OPTIONS.values())


def test_construct_takes_its_own_values_and_leaves_the_others() -> None:
    assert construct(Part, {"count": 5, "unknown": 1, "private": 9}) == Part(count=5)


@pytest.mark.parametrize(
    ("word", "expected"),
    [("rouns", "; did you mean 'rounds'?"), ("qqq", "; known: rounds, seed")],
)
def test_the_nearest_known_word_is_named(word: str, expected: str) -> None:
    assert nearest(word, ["seed", "rounds"]) == expected
