"""Flower's SuperLink, closed to all but its operator.

    python -m fedscal.flower.superlink SECRET_FILE [flags of flower-superlink]

Flower serves sites, apps and operator on one port, and asks nobody who starts a run for a name. Here
requests other than those of sites and executors, which prove themselves in their own ways, must carry
the operator's secret.
"""

from __future__ import annotations

import hmac
import sys
from pathlib import Path

from flwr.superlink import extensions
from flwr.superlink.cli.flower_superlink import flower_superlink
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedscal.flower.processes import end_with_parent

SECRET_HEADER = "fedscal-operator"
_OPEN = ("/v1/fleet/", "/v1/runtime/")
"""Sites sign every request below the first, executors and apps show a secret or a token below the second."""


class OperatorOnly:
    """Refuses what does not carry the operator's secret."""

    def __init__(self, app: ASGIApp, secret: bytes) -> None:
        self._app, self._secret = app, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and not scope["path"].startswith(_OPEN):
            shown = dict(scope["headers"]).get(SECRET_HEADER.encode(), b"")
            if not hmac.compare_digest(shown, self._secret):
                await PlainTextResponse("only for the operator\n", 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def main() -> None:
    """Run SuperLink until it is ended."""
    end_with_parent()
    secret = Path(sys.argv.pop(1)).read_bytes()
    extensions.get_middleware = lambda: (Middleware(OperatorOnly, secret=secret),)
    flower_superlink()


if __name__ == "__main__":
    main()
