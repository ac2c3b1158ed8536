"""A round over machines is one wave of messages: a model is judged with the requests of the next round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import torch
from flower_world import SITES, World
from harness import more, rows, summary
from local_grid import Answer, Header, LocalGrid, Tamper, site_service
from safetensors.torch import load
from test_flower_rounds import run

from fedscal.client.training import Diverged
from fedscal.experiment import delivery
from fedscal.experiment.run import adapt
from fedscal.experiment.spec import RunSpec
from fedscal.flower.codec import from_records
from fedscal.flower.driver import FlowerDriver
from fedscal.flower.headers import request_header
from fedscal.flower.site_service import Checked, SiteService
from fedscal.runtime.messages import Request


def asked(grid: LocalGrid) -> list[tuple[str, str, bool]]:
    """Return who was asked for what, and whether a model to judge came with it, without the handshakes."""
    headers = [request_header(from_records(records)) for records in grid.received]
    return [
        (one["kind"], client, "judged" in one["models"])
        for one in headers
        if one["kind"] != "hello"
        for client in one["clients"]
    ]


def messages(kind: str, clients: str, judged: bool = False) -> list[tuple[str, str, bool]]:
    return [(kind, client, judged) for client in clients]


def test_a_model_is_judged_with_the_next_request_and_the_last_one_by_itself(
    grid: LocalGrid, world: World, tmp_path: Path
) -> None:
    run(grid, tmp_path / "run", world, rounds=3)
    assert asked(grid) == [
        *messages("evaluate", "abc"),
        *messages("compare", "abc"),
        *messages("train", "abc"),
        *messages("train", "abc", judged=True),
        *messages("train", "abc", judged=True),
        *messages("evaluate", "abc"),
    ]


def test_who_does_not_train_judges_in_the_same_wave(grid: LocalGrid, world: World, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"rounds": 4, "participation": 0.5, "least_participants": 1}
    run(grid, tmp_path / "run", world, **keys)
    assert rows(tmp_path / "run") == rows(world.reference("half", **keys))
    chosen = [line["participants"] for line in rows(tmp_path / "run")[1:]]
    expected = messages("train", "".join(chosen[0]))
    for some in chosen[1:]:
        others = "".join(sorted(SITES.keys() - set(some)))
        expected += [*messages("train", "".join(some), judged=True), *messages("evaluate", others)]
    assert asked(grid)[6:] == [*expected, *messages("evaluate", "abc")]
    assert len({tuple(some) for some in chosen}) > 1


def test_a_model_that_is_not_the_one_that_is_trained_from_is_judged_to_the_same_bits(
    grid: LocalGrid, world: World, tmp_path: Path
) -> None:
    run(grid, tmp_path / "run", world, source_share=0.3)
    assert rows(tmp_path / "run") == rows(world.reference("share", source_share=0.3))


def fails_in(round_: int, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[int]:
    """Let the first training of a round fail; return the list of all rounds that were trained in."""
    real, trained = SiteService._train, list[int]()

    def train(self: SiteService, request: Request, transport: str) -> Checked:
        trained.append(int(request.scalars["round"]))
        if trained.count(round_) == 1 and trained[-1] == round_:
            raise error
        return real(self, request, transport)

    monkeypatch.setattr(SiteService, "_train", train)
    return trained


def test_a_training_that_fails_takes_no_judgement_with_it(
    grid: LocalGrid, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_in(2, monkeypatch, Diverged("the loss is not finite"))
    run(grid, tmp_path / "run", world)
    first, second = rows(tmp_path / "run")[1:]
    assert second["failures"] == {"a": "the loss is not finite"}
    assert first == rows(world.reference("fedscal", method="fedscal"))[1]


def test_a_reply_that_is_refused_takes_no_judgement_with_it_nor_the_reverse(
    grid: LocalGrid, world: World, tmp_path: Path
) -> None:
    def of_round(number: int, **change: Any) -> Tamper:
        def tamper(header: Header, payload: bytes) -> Answer:
            return ({**header, **change} if header.get("round") == number else header), payload

        return tamper

    grid.tamper[1] = of_round(2, examples=0)
    grid.tamper[2] = of_round(2, judged={"accuracy": 101})
    run(grid, tmp_path / "run", world)
    source, first, second = rows(tmp_path / "run")
    assert second["failures"].keys() == {"a"}
    honest = rows(world.reference("fedscal", method="fedscal"))[1]
    assert {c: row for c, row in first["clients"].items() if c != "b"} == {
        c: row for c, row in honest["clients"].items() if c != "b"
    }
    assert first["clients"]["b"]["stale"]
    assert first["clients"]["b"]["accuracy"] == source["clients"]["b"]["accuracy"]


def test_a_judgement_that_nobody_asked_for_is_refused(grid: LocalGrid, world: World, tmp_path: Path) -> None:
    grid.tamper[1] = lambda header, payload: (
        {**header, "judged": {}} if "examples" in header else header,
        payload,
    )
    run(grid, tmp_path / "run", world, rounds=1)
    assert "judged" in rows(tmp_path / "run")[1]["failures"]["a"]


def fresh(tmp_path: Path) -> LocalGrid:
    """Return the sites after a restart of all of them."""
    return LocalGrid({n: site_service(tmp_path / f"state-{site}") for n, site in enumerate(SITES, 1)})


@pytest.mark.parametrize("round_", [more(1), 2, more(3)])
def test_what_was_merged_is_not_trained_again_though_it_was_never_judged(
    grid: LocalGrid, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, round_: int
) -> None:
    trained = fails_in(round_, monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(grid, tmp_path / "run", world, rounds=3)
    assert [line["round"] for line in rows(tmp_path / "run")] == list(range(max(1, round_ - 1)))
    before = len(trained)
    run(fresh(tmp_path), tmp_path / "run", world, resume=True)
    assert min(trained[before:]) == round_
    assert rows(tmp_path / "run") == rows(world.reference("three", rounds=3))


@pytest.mark.parametrize("waves", [more(0), 1])
def test_a_run_that_ends_while_a_model_is_judged_by_itself_judges_it_again(
    grid: LocalGrid, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waves: int
) -> None:
    real, done = FlowerDriver.evaluate, 0

    def evaluate(self: FlowerDriver, models: Any) -> Any:
        nonlocal done
        done += 1
        if done == waves + 1:
            raise KeyboardInterrupt
        return real(self, models)

    monkeypatch.setattr(FlowerDriver, "evaluate", evaluate)
    with pytest.raises(KeyboardInterrupt):
        run(grid, tmp_path / "run", world)
    assert len(rows(tmp_path / "run")) == 2 * waves
    again = fresh(tmp_path)
    run(again, tmp_path / "run", world, resume=True)
    here = world.reference("fedscal", method="fedscal")
    assert rows(tmp_path / "run") == rows(here)
    assert summary(tmp_path / "run")["weights_sha256"] == summary(here)["weights_sha256"]
    assert ("train", "a", False) not in asked(again) or not waves


@pytest.mark.parametrize("delivered", [more("last"), "source"])
def test_a_site_ends_with_its_statistics_for_the_model_that_is_delivered_to_it(
    grid: LocalGrid, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivered: str
) -> None:
    monkeypatch.setattr(delivery, "_AGREE", {"last": 0.0, "source": 2.0}[delivered])
    monkeypatch.setattr(delivery, "_SITE_AGREES", 0.0)
    keys = {**world.keys(), "statistics": "site", "select": "agreement"}
    run(grid, tmp_path / "run", world, statistics="site", select="agreement")
    here = adapt(
        RunSpec.make(**{**keys, "clients": str(world.folder / "sites"), "workers": 1}), tmp_path / "here"
    )
    verdict = here.summary().delivery
    assert verdict
    assert (verdict.round == 0) == (delivered == "source")
    for site in SITES:
        kept = load((tmp_path / f"state-{site}" / "sites" / f"{site}.safetensors").read_bytes())
        for name, tensor in here.at_site(site).items():
            assert torch.equal(kept[name], tensor)
