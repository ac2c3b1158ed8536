"""Checkpoints: whole or not there, two kept, damage found and named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedscal.core import weights
from fedscal.core.documents import sealed, unsealed
from fedscal.core.errors import ModelRefused
from fedscal.experiment.checkpoint import Checkpoints
from fedscal.experiment.client_table import MANY, ClientTable, gathered
from fedscal.experiment.records import ClientRecord, MergedRound
from fedscal.server.rule import ServerState
from toys import model


@pytest.fixture
def store(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


def state(value: float) -> ServerState:
    return ServerState({"server": model(value, counter=3), "cluster": model(-value)})


def play(store: Checkpoints, *rounds: int) -> None:
    """Save rounds in each of which client a, and in even rounds client b, leaves a memory."""
    for index in rounds:
        for client in ("a", "b") if index % 2 == 0 else ("a",):
            store.memories.put(client, index, {"previous": model(float(index))})
        store.save(MergedRound(round=index), state(float(index)))


def flip_a_bit(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def memory_files(store: Checkpoints) -> set[str]:
    return {path.name for path in (store.folder / "memory").iterdir()}


def test_what_is_saved_is_loaded_bit_for_bit(store: Checkpoints) -> None:
    play(store, 1, 2)
    fresh = Checkpoints(store.folder)
    found = fresh.latest()
    assert found is not None
    assert found.round == 2
    assert weights.digest(weights.flatten(found.state.models)) == weights.digest(
        weights.flatten(state(2.0).models)
    )
    memory = fresh.memories.get("a", 9)
    assert weights.digest(memory["previous"]) == weights.digest(model(2.0))
    assert fresh.memories.get("nobody", 9) == {}


def test_there_is_none_before_the_first(store: Checkpoints) -> None:
    assert store.latest() is None


def test_two_rounds_are_kept_by_number_not_by_name(store: Checkpoints) -> None:
    for index in (9998, 9999, 10000):
        store.save(MergedRound(round=index), state(1.0))
    assert {path.name for path in store.folder.glob("round-*")} == {"round-9999", "round-10000"}
    found = store.latest()
    assert found is not None
    assert found.round == 10000


@pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
@pytest.mark.parametrize("at", [0, 60, -1])
def test_a_flipped_bit_is_noticed_and_the_round_before_is_used(
    store: Checkpoints, name: str, at: int
) -> None:
    play(store, 1, 2)
    damaged = store.folder / "round-0002" / name
    flip_a_bit(damaged, at)
    with pytest.warns(UserWarning, match=r"round-0002/.* The checkpoint before it is used"):
        found = Checkpoints(store.folder).latest()
    assert found is not None
    assert found.round == 1
    assert found.state.models["server"]["w"].tolist() == [1.0, -1.0]


def merged_of(clients: int, index: int = 2) -> MergedRound:
    rows = {
        f"c{place:03}": ClientRecord(domain="", drift=place / 7, epochs=({"loss": 0.1},))
        for place in range(clients)
    }
    return MergedRound(round=index, clients=gathered(rows.items(), len(rows)))


@pytest.mark.parametrize("clients", [MANY, MANY + 1])
def test_what_clients_reported_comes_back_from_the_manifest_or_of_many_from_columns(
    store: Checkpoints, clients: int
) -> None:
    merged = merged_of(clients)
    store.save(merged, state(2.0))
    found = Checkpoints(store.folder).latest()
    assert found is not None
    assert found.merged is not None
    assert dict(found.merged.clients) == dict(merged.clients)
    assert isinstance(found.merged.clients, ClientTable) == (clients > MANY)
    manifest = json.loads((store.folder / "round-0002" / "manifest.json").read_text())
    assert len(manifest["merged"].get("clients", {})) == (clients if clients <= MANY else 0)


def test_a_manifest_that_holds_many_clients_itself_is_read_as_ever(store: Checkpoints) -> None:
    rows = {f"c{place:03}": {"drift": 0.5, "epochs": [{"loss": 0.1}]} for place in range(MANY + 1)}
    store.save(MergedRound(round=2), state(2.0))
    path = store.folder / "round-0002" / "manifest.json"
    manifest = unsealed(path.read_bytes())
    path.write_bytes(sealed({**manifest, "merged": {**manifest["merged"], "clients": rows}}))
    found = Checkpoints(store.folder).latest()
    assert found is not None
    assert found.merged is not None
    assert dict(found.merged.clients) == {
        client: ClientRecord(domain="", drift=0.5, epochs=({"loss": 0.1},)) for client in rows
    }


@pytest.mark.parametrize("spoil", [flip_a_bit, Path.unlink], ids=["bit flip", "deleted"])
def test_damaged_columns_damage_their_checkpoint(store: Checkpoints, spoil: object) -> None:
    for index in (1, 2):
        store.save(merged_of(MANY + 1, index), state(float(index)))
    spoil(store.folder / "round-0002" / "clients.npz")  # type: ignore[operator]
    with pytest.warns(UserWarning, match=r"round-0002/clients\.npz .* The checkpoint before it is used"):
        found = Checkpoints(store.folder).latest()
    assert found is not None
    assert found.round == 1


@pytest.mark.parametrize("spoil", [flip_a_bit, Path.unlink], ids=["bit flip", "deleted"])
def test_a_damaged_memory_damages_its_checkpoint(store: Checkpoints, spoil: object) -> None:
    play(store, 2, 3)
    spoil(store.folder / "memory" / "a-0003.safetensors")  # type: ignore[operator]
    fresh = Checkpoints(store.folder)
    with pytest.warns(UserWarning, match=r"a-0003\.safetensors"):
        found = fresh.latest()
    assert found is not None
    assert found.round == 2
    assert fresh.memories.get("a", 9)["previous"]["w"][0].item() == 2.0


@pytest.mark.parametrize("text", ["{}", "[]", '{"files": 3}', "not json", '{"files": {}, "memories": {}}'])
def test_a_manifest_that_is_none_is_passed_over(store: Checkpoints, text: str) -> None:
    play(store, 1, 2)
    (store.folder / "round-0002" / "manifest.json").write_text(text)
    with pytest.warns(UserWarning, match=r"round-0002"):
        found = Checkpoints(store.folder).latest()
    assert found is not None
    assert found.round == 1


def test_if_all_are_damaged_the_run_does_not_start_over_silently(store: Checkpoints) -> None:
    play(store, 1, 2)
    for folder in store.folder.glob("round-*"):
        flip_a_bit(folder / "state.safetensors")
    with pytest.raises(ModelRefused, match=r"no usable checkpoint is left\. .*round-0002.*is damaged"):
        Checkpoints(store.folder).latest()


def test_memories_that_a_kept_checkpoint_names_stay_and_the_others_go(store: Checkpoints) -> None:
    play(store, 1, 2, 3)
    # Rounds 2 and 3 are kept. b's memory of round 2 is still its newest; a's of round 1 is named no more.
    assert memory_files(store) == {"a-0002.safetensors", "a-0003.safetensors", "b-0002.safetensors"}
    play(store, 5)
    assert memory_files(store) == {"a-0003.safetensors", "a-0005.safetensors", "b-0002.safetensors"}
    fresh = Checkpoints(store.folder)
    fresh.latest()
    assert fresh.memories.get("b", 9)["previous"]["w"][0].item() == 2.0


def test_a_crash_between_memory_and_checkpoint_leaves_the_last_round_whole(store: Checkpoints) -> None:
    play(store, 1)
    store.memories.put("a", 2, {"previous": model(2.0)})
    fresh = Checkpoints(store.folder)
    found = fresh.latest()
    assert found is not None
    assert found.round == 1
    assert fresh.memories.get("a", 9)["previous"]["w"][0].item() == 1.0


def test_a_half_written_checkpoint_does_not_count(store: Checkpoints) -> None:
    play(store, 1)
    shutil.copytree(store.folder / "round-0001", store.folder / ".round-0002.fedscal-tmp")
    found = store.latest()
    assert found is not None
    assert found.round == 1
    play(store, 2)
    assert not (store.folder / ".round-0002.fedscal-tmp").exists()


def test_the_manifest_names_every_file_with_its_hash(store: Checkpoints) -> None:
    play(store, 2)
    manifest = json.loads((store.folder / "round-0002" / "manifest.json").read_text())
    assert manifest["round"] == 2
    assert set(manifest["files"]) == {"state.safetensors"}
    assert {entry["file"] for entry in manifest["memories"].values()} == memory_files(store)


def test_a_stray_folder_and_an_emptied_manifest_do_not_stop_the_next_round(store: Checkpoints) -> None:
    play(store, 1, 2)
    shutil.copytree(store.folder / "round-0002", store.folder / "round-0002.bak")
    (store.folder / "round-0002" / "manifest.json").write_text("{}")
    play(store, 3)
    found = Checkpoints(store.folder).latest()
    assert found is not None
    assert found.round == 3


def test_a_bit_of_a_manifest_is_noticed_wherever_it_flips(store: Checkpoints) -> None:
    play(store, 1, 2)
    path = store.folder / "round-0002" / "manifest.json"
    whole = path.read_bytes()
    for place in range(0, 8 * len(whole), 5):  # 5 and 8 have no common factor: every bit of a byte comes up
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.warns(UserWarning, match="round-0002"):
            found = Checkpoints(store.folder).latest()
        assert found is not None
        assert found.round == 1, place


def test_a_round_whose_record_is_not_there_is_passed_over_and_then_let_go(store: Checkpoints) -> None:
    play(store, 1, 2)

    def require(round_: int, record: str) -> None:
        if round_ > 1:
            raise ModelRefused("line 3 is gone.")

    with pytest.warns(UserWarning, match="line 3 is gone. The checkpoint before it is used"):
        found = store.latest(require)
    assert found is not None
    assert found.round == 1
    store.forget_after(1)
    assert [path.name for path in store.folder.glob("round-*")] == ["round-0001"]
    play(store, 2)
    assert memory_files(store) == {"a-0001.safetensors", "a-0002.safetensors", "b-0002.safetensors"}
