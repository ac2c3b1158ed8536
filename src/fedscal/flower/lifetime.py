"""A process ends with the one that started it, however that one ended."""

from __future__ import annotations

import os
import threading
import time


def end_with_parent() -> None:
    """End this process when its parent is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
