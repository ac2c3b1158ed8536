"""A hub that cannot be reached is told at once, with the way out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from fedscal.core.errors import ModelRefused
from fedscal.models import hub, timm_models

constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Point the hub at a port of this machine where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", address)
    hub.reachable.cache_clear()
    yield address
    hub.reachable.cache_clear()


def test_a_repository_is_refused_at_once_with_the_way_out(closed: str) -> None:
    pytest.importorskip("transformers")
    from fedscal.models.huggingface import HuggingFaceBackbone, normalisation

    begin = time.monotonic()
    normalisation("nobody/nothing")
    with pytest.raises(ModelRefused, match=r"hub cannot be reached.*model=hf:<folder>$"):
        HuggingFaceBackbone("nobody/nothing")
    assert time.monotonic() - begin < 20  # five questions with pauses, several times over, were 68


def test_weights_of_timm_come_from_the_cache_or_are_refused(
    closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def create_model(name: str, pretrained: bool, num_classes: int) -> None:
        asked.append(constants.HF_HUB_OFFLINE)
        if pretrained:
            raise OSError("not in the cache")

    monkeypatch.setattr(timm_models, "_timm", lambda name: SimpleNamespace(create_model=create_model))
    with pytest.raises(ModelRefused, match=r"hub cannot be reached.*model=timm:vit@<file\.safetensors>$"):
        timm_models.TimmBackbone("vit@pretrained")
    timm_models._create("vit", pretrained=False)
    assert asked == [True, False]


def test_a_hub_that_answers_with_an_error_is_reachable(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:  # it answers 501 to everything
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.handle_request).start()
        assert hub.reachable()


def test_nobody_is_asked_if_the_user_says_that_he_is_offline(
    closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not hub.reachable()
    hub.reachable.cache_clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: pytest.fail("asked though told not to"))
    assert not hub.reachable()
