"""RunSpec: checked keys, who overrides whom, and a digest of all that decides the result."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fedscal.cli.jobs import gather
from fedscal.client.terms.shot import Shot
from fedscal.core.errors import UsageError
from fedscal.data.benchmark import Benchmark
from fedscal.experiment.spec import RunSpec, environment_keys, parse_assignments, read_recipe
from fedscal.methods import ADAPTATIONS, METHODS


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rouns": 3}, "unknown key 'rouns'; did you mean 'rounds'?"),
        ({"method": "fedscl"}, "method=fedscl: no such method; did you mean 'fedscal'?"),
        ({"adaptation": "shoot"}, "adaptation=shoot: no such adaptation; did you mean 'shot'?"),
        ({"source": "mnits"}, "source=mnits: no such domain in digits; did you mean 'mnist'?"),
        ({"benchmark": "digitz"}, "no benchmark 'digitz', nor such a folder; did you mean 'digits'?"),
        ({"rounds": 0}, "rounds=0 is too small"),
        ({"batch_size": 1}, "batch_size=1 is too small"),
        ({"lambda_local": -1}, "lambda_local=-1.0 is too small"),
        ({"alignment_loss": "mse"}, "alignment_loss=mse: no such choice"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        RunSpec.make(**keys)
    assert message in str(error.value)


def test_a_benchmarks_defaults_stand_over_the_built_in_and_under_what_is_given(
    toy_benchmark: Benchmark,
) -> None:
    assert toy_benchmark.defaults["rounds"] == 2
    built_in, of_benchmark = RunSpec(), RunSpec.make(benchmark="toy")
    assert (built_in.rounds, of_benchmark.rounds) == (12, 2)
    assert of_benchmark.batch_size == built_in.batch_size
    assert RunSpec.make(benchmark="toy", rounds="9").rounds == 9


def test_text_and_typed_values_make_the_same_spec() -> None:
    typed = RunSpec.make(method="fedprox", lr=0.1, rounds=3, mu=0.5)
    assert typed == RunSpec.make(method="fedprox", lr="0.1", rounds="3", mu="0.5")


@pytest.mark.parametrize("method", METHODS)
def test_a_written_spec_is_read_back_to_the_same_digest(method: str, tmp_path: Path) -> None:
    spec = RunSpec.make(
        method=method, lr=0.017, mu=0.25, lambda_local=3, adaptive=False, select="snd", seed=5
    )
    path = tmp_path / "spec.toml"
    path.write_text(spec.to_toml())
    back = RunSpec.make(**read_recipe(path))
    assert back.digest() == spec.digest()
    assert back.flat() == spec.flat()
    assert sorted(back.to_toml().splitlines()) == sorted(spec.to_toml().splitlines())


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"lr": 0.02},
        {"method": "fedloa"},
        {"lambda_local": 2},
        {"threads": 2},
        {"select": "last"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_moves_with_what_decides_the_result(change: dict[str, Any]) -> None:
    assert RunSpec.make(**change).digest() != RunSpec.make().digest()


@pytest.mark.parametrize(
    "change", [{"workers": 3}, {"mu": 0.7}, {"lambda_local": 1.0}], ids=lambda c: next(iter(c))
)
def test_the_digest_does_not_move_with_what_cannot(change: dict[str, Any]) -> None:
    # Workers only share out the work, FedSCAl has no mu, and 1.0 is lambda_local's default.
    assert RunSpec.make(method="fedscal", **change).digest() == RunSpec.make(method="fedscal").digest()


def test_flat_shows_the_values_in_force_of_this_method_only() -> None:
    prox, moon = (RunSpec.make(method=name).flat() for name in ("fedprox", "fedmoon"))
    assert (prox["mu"], moon["mu"]) == (0.01, 1.0)
    assert "temperature" in moon
    assert "temperature" not in prox
    assert RunSpec.make(method="fedmoon", mu=2).flat()["mu"] == 2.0


def test_replace_keeps_everything_else_and_checks_again() -> None:
    spec = RunSpec.make(method="fedprox", mu=0.3, rounds=7, seed=4)
    other = spec.replace(seed=5, method="fedmoon")
    assert (other.seed, other.method, other.rounds, other.hyper["mu"]) == (5, "fedmoon", 7, 0.3)
    with pytest.raises(UsageError, match="rounds=0"):
        spec.replace(rounds=0)


def test_the_environment_gives_keys_but_the_caches_place_is_none() -> None:
    given = {"FEDSCAL_LAMBDA_LOCAL": "2", "FEDSCAL_SEED": "3", "FEDSCAL_CACHE": "/x", "HOME": "/root"}
    assert environment_keys(given) == {"lambda_local": "2", "seed": "3"}


def test_assignments_are_split_at_the_first_equals_sign() -> None:
    assert parse_assignments(["rounds=3", "batch-size = 8", "source=a=b"]) == {
        "rounds": "3",
        "batch_size": "8",
        "source": "a=b",
    }


@pytest.mark.parametrize("word", ["rounds", "=3", ""])
def test_a_word_that_is_no_assignment_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is not key=value"):
        parse_assignments([word])


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"rounds = ", "is not TOML"), (b"\xff\xfe", "is not TOML"), (b"#" * 1_000_001, "too large")],
    ids=["syntax", "not text", "size"],
)
def test_a_recipe_that_cannot_be_read_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_recipe(path)


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the recipe .*nowhere\.toml: No such file"):
        read_recipe(tmp_path / "nowhere.toml")


def test_the_command_line_wins_over_the_environment_and_that_over_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('rounds = 3\nseed = 3\nlr = 0.3\nmethod = "fedloa"\n')
    monkeypatch.setenv("FEDSCAL_SEED", "4")
    monkeypatch.setenv("FEDSCAL_LR", "0.4")
    spec = RunSpec.make(**gather([str(recipe), "lr=0.5"]))
    assert (spec.rounds, spec.seed, spec.lr, spec.method) == (3, 4, 0.5, "fedloa")
    assert spec.local_epochs == 5, "what nobody gave is the default"


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"mu": "inf"}, "needs a finite number"),
        ({"model": "convnett"}, "did you mean 'convnet'"),
        ({"threads": 10**30}, "too large"),
        ({"workers": 10**30}, "too large"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_values_that_would_fail_later_are_refused_at_once(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RunSpec.make(**given_)


def test_the_adaptation_not_given_is_the_methods_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTATIONS, "other", Shot)
    monkeypatch.setitem(METHODS, "own", dataclasses.replace(METHODS["fedloa"], adaptation="other"))
    assert RunSpec.make(method="fedscal").adaptation == "shot"
    assert RunSpec.make(method="own").adaptation == "other"
    assert RunSpec.make(method="own", adaptation="shot").adaptation == "shot"


def test_keys_that_came_later_leave_the_digests_of_recorded_runs_as_they_were() -> None:
    # Written down before the keys `classes`, `precision` and `micro_batch` came.
    recorded = "b2b357b213b770466e81ebc49f2fe5a5d9f06b7793fe3fd4384ad50901cd5be1"
    assert RunSpec.make().digest() == recorded
    other = RunSpec.make(source="font", method="fedprox", mu=0.1)
    assert other.digest().startswith("507bed8280952d77")
    keys: list[dict[str, Any]] = [
        {"classes": "domainnet-10"},
        {"micro_batch": 8},
        {"precision": "bf16"},
        {"device": "cuda"},
    ]
    assert len({recorded, *(RunSpec.make(**key).digest() for key in keys)}) == 5


def test_a_key_of_an_earlier_version_is_passed_over_where_it_did_nothing_and_named_where_it_did() -> None:
    assert RunSpec.make(sure_share=0.0).digest() == RunSpec.make().digest()
    with pytest.raises(UsageError, match=r"sure_share=0\.5: a key of version 0\.2\.0.*site_share"):
        RunSpec.make(sure_share=0.5)
