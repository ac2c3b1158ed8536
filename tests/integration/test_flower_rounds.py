"""The Flower driver over Flower's own messages, with the sites' services in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import torch
from flower_world import METHODS, SITES, World
from flwr.app import Context, Error, RecordDict
from harness import Zygote, rows, summary
from local_grid import Answer, Header, LocalGrid, Tamper, context, new_service, site_service
from safetensors.torch import load, save
from torch import Tensor

from fedscal.core.errors import DataRefused, ModelRefused, TooFewClients, UsageError
from fedscal.core.types import Metrics, Weights
from fedscal.experiment.announcer import Announcer, read_progress
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec
from fedscal.flower import client_app, registry, server_app
from fedscal.flower.codec import from_records
from fedscal.flower.launch import format_assignments
from fedscal.flower.site_service import Checked, SiteService
from fedscal.runtime.messages import Request


def run(
    grid: LocalGrid,
    out: Path,
    world: World,
    resume: bool = False,
    wait: float = 0.1,
    least: int = 0,
    **keys: Any,
) -> None:
    words = format_assignments(world.keys(**keys))
    limits = {"wait": wait, "round-timeout": 5, "at-least": least}
    server_app.main(grid, context(keys=words, out=str(out), resume=resume, **limits))


@pytest.mark.parametrize("method", [*METHODS, "ladd", "dualadapt", "loa"])
def test_machines_change_no_bit(grid: LocalGrid, world: World, tmp_path: Path, method: str) -> None:
    run(grid, tmp_path / "run", world, method=method)
    here = world.reference(method, method=method)
    assert summary(tmp_path / "run")["weights_sha256"] == summary(here)["weights_sha256"]
    assert rows(tmp_path / "run") == rows(here)


def test_only_the_sites_that_judge_are_asked(
    grid: LocalGrid, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three sites all judge in rounds 0 and 4, one in round 2, and nobody in rounds 1 and 3."""
    real, asked = SiteService._judge, 0

    def counted(self: SiteService, request: Request, model: Weights) -> tuple[Metrics, int]:
        nonlocal asked
        asked += 1
        return real(self, request, model)

    monkeypatch.setattr(SiteService, "_judge", counted)
    keys = {"method": "fedloa", "rounds": 4, "judge_clients": 1, "judge_every": 2}
    run(grid, tmp_path / "run", world, **keys)
    assert asked == 3 + 1 + 3
    assert rows(tmp_path / "run") == rows(world.reference("judged", **keys))
    known = server_app._last_metrics(RunDirectory(tmp_path / "run").rounds()[:2], {"images", "entropy"})
    assert [sorted(known[site]) for site in sorted(known)] == [["entropy", "images"]] * 3


def test_simulated_sites_are_the_clients_of_a_data_set(
    world: World, tmp_path: Path, fedscal: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(fedscal.cache))
    keys = world.keys(clients=str(world.folder / "sites"))
    config = context(keys=format_assignments(keys), out=str(tmp_path / "run")).run_config
    nodes = [Context(1, n, {"partition-id": n, "num-partitions": 3}, RecordDict(), config) for n in range(3)]
    grid = LocalGrid({node.node_id + 1: client_app.simulated_site(node) for node in nodes})
    run(grid, tmp_path / "run", world, clients=keys["clients"])
    assert rows(tmp_path / "run") == rows(world.reference("fedscal", method="fedscal"))


def test_a_supernode_that_was_started_by_hand_says_so() -> None:
    with pytest.raises(UsageError, match="fedscal flower site"):
        client_app.simulated_site(Context(1, 1, {}, RecordDict(), {}))


def test_a_resumed_run_has_the_same_bits_though_a_site_had_gone_on(
    grid: LocalGrid, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = SiteService._train, 0

    def killed(self: SiteService, request: Request, transport: str) -> Checked:
        nonlocal calls
        calls += 1
        answer = real(self, request, transport)
        if calls == 5:  # in round 2, after the first site has trained and written its memory
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(SiteService, "_train", killed)
    with pytest.raises(KeyboardInterrupt):
        run(grid, tmp_path / "run", world, method="fedmoon", rounds=3)
    assert [line["round"] for line in rows(tmp_path / "run")] == [0]  # round 1 is merged, not judged
    # New services: what a site remembers is on its disk.
    fresh = LocalGrid({n: site_service(tmp_path / f"state-{site}") for n, site in enumerate(SITES, 1)})
    run(fresh, tmp_path / "run", world, resume=True)
    here = world.reference("fedmoon-3", method="fedmoon", rounds=3)
    assert rows(tmp_path / "run") == rows(here)


def tensors_of(records: RecordDict) -> dict[str, Tensor]:
    return load(from_records(records).payload)


def test_what_both_sides_have_does_not_travel(grid: LocalGrid, world: World, tmp_path: Path) -> None:
    run(grid, tmp_path / "run", world, rounds=1)
    down = [tensors_of(records) for records in grid.received]
    assert not any(down[:6])  # handshakes, and the source model that every site has
    assert down[-1]
    up = [tensors_of(records) for records in grid.sent]
    assert any(up)
    assert not any(name.startswith("weights/head.") for names in up for name in names)


@pytest.mark.parametrize(("transport", "kind"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_the_bytes_and_nearly_the_same_model(
    grid: LocalGrid, world: World, tmp_path: Path, transport: str, kind: torch.dtype
) -> None:
    run(grid, tmp_path / "run", world, transport=transport, rounds=1)
    sent = [tensor for records in grid.sent for tensor in tensors_of(records).values()]
    assert {tensor.dtype for tensor in sent} == {kind, torch.int64}
    mine, theirs = (
        load((path / "model" / "last.safetensors").read_bytes())
        for path in (tmp_path / "run", world.reference("one", rounds=1))
    )
    for name, tensor in theirs.items():
        assert torch.allclose(mine[name], tensor, rtol=2e-2, atol=2e-2)


Change = Callable[[Header, dict[str, Tensor], str], Answer]
"""Gets the header, the tensors and the name of one of them; returns what is sent in their place."""


def broken(change: Change) -> Tamper:
    """Change the tensors of a reply to a request to train."""

    def tamper(header: Header, payload: bytes) -> Answer:
        if "examples" not in header:
            return header, payload
        tensors = load(payload)
        name = next(name for name in tensors if name.endswith("weight"))
        return change(header, tensors, name)

    return tamper


def put(header: Header, tensors: dict[str, Tensor], name: str, value: Tensor) -> Answer:
    return header, save({**tensors, name: value})


ATTACKS: dict[str, Change] = {
    "holds NaN": lambda h, t, n: put(h, t, n, torch.full_like(t[n], torch.nan)),
    "as it must be": lambda h, t, n: put(h, t, n, t[n][:1].clone()),
    "tensors that the model has not": lambda h, t, n: put(h, t, "weights/canary", t[n].clone()),
    "more than it may": lambda h, t, n: put(h, t, n, torch.zeros(10_000_000)),
    "client is 'b', not 'a'": lambda h, t, n: ({**h, "client": "b"}, save(t)),
    "examples is 0, not 24": lambda h, t, n: ({**h, "examples": 0}, save(t)),
    "epochs is 'canary', not": lambda h, t, n: ({**h, "epochs": "canary"}, save(t)),
    "round is 7, not 1": lambda h, t, n: ({**h, "round": 7}, save(t)),
    "its machine is gone": lambda h, t, n: Error(5, "whatever"),
    "runs fedscal 0.0.1": lambda h, t, n: ({**h, "version": "0.0.1"}, save(t)),
}


@pytest.mark.parametrize("reason", ATTACKS)
def test_a_bad_answer_is_dropped_and_named_and_the_round_goes_on(
    grid: LocalGrid, world: World, tmp_path: Path, reason: str
) -> None:
    grid.tamper[1] = broken(ATTACKS[reason])
    run(grid, tmp_path / "run", world, rounds=1)
    (line,) = rows(tmp_path / "run")[1:]
    assert set(line["failures"]) == {"a"}
    assert reason in line["failures"]["a"]
    assert {c for c, row in line["clients"].items() if "epochs" in row} == {"b", "c"}


def test_a_site_that_is_gone_is_named_and_its_last_numbers_stand(
    grid: LocalGrid, world: World, tmp_path: Path
) -> None:
    done = 0

    def vanish(header: Header, payload: bytes) -> Answer:
        nonlocal done
        done += "examples" in header
        if done:
            grid.services.pop(1, None)
            return Error(5, "gone")
        return header, payload

    grid.tamper[1] = vanish
    run(grid, tmp_path / "run", world)
    first, second = rows(tmp_path / "run")[1:]
    assert first["failures"] == {"a": "its machine is gone"}
    assert second["failures"] == {"a": "is not connected"}
    assert second["clients"]["a"]["stale"]
    assert "a" in second["warnings"][0]


def test_a_site_that_restarts_in_the_middle_is_not_waited_for(
    grid: LocalGrid, world: World, tmp_path: Path
) -> None:
    def restart(header: Header, payload: bytes) -> Answer:
        if "examples" not in header or grid.births:
            return header, payload
        grid.births[1] = "later"
        return None  # the process that was to answer is gone

    grid.tamper[1] = restart
    run(grid, tmp_path / "run", world)
    first, second = rows(tmp_path / "run")[1:]
    assert first["failures"] == {"a": "was restarted in the middle of its work"}
    assert second["failures"] == {}


def test_a_site_that_does_not_answer_in_time_is_named(grid: LocalGrid, world: World, tmp_path: Path) -> None:
    grid.tamper[1] = lambda header, payload: None if "examples" in header else (header, payload)
    run(grid, tmp_path / "run", world, rounds=1)
    assert rows(tmp_path / "run")[1]["failures"] == {"a": "did not answer within 5 s"}


def silent(grid: LocalGrid, node: int, handshakes: int) -> list[int]:
    """Let a node leave so many handshakes unanswered; return the list that grows by one for each request."""
    asked: list[int] = []

    def tamper(header: Header, payload: bytes) -> Answer:
        asked.append(node)
        return None if len(asked) <= handshakes else (header, payload)

    grid.tamper[node] = tamper
    return asked


def test_a_node_that_never_answers_is_not_waited_for_in_every_round(
    grid: LocalGrid, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_HANDSHAKE", 0.3)
    grid.services[4] = new_service(world, tmp_path, "a", "silent")
    asked = silent(grid, 4, 99)
    run(grid, tmp_path / "run", world, rounds=3)
    assert len(asked) == 2
    assert [line["failures"] for line in rows(tmp_path / "run")[1:]] == [{}, {}, {}]


def test_a_silent_node_is_asked_again_when_it_was_restarted(
    grid: LocalGrid, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_HANDSHAKE", 0.3)
    asked = silent(grid, 2, 2)
    federation = server_app.FlowerFederation(grid, 1, 5)
    federation.prepare(RunSpec.make(**world.keys()))
    sites = federation._registry
    for _ in range(4):
        sites.update()
    assert (len(asked), sites.missing) == (2, ["b"])
    grid.births[2] = "later"
    sites.update()
    assert (len(asked), sites.missing) == (3, [])


def test_a_slow_site_is_asked_again_as_long_as_the_run_waits_for_it(
    grid: LocalGrid, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_HANDSHAKE", 0.3)
    monkeypatch.setattr(registry, "_POLL", 0.0)
    asked = silent(grid, 2, 4)
    run(grid, tmp_path / "run", world, rounds=1, wait=60)
    assert len(asked) > 4
    assert "b" in rows(tmp_path / "run")[1]["clients"]


def test_who_is_there_is_told_whenever_a_site_comes_or_goes(
    grid: LocalGrid,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before the run and in its rounds: on the screen, and in the file that a watcher reads."""
    monkeypatch.setattr(registry, "_POLL", 0.0)
    late, told = grid.services.pop(3), []
    real = Announcer.connected

    def connected(self: Announcer, there: Any, missing: Any) -> None:
        real(self, there, missing)
        now = read_progress(tmp_path / "run")
        assert now
        told.append((now.round, list(now.connected), list(now.missing)))
        if missing == ["c"] and now.round is None:
            grid.services[3] = late

    def leaves(header: Header, payload: bytes) -> Answer:
        if "examples" in header:  # it has trained, and is gone before it can judge the new model
            del grid.services[2]
        return header, payload

    grid.tamper[2] = leaves
    monkeypatch.setattr(Announcer, "connected", connected)
    run(grid, tmp_path / "run", world, wait=60, rounds=1)
    assert told == [(None, ["a", "b"], ["c"]), (None, ["a", "b", "c"], []), (1, ["a", "c"], ["b"])]
    said = capsys.readouterr().out
    assert "fedscal: waiting for 1 of 3 sites: c; there: a, b\n" in said
    assert "fedscal: all sites are there: a, b, c\n" in said


@pytest.mark.parametrize("text", ["{}", "[]", '{"run": 7}', '{"run": "../x"}', "{"])
def test_a_federation_file_without_a_name_is_refused(
    grid: LocalGrid, world: World, tmp_path: Path, text: str
) -> None:
    run(grid, tmp_path / "run", world, rounds=1)
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "federation.json").write_text(text)
    with pytest.raises(ModelRefused, match=r"federation\.json"):
        run(grid, tmp_path / "run", world, resume=True)


def changed_model(world: World, tmp_path: Path, **card: Any) -> Path:
    folder = tmp_path / "other-model"
    folder.mkdir()
    known = json.loads((world.model / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**known, **card}))
    (folder / "model.safetensors").write_bytes((world.model / "model.safetensors").read_bytes())
    return folder


def test_another_class_list_is_refused_with_the_site_s_name(
    grid: LocalGrid, world: World, tmp_path: Path
) -> None:
    model = changed_model(world, tmp_path, classes=[f"corner-{n}" for n in (1, 0, 2, 3)])
    service = grid.services[2]
    assert isinstance(service, SiteService)
    service.keys = {**service.keys, "source_model": str(model)}
    with pytest.raises(DataRefused, match=r"^b has another class list"):
        run(grid, tmp_path / "run", world)
    assert not (tmp_path / "run" / "spec.toml").exists()


def test_another_version_is_refused_with_both_versions(grid: LocalGrid, world: World, tmp_path: Path) -> None:
    grid.tamper[3] = lambda header, payload: ({**header, "version": "9.9"}, payload)
    with pytest.raises(UsageError, match=r"^c runs fedscal 9\.9 and the server"):
        run(grid, tmp_path / "run", world)


def test_another_source_model_is_refused(grid: LocalGrid, world: World, tmp_path: Path) -> None:
    grid.tamper[3] = lambda header, payload: ({**header, "model_sha256": "0" * 64}, payload)
    with pytest.raises(ModelRefused, match=r"^c has another source model"):
        run(grid, tmp_path / "run", world)


def test_two_sites_of_one_name_are_refused(grid: LocalGrid, world: World, tmp_path: Path) -> None:
    grid.services[4] = new_service(world, tmp_path, "a", "second")
    with pytest.raises(UsageError, match="two sites say that they are a"):
        run(grid, tmp_path / "run", world)


def test_a_key_speaks_for_its_own_site_only(grid: LocalGrid, world: World, tmp_path: Path) -> None:
    grid.names = {1: "a", 2: "c", 3: "b"}
    with pytest.raises(UsageError, match="registered as c spoke for b"):
        run(grid, tmp_path / "run", world)


def test_a_stranger_is_left_out(
    grid: LocalGrid, world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid.services[4] = grid.services.pop(3)
    run(grid, tmp_path / "run", world, clients="flower:a+b", rounds=1)
    assert set(rows(tmp_path / "run")[0]["clients"]) == {"a", "b"}
    assert "does not name" in caplog.text


def test_who_does_not_come_is_named(grid: LocalGrid, world: World, tmp_path: Path) -> None:
    del grid.services[2]
    with pytest.raises(TooFewClients, match=r"^b did not come within 0.1 s; --at-least 2 starts with a, c"):
        run(grid, tmp_path / "run", world)
    with pytest.raises(TooFewClients, match=r"^b did not come within"):
        run(grid, tmp_path / "run", world, least=3)


def test_a_run_of_those_who_have_come_is_as_if_it_named_only_them(
    grid: LocalGrid, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = grid.services.pop(2)
    run(grid, tmp_path / "those", world, least=2)
    told = capsys.readouterr().out
    assert "fedscal: waiting for 1 of 3 sites: b; there: a, c" in told
    assert "starting with 2 of 3 sites; b did not come within 0.1 s and has no part in it" in told
    grid.services[2] = late
    run(grid, tmp_path / "named", world, clients="flower:a+c")
    assert rows(tmp_path / "those") == rows(tmp_path / "named")
    assert summary(tmp_path / "those")["weights_sha256"] == summary(tmp_path / "named")["weights_sha256"]
    run(grid, tmp_path / "all", world, least=2, rounds=1)
    assert set(rows(tmp_path / "all")[0]["clients"]) == {"a", "b", "c"}, "whoever has come in time has a part"


def everything_sent(grid: LocalGrid) -> bytes:
    return b"".join(
        str(records.config_records["header"]["json"]).encode() + from_records(records).payload
        for records in grid.sent
    )


@pytest.mark.parametrize("method", ["fedscal", "ladd", "dualadapt"])
def test_no_image_no_path_and_no_file_name_leaves_a_site(
    grid: LocalGrid, world: World, tmp_path: Path, method: str
) -> None:
    run(grid, tmp_path / "run", world, method=method, rounds=1)
    assert_clean(everything_sent(grid), world)


def assert_clean(sent: bytes, world: World) -> None:
    assert sent
    assert b"canary" not in sent
    assert str(world.folder).encode() not in sent
    for path in world.data("a").glob("*/*.png"):
        data = path.read_bytes()
        assert data[40:80] not in sent  # compressed pixels


def test_a_site_that_fails_says_nothing_of_its_files(grid: LocalGrid, world: World, tmp_path: Path) -> None:
    link = tmp_path / "state-b" / "clients" / "b"
    link.unlink()
    link.symlink_to(tmp_path / "canary-folder")
    (tmp_path / "canary-folder").mkdir()
    (tmp_path / "canary-folder" / "canary.png").write_bytes(b"not an image")
    with pytest.raises(TooFewClients):
        run(grid, tmp_path / "run", world)
    assert b"refused" in everything_sent(grid)
    assert b"canary" not in everything_sent(grid)


def test_the_server_cannot_point_a_site_elsewhere(grid: LocalGrid, world: World, tmp_path: Path) -> None:
    asked = {"clients": "/canary", "source_model": "/canary", "benchmark": "/canary", "method": "fedprox"}
    service = grid.services[1]
    assert isinstance(service, SiteService)
    spec = service._spec(Request("hello", [], {"keys": asked}))
    assert spec.clients == str(tmp_path / "state-a" / "clients")
    assert spec.source_model == str(world.model)
    assert spec.method == "fedprox"
