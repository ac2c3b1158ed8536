"""What a site lets out, what it remembers, and how models travel."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

import torch

from fedscal.client.training import Diverged
from fedscal.core.errors import DataRefused, ModelRefused
from fedscal.core.weights import from_bytes
from fedscal.flower.codec import decode, encode, from_records, rounded, to_records
from fedscal.flower.schema import NotAllowed
from fedscal.flower.site_service import safe_reason
from fedscal.runtime.memory import SiteMemories
from fedscal.runtime.messages import Frame

SOURCE = {"w": torch.tensor([1.0, -0.0]), "head": torch.tensor([2.0]), "n": torch.tensor(3)}


@pytest.mark.parametrize("kind", [DataRefused, NotAllowed, ModelRefused, OSError, KeyError])
def test_an_error_is_told_without_its_text(kind: type[Exception]) -> None:
    error = kind("/data/x")
    assert "/data" not in safe_reason(error)
    assert "log of the site" in safe_reason(error)


def test_a_training_that_diverged_says_so() -> None:
    assert (
        safe_reason(Diverged("the loss is not finite any more; lower lr"))
        == "the loss is not finite any more; lower lr"
    )


def test_only_what_changed_travels_and_comes_back_whole() -> None:
    model = {**SOURCE, "w": torch.tensor([1.0, 0.0])}  # 0.0 and -0.0 are equal, their bits are not
    frame = encode({"round": 1}, {"server": model, "report": SOURCE}, ["server"], SOURCE, "fp32")
    models = decode(frame, ["server"], SOURCE, "fp32")
    assert frame.header == {"round": 1, "models": ["server"], "transport": "fp32"}
    assert set(from_bytes(frame.payload, "it")) == {"server/w", "report/w", "report/head", "report/n"}
    assert models.keys() == {"server", "report"}
    assert str(models["server"]["w"].tolist()) == "[1.0, 0.0]"
    assert models["server"]["n"].item() == 3


def test_a_model_that_is_the_source_model_is_no_bytes() -> None:
    frame = encode({}, {"server": SOURCE}, ["server"], SOURCE, "fp32")
    assert from_bytes(frame.payload, "it") == {}
    assert decode(frame, ["server"], SOURCE, "fp32")["server"].keys() == SOURCE.keys()


@pytest.mark.parametrize(("transport", "kept"), [("fp16", 1.0009765625), ("bf16", 1.0)])
def test_rounding(transport: str, kept: float) -> None:
    # 1 + 1/1024 is the next float16 after 1; a bfloat16 has 7 bits after the point and drops it.
    model = {**SOURCE, "w": torch.tensor([1 + 1 / 1024, 2.0])}
    frame = encode({}, {"server": model}, ["server"], SOURCE, transport)
    back = decode(frame, ["server"], SOURCE, transport)["server"]
    assert back["w"].tolist() == [kept, 2.0]
    assert back["w"].dtype == torch.float32
    assert torch.equal(rounded(model, transport)["w"], back["w"])


def test_a_message_comes_back_as_it_was_and_not_if_it_is_too_large() -> None:
    frame = Frame({"kind": "train", "round": 3}, b"x" * 1000)
    records = to_records(frame)
    assert from_records(records) == frame
    with pytest.raises(ModelRefused, match="more than it may"):
        from_records(records, limit=999)


def test_a_site_remembers_what_it_had_before_a_round(tmp_path: Path) -> None:
    memory = SiteMemories(tmp_path / "run")
    assert memory.get("a", 1) == {}
    for round_ in (1, 3, 4, 6):
        memory.put("a", round_, {"previous": {"w": torch.tensor([float(round_)])}})
    assert memory.get("a", 7)["previous"]["w"].item() == 6
    assert memory.get("a", 6)["previous"]["w"].item() == 4  # a server that went back to round 5
    assert memory.get("a", 4)["previous"]["w"].item() == 3
    assert len(list((tmp_path / "run").iterdir())) == 3


def test_a_round_that_is_done_again_replaces_what_came_of_it(tmp_path: Path) -> None:
    memory = SiteMemories(tmp_path)
    for value, round_ in ((1.0, 1), (2.0, 2), (3.0, 3), (20.0, 2)):
        memory.put("a", round_, {"previous": {"w": torch.tensor([value])}})
    assert memory.get("a", 9)["previous"]["w"].item() == 20


def test_a_damaged_memory_is_refused(tmp_path: Path) -> None:
    memory = SiteMemories(tmp_path)
    memory.put("a", 1, {"previous": {"w": torch.zeros(1)}})
    (tmp_path / "round-0001" / "memory.safetensors").write_bytes(b"other")
    with pytest.raises(ModelRefused, match="damaged"):
        memory.get("a", 2)
