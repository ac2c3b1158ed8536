"""A client's memory on the disk of its site, so that it survives a restart and a resumed run."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from fedscal.core import files, weights
from fedscal.core.types import Memory
from fedscal.models.store import read_json, read_tensors

_KEEP = 3
"""A server that resumes goes back at most two rounds, and the round that it was killed in may have begun."""


@dataclass(frozen=True)
class SiteMemory:
    """One folder a run, in it one folder a round in which the client took part."""

    folder: Path

    def before(self, round_: int) -> Memory:
        """Return the memory that the client had when this round began; empty before its first."""
        earlier = [number for number in self._rounds() if number < round_]
        if not earlier:
            return {}
        place = self._place(earlier[-1])
        expected = read_json(place / "manifest.json").get("sha256")
        return weights.unflatten(read_tensors(place / "memory.safetensors", expected))

    def put(self, round_: int, memory: Memory) -> None:
        """Keep the memory of a round; a round that is done again replaces what came of it before."""
        data = weights.to_bytes(weights.flatten(memory))
        manifest = json.dumps({"round": round_, "sha256": files.sha256(data)}).encode()
        files.write_dir(self._place(round_), {"memory.safetensors": data, "manifest.json": manifest})
        rounds = self._rounds()
        for number in [*rounds[:-_KEEP], *(later for later in rounds if later > round_)]:
            shutil.rmtree(self._place(number), ignore_errors=True)

    def _place(self, round_: int) -> Path:
        return self.folder / f"round-{round_:04}"

    def _rounds(self) -> list[int]:
        found = (path.name.removeprefix("round-") for path in self.folder.glob("round-*"))
        return sorted(int(number) for number in found if number.isdecimal())
