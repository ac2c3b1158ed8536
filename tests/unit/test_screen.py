"""Replies are looked at before they are used: what is dropped, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch

from fedscal.server.screen import fault, screen
from fedscal.types import Failure, Reply
from toys import model, reply

MODEL = model(0.0)
GOOD = reply("a", model(1.0), round_=4)

FAULTS: dict[str, tuple[Callable[[Reply], Reply], str]] = {
    "NaN": (
        lambda r: with_tensor(r, "w", torch.tensor([1.0, float("nan")])),
        "tensor 'w' holds NaN or infinity",
    ),
    "infinity": (lambda r: with_tensor(r, "w", torch.tensor([1.0, -torch.inf])), "holds NaN or infinity"),
    "shape": (lambda r: with_tensor(r, "w", torch.ones(3)), "tensor 'w' is torch.float32 (3,)"),
    "dtype": (
        lambda r: with_tensor(r, "w", torch.ones(2, dtype=torch.float64)),
        "tensor 'w' is torch.float64",
    ),
    "extra key": (lambda r: with_tensor(r, "virus", torch.ones(1)), "'virus' is missing or unknown"),
    "missing key": (lambda r: replace(r, weights={"w": r.weights["w"]}), "is missing or unknown"),
    "old round": (lambda r: replace(r, round=3), "answers round 3, not 4"),
    "no examples": (lambda r: replace(r, examples=0), "claims 0 examples"),
    "negative": (lambda r: replace(r, examples=-5), "claims -5 examples"),
    "too many": (lambda r: replace(r, examples=2**60), "examples"),
    "text": (lambda r: replace(r, examples="9"), "claims '9' examples"),  # type: ignore[arg-type]
    "drift": (lambda r: replace(r, drift=float("nan")), "a number in its record is NaN"),
    "loss": (lambda r: replace(r, epochs=({"loss": float("inf")},)), "a number in its record is NaN"),
    "unasked report": (
        lambda r: replace(r, reports={"x": {"y": torch.ones(1)}}),
        "'x/y' is missing or unknown",
    ),
    "true": (lambda r: replace(r, examples=True), "claims True examples"),
}


def with_tensor(base: Reply, name: str, tensor: Any) -> Reply:
    return replace(base, weights={**base.weights, name: tensor})


def ask(*answers: Reply | Failure, asked: str = "abc") -> tuple[list[str], dict[str, str]]:
    replies, failures = screen(answers, frozenset(asked), 4, MODEL, {})
    return [r.client for r in replies], {f.client: f.reason for f in failures}


def test_a_sound_reply_has_no_fault() -> None:
    assert fault(GOOD, 4, MODEL, {}) is None


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_named(name: str) -> None:
    spoil, message = FAULTS[name]
    assert message in str(fault(spoil(GOOD), 4, MODEL, {}))


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_reply_is_dropped_and_the_others_stay(name: str) -> None:
    bad = FAULTS[name][0](replace(GOOD, client="b"))
    used, failed = ask(GOOD, bad, replace(GOOD, client="c"))
    assert used == ["a", "c"]
    assert failed.keys() == {"b"}


def test_failures_keep_their_reason_and_silent_clients_are_named() -> None:
    used, failed = ask(GOOD, Failure("b", "out of memory"))
    assert used == ["a"]
    assert failed == {"b": "out of memory", "c": "did not answer"}


def test_strangers_are_dropped_whatever_they_send() -> None:
    used, failed = ask(GOOD, replace(GOOD, client="z"), Failure("y", "sorry"), asked="a")
    assert used == ["a"]
    assert set(failed) == {"y", "z"}
    assert all("was not asked" in reason for reason in failed.values())


def test_of_two_answers_the_first_counts_and_the_second_is_named() -> None:
    replies, failures = screen([GOOD, replace(GOOD, examples=50)], frozenset("a"), 4, MODEL, {})
    assert [r.examples for r in replies] == [1]
    assert [(f.client, f.reason) for f in failures] == [("a", "was not asked, or answered twice")]


def test_replies_and_failures_are_sorted_by_client_whatever_the_order() -> None:
    answers = [replace(GOOD, client="b"), GOOD, Failure("d", "x"), Failure("c", "y")]
    found = {repr(ask(*order, asked="abcd")) for order in permutations(answers)}
    assert found == {repr((["a", "b"], {"c": "y", "d": "x"}))}


def test_a_good_answer_after_a_bad_one_is_too_late() -> None:
    used, failed = ask(Failure("a", "unplugged"), GOOD, asked="a")
    assert used == []
    assert failed == {"a": "was not asked, or answered twice"}


def test_a_report_that_was_asked_for_must_be_there_and_look_right() -> None:
    asked = {"start": {"blend": torch.zeros(2)}}
    told = replace(GOOD, reports={"start": {"blend": torch.tensor([0.5, 0.5])}})
    assert fault(told, 4, MODEL, asked) is None
    assert "'start/blend' is missing" in str(fault(GOOD, 4, MODEL, asked))
    short = replace(GOOD, reports={"start": {"blend": torch.ones(1)}})
    assert "tensor 'start/blend' is torch.float32 (1,)" in str(fault(short, 4, MODEL, asked))
