"""Thousands of answers that no honest site gives: each is on the list and is used, or is dropped by name."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

pytest.importorskip("flwr")

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local_grid import Answer, Header, LocalGrid
from safetensors.torch import load, save
from torch import Tensor

from fedscal.client.style import style
from fedscal.client.training import Training, local_update
from fedscal.core import weights
from fedscal.core.errors import FedscalError
from fedscal.core.rng import Streams
from fedscal.core.types import Failure, Groups, Package, Reply
from fedscal.flower.codec import encode
from fedscal.flower.driver import FlowerDriver
from fedscal.flower.headers import request_header
from fedscal.flower.registry import RegisteredSite, Registry
from fedscal.flower.schema import Schemas
from fedscal.flower.transport import GridTransport
from fedscal.methods import build_objective, build_rule
from fedscal.models.network import predict
from fedscal.runtime.evaluate import client_metrics
from fedscal.runtime.messages import Frame, training_response
from fedscal.server.rule import ServerState
from fedscal.server.screen import screen
from toys import CLASSES, SIDE, blobs, client_data, tiny_network

COUNT = 8
SOURCE = weights.snapshot(tiny_network().state_dict())
OBJECTIVE, RULE = build_objective("fedscal", "shot", {}), build_rule("fedscal", {"norm_limit": 3.0})
SCHEMAS = Schemas(OBJECTIVE, RULE, style, 2, SOURCE, CLASSES, (1, SIDE, SIDE))
PACKAGE = Package(3, 0.05, {"server": SOURCE})
DATA = client_data(COUNT)
REPLY, _ = local_update(PACKAGE, {}, DATA, OBJECTIVE, Training(2, 4), Streams(0, "a", 3), tiny_network())
METRICS = client_metrics(predict(tiny_network(), DATA.images, DATA.views.evaluate), None, blobs(COUNT)[1])
STAMP = {"version": "0.1", "classes_sha256": "0" * 64, "model_sha256": "f" * 64}
TRAINED = training_response(REPLY, {})
NONE = encode({}, {}, [], SOURCE, "fp32").payload


def answer(header: Header, models: Groups | None = None) -> tuple[Header, bytes]:
    frame = encode({**header, "client": "a", **STAMP}, models or {}, list(models or {}), SOURCE, "fp32")
    return frame.header, frame.payload


ANSWERS = {
    "hello": answer({"domain": "a", "images": COUNT}),
    "train": answer({**TRAINED.scalars, "metrics": METRICS}, TRAINED.tensors),
    "evaluate": answer({"metrics": METRICS}),
}


class Honest:
    """A site that says what is said above."""

    def handle(self, request: Frame) -> Frame:
        return Frame(*ANSWERS[request_header(request)["kind"]])


def driver_over(changed: Answer) -> FlowerDriver:
    """Return a driver over a site that gives one answer in the place of its own, and was honest before."""
    grid = LocalGrid({1: Honest()})
    grid.tamper[1] = lambda header, payload: changed
    sites = {"a": RegisteredSite(1, "a", COUNT)}
    registry = Registry(grid, GridTransport(grid, 100_000), ["a"], STAMP, {}, sites=sites)
    return FlowerDriver(["a"], registry, SCHEMAS, "0", {}, "fp32", 5, 0, {"a": METRICS})


ODD_WORDS = [
    "average",
    "domain",
    "epochs",
    "stale",
    "refused",
    "\n",
    "\x00",
    "\u202e",
    "\ud800",
    "/etc",
    "x" * 400,
]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 1, COUNT, 2**63, 10**12, 10**400, -(10**400)])
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(ODD_WORDS)
)
NAMES = st.sampled_from([*ODD_WORDS, *ANSWERS["train"][0], *METRICS]) | st.text(st.characters(), max_size=5)
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def containers(value: Any) -> Iterator[dict[str, Any] | list[Any]]:
    """Yield every list and object of a header, the header first."""
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


@st.composite
def headers(draw: st.DrawFn, kind: str) -> tuple[Header, bytes]:
    """Change one to three values of an honest header, at any depth: another, a missing or an unknown one."""
    header = copy.deepcopy(dict(ANSWERS[kind][0]))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(list(containers(header))))
        keys: list[Any] = list(place if isinstance(place, dict) else range(len(place)))
        another = bool(keys) and draw(st.booleans())
        if another:
            key = draw(st.sampled_from(keys))
            if draw(st.integers(0, 3)):
                place[key] = draw(JUNK)
            else:
                del place[key]
        elif isinstance(place, dict):
            place[draw(NAMES)] = draw(JUNK)
        else:
            place.append(draw(JUNK))
    return header, ANSWERS[kind][1]


KINDS = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool,
    torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn, name: str) -> Tensor:
    """Return a tensor in the place of the model's tensor of a name."""
    usual = SOURCE[name]
    shape = draw(st.sampled_from([tuple(usual.shape), (), (0,), (1, *usual.shape), (3,)]))
    value = draw(st.sampled_from([0.0, 1.0, -1.0, 1e6, -1e6, 3e38, float("inf"), float("nan")]))
    kind = draw(st.sampled_from([usual.dtype, *KINDS]))
    return torch.full(shape, value if kind.is_floating_point or kind.is_complex else int(value == 1)).to(kind)


@st.composite
def models(draw: st.DrawFn, kind: str) -> tuple[Header, bytes]:
    """Change the tensors of an honest answer."""
    header, payload = ANSWERS[kind]
    found = load(payload)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(SOURCE)))
        group = draw(st.sampled_from(["weights/"] * 3 + ["report:x/", "profile/", "", "memory:x/"]))
        found[group + draw(st.just(name) | NAMES)] = draw(tensors(name))
    return header, save({name.encode("utf8", "replace").decode(): tensor for name, tensor in found.items()})


Records = dict[str, ArrayRecord | MetricRecord | ConfigRecord]


@st.composite
def records(draw: st.DrawFn, kind: str) -> RecordDict:
    """Send something that is no message of ours: torn JSON, deep JSON, torn tensors, other records."""
    header, payload = ANSWERS[kind]
    text, cut = json.dumps(header), draw(st.integers(0, 2000))
    texts = [text, text[:cut], text * 2, "[" * 100_000, '{"a":' * 9000, "9" * 5000, '{"client": NaN}', ""]
    raw = draw(st.sampled_from([payload, payload[:cut], b"", NONE, payload[::-1]]) | st.binary(max_size=64))
    kinds = [np.uint8, np.int8] if len(raw) % 8 else [np.uint8, np.float64, np.uint8]
    array = Array(np.frombuffer(raw, draw(st.sampled_from(kinds))))
    said = ConfigRecord({"json": draw(st.sampled_from(texts) | st.text(max_size=30) | st.integers(0, 9))})
    found: Records = {
        "header": said,
        "tensors": ArrayRecord({draw(st.sampled_from(["safetensors"] * 3 + ["x"])): array}),
    }
    odds: list[Records] = [{}, {}, {}, {"more": said}, {"header": found["tensors"]}, {"tensors": said}]
    odd = draw(st.sampled_from(odds))
    return RecordDict({**found, **odd})


def answers(kind: str) -> st.SearchStrategy[Answer]:
    return headers(kind) | models(kind) | records(kind)


SAMPLED = [150, pytest.param(700, marks=pytest.mark.long)]
"""Examples of what has many places to be wrong in."""


def many(count: int) -> settings:
    """Return settings for so many examples, whatever the machine's speed; the same ones every time."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=slow)


def assert_named(reason: str) -> None:
    assert reason
    assert reason.isprintable()
    assert len(reason) <= 600


def assert_used_or_named(found: list[Reply | Failure]) -> None:
    """Screen an answer, merge it if it is sound, and write its record down."""
    sound, failures = screen(found, {"a": PACKAGE}, RULE.reports)
    assert [one.client for one in sound] + [one.client for one in failures] == ["a"]
    for failure in failures:
        assert_named(failure.reason)
    for one in sound:
        state = RULE.merge(ServerState({"server": SOURCE}), [one, replace(REPLY, client="b")])
        assert weights.first_not_finite(state.models["server"]) is None
        assert (state.models["server"]["backbone.1.running_var"] >= 0).all()
        assert json.dumps(training_response(one, {}).scalars, allow_nan=False)


def test_the_honest_answer_is_used_as_it_is() -> None:
    (found,) = driver_over(ANSWERS["train"]).exchange({"a": PACKAGE})
    assert isinstance(found, Reply)
    assert weights.digest(found.weights) == weights.digest(REPLY.weights)
    assert training_response(found, {}).scalars == TRAINED.scalars
    assert screen([found], {"a": PACKAGE}, RULE.reports) == ([found], [])
    assert driver_over(ANSWERS["evaluate"]).evaluate({"a": SOURCE}) == {"a": METRICS}


@pytest.mark.parametrize("count", SAMPLED)
def test_any_answer_to_training_is_used_or_named(count: int) -> None:
    @many(count)
    @given(answers("train"))
    def check(changed: Answer) -> None:
        assert_used_or_named(list(driver_over(changed).exchange({"a": PACKAGE})))

    check()


@many(200)
@given(answers("evaluate"))
def test_any_judgement_is_used_or_the_last_one_stands(changed: Answer) -> None:
    (found,) = driver_over(changed).evaluate({"a": SOURCE}).values()
    assert found.keys() - {"stale"} == METRICS.keys()
    assert json.dumps(found, allow_nan=False)
    assert 0 <= found["accuracy"] <= 100
    assert found["images"] == COUNT


@many(200)
@given(answers("hello"))
def test_any_handshake_is_used_or_named(changed: Answer) -> None:
    registry = driver_over(changed).registry
    warnings: list[str] = []
    registry.sites, registry.warn = {}, warnings.append
    registry.update()
    for reason in [*warnings, *map(str, registry.refused.values())]:
        assert_named(reason)
    assert all(isinstance(error, FedscalError) and error.exit_code > 1 for error in registry.refused.values())
    for site in registry.sites.values():
        assert 1 <= site.images <= 10**9
        assert site.domain != "average"
    assert len(registry.sites) + len(registry.refused) + len(warnings) == 1


STRANGE = [
    torch.ones(4).to_sparse(), torch.ones(4, device="meta"), torch.ones(4, dtype=torch.complex64),
    torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), torch.ones(()), torch.ones(4, 4),
    torch.ones(4).expand(9, 4), torch.full((4,), -1.0), torch.full((4,), torch.nan), torch.full((4,), 3e38),
    torch.tensor(2**62), torch.tensor(-1), None, "tensor", 7,
]  # fmt: skip
FIELDS = [one.name for one in fields(Reply) if one.name != "client"]


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    """Change one to three fields of an honest reply, as a broken client in this process could."""
    found = REPLY
    for _ in range(draw(st.integers(1, 3))):
        name = draw(
            st.sampled_from([one.name for one in fields(Reply) if one.name != "client"] + ["tensor"] * 3)
        )
        known = found.weights if isinstance(found.weights, dict) else {}
        odd = {
            **known,
            draw(st.sampled_from(sorted(SOURCE)) | NAMES | LEAVES): draw(st.sampled_from(STRANGE)),
        }
        change: dict[str, Any] = {"weights": odd} if name == "tensor" else {name: draw(JUNK)}
        found = replace(found, **change)
    return found


@pytest.mark.parametrize("count", SAMPLED)
def test_any_reply_of_this_machine_is_used_or_named(count: int) -> None:
    @many(count)
    @given(replies())
    def check(changed: Reply) -> None:
        assert_used_or_named([changed])

    check()
