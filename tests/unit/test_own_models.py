"""Models of single clients: on disk, written when they change, named by the checkpoints that need them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedscal.core import files, weights
from fedscal.core.errors import ModelRefused
from fedscal.experiment.checkpoint import Checkpoints
from fedscal.experiment.records import MergedRound
from fedscal.runtime.own_models import StoredModel
from fedscal.server.rounds import Round, Schedule, federate
from fedscal.server.rule import Briefing, Isolated, ServerState
from toys import FakeDriver, model

CLIENTS = [f"client-{number:02}" for number in range(30)]
SCHEDULE = Schedule(4, 0.1, 0.1)


def played(folder: Path, rounds: int = 4) -> list[Round]:
    """Let clients adapt alone, three a round, with a checkpoint after every round."""
    rule, store, done = Isolated(), Checkpoints(folder), []
    found = store.latest()
    state = found.state if found else rule.init(Briefing(model(0.0), "w"))
    after = found.round if found else 0
    for one in federate(rule, FakeDriver(CLIENTS), state, SCHEDULE, 0, after, storage=store.storage):
        store.save(MergedRound(round=one.index), one.state)
        done.append(one)
        if one.index == rounds:
            break
    return done


def own_files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "own").iterdir()}


def digest(state: ServerState) -> str:
    return weights.digest_of({**state.models, **state.own})


def test_a_checkpoint_after_a_round_of_three_writes_three_models(tmp_path: Path) -> None:
    played(tmp_path, rounds=3)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "own").iterdir()}
    (done,) = played(tmp_path)
    new = own_files(tmp_path) - before.keys()
    assert new == {f"{client}-0004.safetensors" for client in done.participants}
    assert len(new) == 3
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "own").iterdir()}
    assert all(before[name] == kept[name] for name in kept.keys() & before.keys()), "none is written twice"
    state_file = tmp_path / "round-0004" / "state.safetensors"
    assert state_file.stat().st_size < 2 * len(weights.to_bytes(model(0.0))), "the source model alone"


def test_they_are_read_from_disk_and_as_clients_left_them(tmp_path: Path) -> None:
    rounds = played(tmp_path)
    last = rounds[-1].state
    assert all(isinstance(one, StoredModel) for one in last.own.values())
    for client in CLIENTS:
        turns = sum(client in done.participants for done in rounds)
        assert Isolated().deployed(last, client)["w"].equal(model(0.0)["w"] + turns), "one further each turn"


def test_a_run_that_stops_after_every_round_ends_with_the_same_models(tmp_path: Path) -> None:
    *_, whole = played(tmp_path / "whole")
    for rounds in range(1, 5):
        (last,) = played(tmp_path / "stopped", rounds)
    assert digest(last.state) == digest(whole.state)


def test_only_what_two_checkpoints_name_is_kept(tmp_path: Path) -> None:
    played(tmp_path)
    (tmp_path / "own" / "client-00-0009.safetensors").write_bytes(b"left by a kill")
    store = Checkpoints(tmp_path)
    found = store.latest()
    assert found
    store.save(MergedRound(round=4), found.state)
    named = {one.path.name for one in found.state.own.values() if isinstance(one, StoredModel)}
    assert named <= own_files(tmp_path)
    assert "client-00-0009.safetensors" not in own_files(tmp_path)


def test_one_that_was_damaged_sends_the_run_back_a_round(tmp_path: Path) -> None:
    *_, last = played(tmp_path)
    victim = tmp_path / "own" / f"{last.participants[0]}-0004.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1] + b"\1")
    with pytest.warns(UserWarning, match="The checkpoint before it is used"):
        found = Checkpoints(tmp_path).latest()
    assert found
    assert found.round == 3


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """There the models of single clients were among the server's."""
    store = Checkpoints(tmp_path)
    store.save(MergedRound(round=1), ServerState({"source": model(0.0), "client-00": model(5.0)}))
    found = store.latest()
    assert found
    assert Isolated().deployed(found.state, "client-00")["w"].equal(model(5.0)["w"])
    assert Isolated().deployed(found.state, "client-01")["w"].equal(model(0.0)["w"])


def test_a_stored_model_is_a_mapping_like_any_other(tmp_path: Path) -> None:
    data = weights.to_bytes(model(2.0, counter=7))
    files.write_bytes(tmp_path / "m.safetensors", data)
    stored = StoredModel(tmp_path / "m.safetensors", files.sha256(data))
    assert weights.digest(stored) == weights.digest(model(2.0, counter=7))
    assert weights.byte_count(stored) == weights.byte_count(model(2.0, counter=7))
    assert stored.part("w", 1, 9).tolist() == [-2]
    with pytest.raises(KeyError):
        stored["other"]


def test_files_that_cannot_all_be_written_leave_none(tmp_path: Path) -> None:
    def contents() -> Iterator[tuple[str, bytes]]:
        yield "a.safetensors", b"1"
        raise ModelRefused("the second cannot be made")

    with pytest.raises(ModelRefused):
        files.write_all(tmp_path / "own", contents())
    assert list((tmp_path / "own").iterdir()) == []
