"""Bad input: its exit code, at most two lines, no traceback, and nothing made."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest
from harness import TINY, Zygote


class Refused(Protocol):
    """Runs the program, sees that it refused, and returns what it said."""

    def __call__(self, *words: str, env: dict[str, str] | None = None) -> str: ...


@pytest.fixture
def refused(fedscal: Zygote, tmp_path: Path) -> Refused:
    """Run the program and see that it refused without a trace."""
    cwd = tmp_path / "cwd"
    cwd.mkdir()

    def check(*words: str, env: dict[str, str] | None = None) -> str:
        ended = fedscal(*words, cwd=cwd, env=env)
        assert ended.code == 2, ended
        assert list(cwd.iterdir()) == []
        return ended.error

    return check


@pytest.mark.parametrize(
    ("word", "mentions"),
    [
        ("rouns=3", ["rouns", "rounds"]),
        ("lambda_sever=3", ["lambda_sever", "lambda_server"]),
        ("benchmark=digit", ["digit", "'digits'"]),
        ("source=usps", ["usps", "optdigits"]),
        ("source=", ["source", "optdigits"]),
        ("method=fedscall", ["fedscall", "'fedscal'"]),
        ("adaptation=shoot", ["shoot", "'shot'"]),
        ("model=convnt", ["convnt", "'convnet'"]),
        ("rounds=0", ["rounds=0", "1"]),
        ("rounds=-1", ["rounds=-1"]),
        ("rounds=abc", ["rounds=abc", "whole number"]),
        ("rounds=1.5", ["rounds=1.5", "whole number"]),
        ("rounds=nan", ["rounds=nan"]),
        ("rounds=" + "9" * 400, ["rounds"]),
        ("rounds=" + "9" * 5000, ["rounds"]),
        ("rounds=", ["rounds"]),
        ("participation=0", ["participation=0", "more than 0"]),
        ("participation=1.5", ["participation=1.5", "at most 1"]),
        ("participation=nan", ["participation=nan"]),
        ("lr=-1", ["lr=-1"]),
        ("lr=nan", ["lr=nan"]),
        ("lr=inf", ["lr=inf"]),
        ("tau_init=2.5", ["tau_init=2.5", "at most 2"]),
        ("mu=nan", ["mu=nan"]),
        ("mu=inf", ["mu=inf"]),
        ("lambda_local=-0.1", ["lambda_local=-0.1"]),
        ("temperature=0", ["temperature=0"]),
        ("adaptive=maybe", ["adaptive=maybe", "true or false"]),
        ("alignment_loss=mse", ["alignment_loss=mse", "kl"]),
        ("batch_size=1", ["batch_size=1", "at least 2"]),
        ("clients_per_domain=0", ["clients_per_domain=0"]),
        ("seed=-1", ["seed=-1"]),
        ("seed=99999999999", ["seed=99999999999"]),
        ("workers=-1", ["workers=-1"]),
        ("threads=0", ["threads=0"]),
        ("device=gpu", ["device=gpu", "cpu"]),
        ("precision=fp16", ["precision=fp16", "bf16"]),
        ("micro_batch=-1", ["micro_batch=-1"]),
        ("micro_batch=8", ["micro_batch=8", "BatchNorm"]),
        ("model=os:system", ["model=os:system", "--allow-code"]),
        ("=5", ["=5"]),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_a_bad_key_or_value_is_named_before_anything_is_made(
    refused: Refused, word: str, mentions: list[str]
) -> None:
    said = refused("run", word)
    for mention in mentions:
        assert mention in said


@pytest.mark.parametrize("command", ["pretrain", "compare"])
@pytest.mark.parametrize("word", ["rouns=3", "model=convnt", "lr=nan"])
def test_the_other_commands_check_their_keys_too(refused: Refused, command: str, word: str) -> None:
    assert word.partition("=")[0] in refused(command, word)


@pytest.mark.parametrize("words", [["seed=0", "quick"], ["seed=0", "--", "-x"]])
def test_a_word_that_is_not_key_value_is_refused(refused: Refused, words: list[str]) -> None:
    assert words[-1] in refused("run", *words)


def test_the_nearest_shipped_recipe_is_named(refused: Refused) -> None:
    assert "'digits'" in refused("run", "digit")


@pytest.mark.parametrize(
    ("content", "mention"),
    [
        (b"rounds = ", "recipe.toml is not TOML"),
        (b"<?xml version='1.0'?>", "recipe.toml is not TOML"),
        (bytes(range(256)) * 10, "recipe.toml is not TOML"),
        (b"rounds = 3\nrounds = 4\n", "recipe.toml is not TOML"),
        (b"seed = 1\n" + b"# padding\n" * 1_048_576, "recipe.toml: it is too large"),
        (b"a = " + b"[" * 100_000, "recipe.toml is not TOML"),
        (b"[run]\nrounds = 3\n", "unknown key 'run'"),
        (b"rounds = [3]\n", "rounds=[3]"),
        (b"rounds = true\n", "rounds=True"),
        (b"rounds = 1979-05-27\n", "rounds=1979-05-27"),
        (b"model = 'os:system'\n", "model=os:system"),
        (b"benchmark = {a = 1}\n", "there is no benchmark"),
    ],
    ids=lambda value: repr(value[:16]),
)
def test_a_bad_recipe_is_refused(refused: Refused, tmp_path: Path, content: bytes, mention: str) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_bytes(content)
    assert mention in refused("run", str(recipe))


@pytest.mark.parametrize("kind", ["missing", "directory"])
def test_a_recipe_that_cannot_be_read_is_refused_with_its_path(
    refused: Refused, tmp_path: Path, kind: str
) -> None:
    recipe = tmp_path / "recipe.toml"
    if kind == "directory":
        recipe.mkdir()
    assert str(recipe) in refused("run", str(recipe))


@pytest.mark.parametrize("name", ["FEDSCAL_ROUNS", "FEDSCAL_ROUNDS"])
def test_a_bad_environment_key_is_named(refused: Refused, name: str) -> None:
    assert name.removeprefix("FEDSCAL_").lower() in refused("run", env={name: "x"}).lower()


@pytest.mark.parametrize("name", ["digit", "../../etc", ""])
def test_an_unknown_data_set_is_refused(refused: Refused, name: str) -> None:
    assert "digits" in refused("data", "get", name)
    assert "digits" in refused("data", "check", name)


@pytest.mark.parametrize(
    "words", [["run", "--nope"], ["rum"], ["report"], ["data", "fetch"], ["compare", "--jobs", "-1"]]
)
def test_an_unknown_option_or_command_is_exit_2_without_a_traceback(
    fedscal: Zygote, tmp_path: Path, words: list[str]
) -> None:
    ended = fedscal(*words, cwd=tmp_path)
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [["seeds=a"], ["seeds=-1"], ["methods=fedscal,nope"], ["sources=mnist,usps"]]
)
def test_a_bad_axis_of_a_comparison_is_refused_before_anything_runs(
    refused: Refused, words: list[str]
) -> None:
    assert words[0].rpartition(",")[2].rpartition("=")[2] in refused("compare", *words)


def test_more_threads_than_a_machine_can_have_are_refused_or_work(fedscal: Zygote, tmp_path: Path) -> None:
    ended = fedscal("run", *TINY, "rounds=1", "threads=1000000", "--quiet", "--out", tmp_path / "run")
    assert ended.code in (0, 2), ended.err[:300]


@pytest.mark.parametrize("word", ["rounds=3", "progress=x", "federation=y"])
def test_a_resumed_run_keeps_its_keys_and_no_word_reaches_python(refused: Refused, word: str) -> None:
    assert f"{word.partition('=')[0]} cannot change in a resumed run" in refused(
        "run", "--resume", "here", word
    )
