"""Where the registry is found: the option, the environment, npm's files, npm itself, or nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscal.core.errors import UsageError
from fedscal.data.icons.npm import VARIABLES, find_registry
from fedscal.experiment.spec import environment_keys


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a working directory without any configuration, and no npm."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "home").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def fake_npm(folder: Path, script: str) -> None:
    path = folder / "bin" / "npm"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_each_place_counts_before_the_next(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no npm registry is known: give --registry URL"):
        find_registry(None)
    fake_npm(nowhere, "echo http://npm.test/")
    assert find_registry(None) == "http://npm.test"
    (nowhere / "home" / ".npmrc").write_text(
        "@scope:registry=http://scope.test\nregistry = http://home.test/x/\n"
    )
    assert find_registry(None) == "http://home.test/x"
    Path(".npmrc").write_text('; registry=http://comment.test\nregistry="http://work.test"\n')
    assert find_registry(None) == "http://work.test"
    monkeypatch.setenv("npm_config_registry", "http://npm-variable.test")
    assert find_registry(None) == "http://npm-variable.test"
    monkeypatch.setenv("FEDSCAL_NPM_REGISTRY", "https://own-variable.test")
    assert find_registry(None) == "https://own-variable.test"
    assert find_registry("http://option.test/") == "http://option.test"


@pytest.mark.parametrize("script", ["exit 1", "echo undefined", "true"])
def test_an_npm_that_knows_nothing_is_no_answer(nowhere: Path, script: str) -> None:
    fake_npm(nowhere, script)
    with pytest.raises(UsageError, match="no npm registry is known"):
        find_registry(None)


@pytest.mark.parametrize("address", ["file:///etc", "ftp://files.test", "registry.test", "http://"])
def test_only_web_addresses_are_taken(address: str) -> None:
    with pytest.raises(UsageError, match="no http or https address"):
        find_registry(address)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as refused:
        find_registry("https://me:secret@registry.test")
    assert "secret" not in str(refused.value)


def test_the_variable_is_no_key_of_a_run() -> None:
    assert environment_keys({"FEDSCAL_NPM_REGISTRY": "http://registry.test", "FEDSCAL_LR": "1"}) == {
        "lr": "1"
    }
