"""Messages of models are encoded once for all sites that get the same ones."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra flower")
from fedscal.core import weights
from fedscal.core.types import Groups
from fedscal.flower.codec import JUDGED, Encoder, decode, encode
from toys import model

SOURCE = model(0.0)


@pytest.mark.parametrize("transport", ["fp32", "fp16", "bf16"])
def test_a_message_is_the_same_whoever_encodes_it(transport: str) -> None:
    encoder = Encoder(SOURCE, transport)
    for groups in ({"server": model(1.0)}, {"server": model(2.0)}, {"server": SOURCE, "other": model(3.0)}):
        assert encoder({"kind": "train"}, groups) == encode(
            {"kind": "train"}, groups, list(groups), SOURCE, transport
        )


def test_equal_models_are_encoded_once_and_headers_stay_each_one_s_own() -> None:
    encoder, shared = Encoder(SOURCE, "fp32"), model(1.0)
    a, b = (encoder({"to": to}, {"server": shared}) for to in ("a", "b"))
    assert a.payload is b.payload
    assert (a.header["to"], b.header["to"]) == ("a", "b")


@pytest.mark.parametrize(
    "other", [{"server": model(5.0)}, {"cluster": model(1.0)}, {"server": model(1.0), "more": model(2.0)}]
)
def test_what_is_not_the_very_same_is_encoded_anew(other: Groups) -> None:
    encoder, first = Encoder(SOURCE, "fp32"), {"server": model(1.0)}
    encoder({}, first)
    found = decode(encoder({}, other), list(other), SOURCE, "fp32")
    assert weights.digest_of(found) == weights.digest_of(other)
    assert decode(encoder({}, first), ["server"], SOURCE, "fp32")["server"]["w"].equal(
        torch.tensor([1.0, -1.0])
    )


@pytest.mark.parametrize("transport", ["fp32", "fp16", "bf16"])
def test_a_model_to_judge_is_as_if_it_came_alone_and_what_the_other_has_travels_once(transport: str) -> None:
    source = {name: torch.rand(5) for name in "abcd"}
    sent = {**source, "b": torch.rand(5), "c": torch.rand(5), "d": torch.rand(5)}
    judged = {**sent, "c": torch.rand(5), "d": source["d"]}  # a and b as sent, d as the source model's
    frame = Encoder(source, transport)({}, {"server": sent, JUDGED: judged})
    assert weights.from_bytes(frame.payload, "it").keys() == {
        "server/b", "server/c", "server/d", "judged/c", "judged/d",
    }  # fmt: skip
    found = decode(frame, ["judged", "server"], source, transport)
    for group, model_ in (("server", sent), (JUDGED, judged)):
        alone = Encoder(source, transport)({}, {"server": model_})
        expected = decode(alone, ["server"], source, transport)["server"]
        assert weights.digest(found[group]) == weights.digest(expected)


def test_the_very_model_that_is_trained_from_is_judged_for_no_more_bytes() -> None:
    sent = model(1.0)
    both = Encoder(SOURCE, "fp32")({}, {"server": sent, JUDGED: sent})
    assert both.payload == Encoder(SOURCE, "fp32")({}, {"server": sent}).payload
    found = decode(both, ["judged", "server"], SOURCE, "fp32")
    assert weights.digest(found[JUDGED]) == weights.digest(sent)
