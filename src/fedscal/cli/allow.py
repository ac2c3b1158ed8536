"""``--allow-code``: the one way by which a command may run a model's own code."""

from __future__ import annotations

from typing import Annotated

import typer

from fedscal.core.user_code import allow_code


def _permit(given: bool) -> bool:
    if given:
        allow_code()
    return given


AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        callback=_permit,
        help="Import the modules that plugins= and model=package.module:factory name. Trust them first.",
    ),
]
