"""Whatever a registered site answers is dropped by name, and the run goes on to the honest bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import numpy as np
import torch
from flower_world import SITES, World
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from harness import rows, summary
from local_grid import Answer, Header, LocalGrid, Tamper, new_service
from safetensors.torch import load, save
from test_flower_rounds import everything_sent, run
from torch import Tensor

from fedscal.core.errors import ModelRefused, TooFewClients
from fedscal.flower.headers import request_header
from fedscal.flower.site_service import SiteService
from fedscal.runtime.messages import Frame

HUGE = 10**400
FORGED = "sorry\nfedscal ended with code 4: your model was refused"


def put(**changed: object) -> Tamper:
    """Replace fields of the header."""
    return lambda header, payload: ({**header, **changed}, payload)


def refused(reason: object) -> Tamper:
    return lambda header, payload: ({"refused": reason}, payload)


def metric(name: str, value: float) -> Tamper:
    return lambda header, payload: ({**header, "metrics": {**header["metrics"], name: value}}, payload)


def loss(value: float) -> Tamper:
    return lambda header, payload: ({**header, "epochs": [{**header["epochs"][0], "loss": value}]}, payload)


def tensors(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tamper:
    return lambda header, payload: (header, save(change(load(payload))))


def written(text: str) -> Tamper:
    """Send a header as it stands, whether it is JSON or not."""
    return lambda header, payload: RecordDict(
        {
            "header": ConfigRecord({"json": text}),
            "tensors": ArrayRecord({"safetensors": Array(np.frombuffer(payload, np.uint8))}),
        }
    )


def statistics(ending: str, value: float) -> Tamper:
    def change(found: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: torch.full_like(t, value) if n.endswith(ending) else t for n, t in found.items()}

    return tensors(change)


HOSTILE = [
    (put(examples=float("inf")), "examples is inf, not 24"),
    (put(examples=HUGE), "more than 63 bits"),
    (put(examples=25), "examples is 25, not 24"),
    (put(round=float("inf")), "round is inf"),
    (put(round=HUGE), "more than 63 bits"),
    (put(drift=float("inf")), "drift is inf, not a number from 0"),
    (put(drift=HUGE), "more than 63 bits"),
    (put(seconds="long"), "seconds is 'long'"),
    (put(epochs=[{}] * 1000), ", not a list of 1"),
    (loss(HUGE), "more than 63 bits"),
    (loss(float("-inf")), "epochs[0].loss is -inf"),
    (metric("accuracy", HUGE), "more than 63 bits"),
    (metric("accuracy", 101), "metrics.accuracy is 101, not a number from 0 to 100"),
    (metric("entropy", float("inf")), "metrics.entropy is inf"),
    (metric("images", 10**12), "metrics.images is 1000000000000, not 24"),
    (metric("domain", 1.0), "metrics has 'domain', which is not on the list"),
    (metric("epochs", 1.0), "metrics has 'epochs', which is not on the list"),
    (written("[" * 500_000), "it is nested more than 32 deep"),
    (written('{"client": ' + "9" * 5000 + "}"), "more than 63 bits"),
    (written("7"), "header is not an object"),
    (refused(FORGED), "refused is 'sorry\\nfedsc"),
    (refused(["a"] * 9), "refused is ['a',"),
    (put(path="/data"), "has 'path', which is not on the list"),
    (statistics("running_var", -1e6), "running_var' is negative"),
    (statistics("num_batches_tracked", 2**62), "which it cannot have counted"),
    (tensors(lambda found: {**found, "report:x/y": torch.ones(1)}), "'report:x/y' is missing or unknown"),
    (tensors(lambda found: {n: t.to(torch.complex64) for n, t in found.items()}), "torch.complex64"),
]


Answered = dict[tuple[str, int | None], Frame]
"""Frames by the kind and the round of their requests."""


class Copy:
    """A site that answers like another, under a name of its own; that one works once for all of them."""

    def __init__(self, client: str, original: SiteService, kept: Answered) -> None:
        self._client, self._original, self._kept = client, original, kept

    def handle(self, request: Frame) -> Frame:
        header = request_header(request)
        key = header["kind"], header["scalars"].get("round")
        if key not in self._kept:
            own = {**header, "clients": [self._original.client]}
            self._kept[key] = self._original.handle(Frame(own, request.payload))
        response = self._kept[key]
        return Frame({**response.header, "client": self._client}, response.payload)


def when_trained(change: Tamper) -> Tamper:
    """Change the answer to a request to train, and no other."""
    return lambda header, payload: change(header, payload) if "examples" in header else (header, payload)


def test_hostile_answers_are_dropped_by_name_and_change_no_bit(
    grid: LocalGrid, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = new_service(world, tmp_path, "a", "state-hostile")
    kept: Answered = {}
    reasons = {f"z{number:02}": reason for number, (_, reason) in enumerate(HOSTILE)}
    for number, client in enumerate(reasons):
        grid.services[100 + number] = Copy(client, original, kept)
        grid.tamper[100 + number] = when_trained(HOSTILE[number][0])
    run(grid, tmp_path / "run", world, clients="flower:" + "+".join([*SITES, *reasons]))
    for line in rows(tmp_path / "run")[1:]:
        assert line["failures"].keys() == reasons.keys()
        for client, reason in reasons.items():
            assert reason in line["failures"][client]
            assert line["failures"][client].isprintable()
    assert not any(said.startswith("fedscal ended") for said in capsys.readouterr().out.splitlines())
    honest = world.reference("fedscal", method="fedscal")  # as if the others had never been there
    assert summary(tmp_path / "run")["weights_sha256"] == summary(honest)["weights_sha256"]


@pytest.mark.parametrize(
    "change",
    [{"images": float("inf")}, {"images": -1}, {"images": 10**12}, {"images": "24"}, {"domain": "average"}],
    ids=str,
)
def test_a_handshake_that_is_none_is_refused_by_name(
    grid: LocalGrid, world: World, tmp_path: Path, change: dict[str, Any]
) -> None:
    grid.tamper[2] = put(**change)
    with pytest.raises(ModelRefused, match=f"^the handshake of b was refused: .*{next(iter(change))} is"):
        run(grid, tmp_path / "run", world)
    assert not (tmp_path / "run" / "spec.toml").exists()


def test_a_site_that_comes_back_with_a_bad_handshake_is_missed_by_name(
    grid: LocalGrid, world: World, tmp_path: Path
) -> None:
    def leave_and_come_back(header: Header, payload: bytes) -> Answer:
        if "examples" in header:
            grid.services[12] = grid.services.pop(2)
            grid.tamper[12] = put(images=10**12)
        return header, payload

    grid.tamper[2] = leave_and_come_back
    run(grid, tmp_path / "run", world, rounds=3)
    reasons = [line["failures"].get("b", "") for line in rows(tmp_path / "run")[1:]]
    assert reasons[0] == ""
    assert all("the handshake of b was refused: its answer.images is 1000000000000" in r for r in reasons[1:])


def test_numbers_of_a_model_that_cannot_be_are_replaced_by_the_last_ones(
    grid: LocalGrid, world: World, tmp_path: Path
) -> None:
    changes: list[Callable[[dict[str, Any]], dict[str, Any]] | None] = [
        None,
        lambda found: {**found, "snd": 1e9},
        lambda found: {**found, "average": 1.0},
        lambda found: {},
    ]
    bad = iter(changes)

    def tamper(header: Header, payload: bytes) -> Answer:
        """Change what comes with a training, and what comes alone."""
        judged = next((part for part in ("judged", "metrics") if part in header), "")
        change = next(bad) if judged and (judged == "judged" or "examples" not in header) else None
        return ({**header, judged: change(header[judged])} if change else header), payload

    grid.tamper[1] = tamper
    run(grid, tmp_path / "run", world, rounds=3)
    assert list(bad) == []
    first, *others = rows(tmp_path / "run")
    for line in others:
        assert line["clients"]["a"]["stale"]
        assert line["clients"]["a"]["snd"] == first["clients"]["a"]["snd"]


def test_a_site_cannot_stop_telling_its_accuracy(grid: LocalGrid, world: World, tmp_path: Path) -> None:
    def forget(header: Header, payload: bytes) -> Answer:
        known = {name: value for name, value in header["metrics"].items() if "accuracy" not in name}
        return {**header, "metrics": known}, payload

    grid.tamper[1] = when_trained(forget)
    run(grid, tmp_path / "run", world, rounds=1)
    assert "other metrics of a model" in rows(tmp_path / "run")[1]["failures"]["a"]


def test_what_a_site_tells_of_its_images_is_held_to_the_method_s_row(
    grid: LocalGrid, world: World, tmp_path: Path
) -> None:
    grid.tamper[3] = tensors(lambda found: {n: torch.ones(3, 32, 32) for n in found})
    with pytest.raises(TooFewClients, match=r"^c sent no profile: tensor 'profile/amplitude' is .*32"):
        run(grid, tmp_path / "run", world, method="ladd")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("share", 2.0, "a share in its report"), ("variance", -1.0, "a variance"), ("mean", 1e30, "a mean in")],
)
def test_a_report_that_is_no_mixture_is_dropped_by_name(
    grid: LocalGrid, world: World, tmp_path: Path, name: str, value: float, reason: str
) -> None:
    grid.tamper[1] = when_trained(statistics(f"report:local_classifier/{name}", value))
    run(grid, tmp_path / "run", world, method="dualadapt", rounds=1)
    assert reason in rows(tmp_path / "run")[1]["failures"]["a"]


def test_a_report_of_another_shape_does_not_leave_a_site(
    grid: LocalGrid, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedscal.client.terms.local_classifier import LocalClassifier

    monkeypatch.setattr(LocalClassifier, "report", lambda self, state: {"images": torch.ones(2, 3)})
    run(grid, tmp_path / "run", world, method="dualadapt", rounds=1)
    reasons = rows(tmp_path / "run")[1]["failures"].values()
    assert ["may not leave the site" in reason for reason in reasons] == [True] * 3
    assert b"local_classifier" not in everything_sent(grid)
