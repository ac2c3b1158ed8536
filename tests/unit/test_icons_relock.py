"""Renewing the lock: the newest version with its hash and licence, and no licence that is not free enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools import relock_icons as relock

from fedscal.core.errors import DataRefused
from icon_packages import package, registry, tarball


def lock_of(folder: Path) -> Path:
    entry = {
        "name": "@toys/mono",
        "version": "0.1.0",
        "integrity": "",
        "licence": "",
        "title": "",
        "author": "",
    }
    path = folder / "lock.json"
    path.write_text(json.dumps({"packages": [{**entry, "styles": {"line": "outline"}}]}))
    return path


@pytest.mark.parametrize("licence", ["MIT", "GPL-3.0"])
def test_a_lock_is_renewed_if_the_licence_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, licence: str
) -> None:
    info = {"name": "Mono", "author": {"name": "A. Drawer"}, "license": {"spdx": licence}}
    data = tarball({"package/info.json": json.dumps(info).encode()})
    newest = package("@toys/mono", data, {"line": "outline"})
    path = lock_of(tmp_path)
    with registry() as served:
        served.add(newest, data)
        served.answers["/@toys/mono/latest"] = served.answers["/@toys/mono/1.0.0"]
        monkeypatch.setenv("FEDSCAL_NPM_REGISTRY", served.address)
        if licence != "MIT":
            with pytest.raises(DataRefused, match=r"@toys/mono is under GPL-3\.0"):
                relock.main(path)
            return
        relock.main(path)
    (renewed,) = json.loads(path.read_text())["packages"]
    assert renewed == {
        "name": "@toys/mono",
        "version": "1.0.0",
        "integrity": newest.integrity,
        "licence": "MIT",
        "title": "Mono",
        "author": "A. Drawer",
        "styles": {"line": "outline"},
    }
