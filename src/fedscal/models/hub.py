"""Whether the hub that models are fetched from can be reached: asked once, and not for a minute."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from fedscal.core.extras import from_extra

_SECONDS = 5.0
WAY_OUT = (
    "the hub cannot be reached and the model is not in its cache here. Copy the model's folder or file to "
    "this machine and name it"
)
"""What to do about a model that cannot be fetched; the name to give follows."""


@cache
def reachable() -> bool:
    """Whether the hub answers, anything at all; huggingface_hub asks it five times with growing pauses."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() not in ("", "0", "FALSE", "NO", "OFF"):
        return False
    try:
        question = urllib.request.Request(_address(), method="HEAD")
        urllib.request.urlopen(question, timeout=_SECONDS).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        # The hub's library may know an authority that we do not.
        return isinstance(error.reason, ssl.SSLError)
    except (OSError, ValueError):
        return False
    return True


def _address() -> str:
    with from_extra("hf", "a model of a hub"):
        from huggingface_hub import constants
    return os.environ.get("HF_ENDPOINT", str(constants.ENDPOINT))


@contextmanager
def cache_alone() -> Iterator[None]:
    """Let huggingface_hub use what it has, without a question to anybody."""
    with from_extra("hf", "a model of a hub"):
        from huggingface_hub import constants
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
