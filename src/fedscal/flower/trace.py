"""When each process of a federation on one machine did what, for measurements: ``benchmarks/flower.py``."""

from __future__ import annotations

import json
import os
import time

_FILE = os.environ.get("FEDSCAL_TRACE", "")
"""Where to note it; nothing is noted without."""


def mark(what: str, who: str = "") -> None:
    """Note that something happens now."""
    if _FILE:
        with open(_FILE, "a") as file:  # one short line at a time, so that those of others stay whole
            file.write(json.dumps({"time": time.time(), "what": what, "who": who}) + "\n")
