"""``fedscal flower`` with arguments that cannot be used: one sentence and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower_world import World
from harness import Words, Zygote

from fedscal.flower.endpoint import Endpoint


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["certs", "keys", "--sites", "a,../b"], "'../b' is no name for a site"),
        (["server"], "give --keys DIR"),
        (["site", "--server", "h:1", "--name", "a"], "give --key FILE"),
        (["site", "--insecure", "--server", "h:1", "--name", "a"], "a site needs"),
        (["site", "--insecure", "--server", "h:1", "--name", "a", "--model", "m"], "give --data DIR"),
        (
            ["site", "--server", "host", "--name", "a", "--model", "m", "--data", ".", "--insecure"],
            "not host:port",
        ),
        (["site", "--apps", "abc"], "is not the sha256 of an app"),
        (["server", "--insecure", "--front", "apache"], "--front is built-in or nginx"),
        (["run"], "give --sites a,b,c"),
        (["run", "--sites", "a,a"], "names a twice"),
        (["run", "--sites", "a,b"], "give source_model=MODEL"),
        (["run", "--resume", "x", "--at-least", "1"], "leave --at-least away"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_it_is_refused_with_a_sentence(fedscal: Zygote, tmp_path: Path, words: list[str], said: str) -> None:
    ended = fedscal("flower", *words, cwd=tmp_path)
    assert ended.code == 2
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_the_command_that_makes_certificates_has_kept_its_old_name(fedscal: Zygote, tmp_path: Path) -> None:
    made = []
    for name in ("certs", "keys"):
        ended = fedscal("flower", name, name, "--sites", "a", cwd=tmp_path)
        assert ended.code == 0, ended.err
        made.append(sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*")))
    assert made[0] == made[1]
    assert "a/key" in made[0]
    assert "certs" in fedscal("flower", "--help", cwd=tmp_path).out


def test_a_site_looks_at_its_images_before_it_says_that_it_is_there(
    fedscal: Zygote, world: World, tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    words: Words = ["--insecure", "--server", "127.0.0.1:1", "--name", "a", "--data", "photos"]
    words += ["--model", world.model]
    ended = fedscal("flower", "site", *words, cwd=tmp_path)
    assert ended.code == 3
    assert "broken.png" in ended.err


def test_more_sites_than_are_named_cannot_be_waited_for(
    fedscal: Zygote, world: World, tmp_path: Path
) -> None:
    words: Words = ["--sites", "a,b", "--model", world.model, "--at-least", "3"]
    ended = fedscal("flower", "run", *words, cwd=tmp_path)
    assert ended.code == 2
    assert "--at-least 3: 2 sites are named" in ended.error


def test_there_is_no_server(fedscal: Zygote, world: World, tmp_path: Path) -> None:
    where: Words = ["--sites", "a,b", "--model", world.model, "--state", "server"]
    ended = fedscal("flower", "run", *where, cwd=tmp_path)
    assert ended.code == 2
    assert "no server was started with server" in ended.error
    Endpoint.create(tmp_path / "server" / "local")
    ended = fedscal("flower", "run", *where, cwd=tmp_path)
    assert ended.code == 2
    assert "does not run" in ended.error


def test_a_transport_without_machines_is_refused(fedscal: Zygote) -> None:
    ended = fedscal("run", "transport=fp16", "--out", "x")
    assert ended.code == 2
    assert "nothing travels" in ended.error


def test_the_images_of_sites_are_not_here(fedscal: Zygote, world: World, tmp_path: Path) -> None:
    ended = fedscal("run", "clients=flower:a+b", f"source_model={world.model}", "--out", tmp_path / "run")
    assert ended.code == 3
    assert "are at the site" in ended.error


def test_the_help_is_plain_text(fedscal: Zygote, tmp_path: Path) -> None:
    said = fedscal("flower", "site", "--help", cwd=tmp_path).out
    assert "[default:" in said
    assert "\\" not in said
