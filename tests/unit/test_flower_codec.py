"""Messages of models are encoded once for all sites that get the same ones."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra flower")
from fedscal.core import weights
from fedscal.core.types import Groups
from fedscal.flower.codec import Encoder, decode, encode
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
