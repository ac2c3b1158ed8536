"""Replies are looked at before they are used: what is dropped, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch

from fedscal.core.types import Failure, Groups, Package, Reply
from fedscal.server.screen import fault, screen
from toys import model, reply

MODEL = {**model(0.0, counter=7), "norm.running_var": torch.tensor([2.0])}
SENT = Package(4, 0.1, {"server": MODEL})
GOOD = reply("a", {**MODEL, **model(1.0, counter=8)}, round_=4)
COUNTER = "norm.num_batches_tracked"

FAULTS: dict[str, tuple[Callable[[Reply], Reply], str]] = {
    "NaN": (
        lambda r: with_tensor(r, "w", torch.tensor([1.0, float("nan")])),
        "tensor 'w' holds NaN or infinity",
    ),
    "infinity": (lambda r: with_tensor(r, "w", torch.tensor([1.0, -torch.inf])), "holds NaN or infinity"),
    "shape": (lambda r: with_tensor(r, "w", torch.ones(3)), "tensor 'w' is torch.float32 (3,)"),
    "dtype": (
        lambda r: with_tensor(r, "w", torch.ones(2, dtype=torch.float64)),
        "tensor 'w' is torch.float64 (2,), not torch.float32 (2,)",
    ),
    "extra key": (lambda r: with_tensor(r, "virus", torch.ones(1)), "'virus' is missing or unknown"),
    "missing key": (lambda r: replace(r, weights={"w": r.weights["w"]}), "is missing or unknown"),
    "old round": (lambda r: replace(r, round=3), "its record.round is 3, not 4"),
    "no examples": (lambda r: replace(r, examples=0), "its record.examples is 0, not a whole number from 1"),
    "negative": (lambda r: replace(r, examples=-5), "examples is -5"),
    "too many": (lambda r: replace(r, examples=2**60), "examples is 1152921504606846976, not a whole"),
    "text": (lambda r: spoiled(r, examples="9"), "examples is '9', not a whole number"),
    "drift": (lambda r: replace(r, drift=float("nan")), "its record.drift is nan, not a number from 0"),
    "loss": (lambda r: replace(r, epochs=({"loss": float("inf")},)), "its record.epochs[0].loss is inf"),
    "unasked report": (
        lambda r: replace(r, reports={"x": {"y": torch.ones(1)}}),
        "'x/y' is missing or unknown",
    ),
    "true": (lambda r: replace(r, examples=True), "examples is True"),
    "negative drift": (lambda r: replace(r, drift=-1.0), "drift is -1.0, not a number from 0"),
    "huge drift": (lambda r: replace(r, drift=10**400), "drift is 1000"),
    "textual drift": (lambda r: spoiled(r, drift="far"), "drift is 'far'"),
    "no drift": (lambda r: spoiled(r, drift=None), "drift is None"),
    "seconds": (lambda r: spoiled(r, seconds=[1.0]), "seconds is [1.0]"),
    "huge epoch": (lambda r: replace(r, epochs=[{"loss": 10**400}]), "epochs[0].loss is 1000"),
    "textual epoch": (lambda r: spoiled(r, epochs=[{"loss": "low"}]), "epochs[0].loss is 'low'"),
    "epochs in words": (lambda r: spoiled(r, epochs="two"), "epochs is 'two'"),
    "no epochs": (lambda r: spoiled(r, epochs=None), "epochs is None"),
    "nested epochs": (lambda r: spoiled(r, epochs=[[{}]]), "epochs[0] is [{}], not named values"),
    "no weights": (lambda r: spoiled(r, weights=None), "it holds None in the place of tensors"),
    "no tensor": (lambda r: with_tensor(r, "w", None), "tensor 'w' is None, not"),
    "a list": (lambda r: with_tensor(r, "w", [1.0, 2.0]), "tensor 'w' is [1.0, 2.0], not"),
    "a number as a name": (lambda r: spoiled(r, weights={**r.weights, 3: 3}), "3 is missing or unknown"),
    "sparse": (lambda r: with_tensor(r, "w", torch.ones(2).to_sparse()), "torch.sparse_coo, not"),
    "meta": (lambda r: with_tensor(r, "w", torch.ones(2, device="meta")), "(2,) meta, not"),
    "complex": (lambda r: with_tensor(r, "w", torch.ones(2, dtype=torch.complex64)), "torch.complex64 (2,)"),
    "quantised": (
        lambda r: with_tensor(r, "w", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)),
        "torch.qint8 (2,)",
    ),
    "negative variance": (
        lambda r: with_tensor(r, "norm.running_var", torch.tensor([-1e6])),
        "the variance 'norm.running_var' is negative",
    ),
    "negative counter": (
        lambda r: with_tensor(r, COUNTER, torch.tensor(-1)),
        f"the counter '{COUNTER}' is -1, which it cannot",
    ),
    "absurd counter": (
        lambda r: with_tensor(r, COUNTER, torch.tensor(2**62)),
        "is 4,611,686,018,427,387,904, which it cannot have counted",
    ),
    "reports in words": (lambda r: spoiled(r, reports="none"), "AttributeError"),
}


def spoiled(base: Reply, **fields: Any) -> Reply:
    """Return a reply with values of any kind in its fields."""
    return replace(base, **fields)


def with_tensor(base: Reply, name: str, tensor: Any) -> Reply:
    return replace(base, weights={**base.weights, name: tensor})


def ask(*answers: Reply | Failure, asked: str = "abc") -> tuple[list[str], dict[str, str]]:
    replies, failures = screen(answers, dict.fromkeys(asked, SENT), lambda sent: {})
    return [r.client for r in replies], {f.client: f.reason for f in failures}


def test_a_sound_reply_has_no_fault() -> None:
    assert fault(GOOD, SENT, {}) is None


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_reply_is_dropped_by_name_and_the_others_stay(name: str) -> None:
    spoil, message = FAULTS[name]
    used, failed = ask(GOOD, spoil(replace(GOOD, client="b")), replace(GOOD, client="c"))
    assert used == ["a", "c"]
    assert failed.keys() == {"b"}
    assert message in failed["b"]


@pytest.mark.parametrize("odd", [None, "reply", replace(GOOD, client=["a"]), replace(GOOD, client=None)])  # type: ignore[arg-type]
def test_what_is_no_answer_of_anybody_is_named_and_dropped(odd: Any) -> None:
    used, failed = ask(GOOD, odd, asked="a")
    assert used == ["a"]
    assert list(failed.values()) == ["was not asked, or answered twice"]


def test_what_a_client_says_stays_on_one_line() -> None:
    _, failed = ask(Failure("a", "sorry\nfedscal ended with code 4" + 1000 * "!"), asked="a")
    assert failed["a"].startswith("sorry fedscal")
    assert len(failed["a"]) == 300


def test_a_counter_may_be_as_high_as_a_client_can_have_counted() -> None:
    # One image, one epoch: at most 16 passes after the 7 that were sent.
    at, beyond = (with_tensor(GOOD, COUNTER, torch.tensor(n)) for n in (23, 24))
    assert fault(at, SENT, {}) is None
    assert "cannot have counted" in str(fault(beyond, SENT, {}))


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
    replies, failures = screen([GOOD, replace(GOOD, examples=50)], {"a": SENT}, lambda sent: {})
    assert [r.examples for r in replies] == [1]
    assert [(f.client, f.reason) for f in failures] == [("a", "was not asked, or answered twice")]


def test_replies_and_failures_are_sorted_by_client_whatever_the_order() -> None:
    answers: list[Reply | Failure] = [replace(GOOD, client="b"), GOOD, Failure("d", "x"), Failure("c", "y")]
    found = {repr(ask(*order, asked="abcd")) for order in permutations(answers)}
    assert found == {repr((["a", "b"], {"c": "y", "d": "x"}))}


def test_a_good_answer_after_a_bad_one_is_too_late() -> None:
    used, failed = ask(Failure("a", "unplugged"), GOOD, asked="a")
    assert used == []
    assert failed == {"a": "was not asked, or answered twice"}


def test_a_report_that_was_asked_for_must_be_there_and_look_right() -> None:
    asked: Groups = {"start": {"blend": torch.zeros(2)}}
    told = replace(GOOD, reports={"start": {"blend": torch.tensor([0.5, 0.5])}})
    assert fault(told, SENT, asked) is None
    assert "'start/blend' is missing" in str(fault(GOOD, SENT, asked))
    short = replace(GOOD, reports={"start": {"blend": torch.ones(1)}})
    assert "tensor 'start/blend' is torch.float32 (1,)" in str(fault(short, SENT, asked))
