"""``fedscal flower`` with arguments that cannot be used: one sentence and an exit code."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["keys", "keys", "--sites", "a,../b"], "'../b' is no name for a site"),
        (["server"], "give --keys DIR"),
        (["site", "--server", "h:1", "--name", "a"], "give --key FILE"),
        (["site", "--insecure", "--server", "h:1", "--name", "a"], "a site needs"),
        (["site", "--insecure", "--server", "h:1", "--name", "a", "--model", "m"], "give --data DIR"),
        (["run", "--server", "h:1"], "--ca FILE"),
        (["run", "--server", "host", "--insecure"], "'host' is not host:port"),
        (["run", "--server", "127.0.0.1:1", "--ca", "ca.crt"], "ca.crt is not there"),
        (["run", "--server", "127.0.0.1:1", "--insecure"], "give --sites a,b,c"),
        (["run", "--server", "127.0.0.1:1", "--insecure", "--sites", "a,a"], "names a twice"),
        (["run", "--server", "127.0.0.1:1", "--insecure", "--sites", "a,b"], "give source_model=MODEL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_it_is_refused_with_a_sentence(fedscal, tmp_path, words, said):
    ended = fedscal("flower", *words, cwd=tmp_path)
    assert ended.code == 2
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_a_site_looks_at_its_images_before_it_says_that_it_is_there(fedscal, world, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    words = [
        "--insecure",
        "--server",
        "127.0.0.1:1",
        "--name",
        "a",
        "--data",
        "photos",
        "--model",
        world.model,
    ]
    ended = fedscal("flower", "site", *words, cwd=tmp_path)
    assert ended.code == 3
    assert "broken.png" in ended.err


def test_nobody_listens(fedscal, world, tmp_path):
    where = ["--server", "127.0.0.1:1", "--insecure", "--sites", "a,b", "--model", world.model]
    ended = fedscal("flower", "run", *where, cwd=tmp_path)
    assert ended.code == 2
    assert "nobody listens at 127.0.0.1:1" in ended.error


def test_a_transport_without_machines_is_refused(fedscal):
    ended = fedscal("run", "transport=fp16", "--out", "x")
    assert ended.code == 2
    assert "nothing travels" in ended.error


def test_the_images_of_sites_are_not_here(fedscal, world, tmp_path):
    ended = fedscal("run", "clients=flower:a+b", f"source_model={world.model}", "--out", tmp_path / "run")
    assert ended.code == 3
    assert "are at the site" in ended.error


def test_the_help_is_plain_text(fedscal, tmp_path):
    said = fedscal("flower", "site", "--help", cwd=tmp_path).out
    assert "[default:" in said
    assert "\\" not in said
