"""Files of others in the tree: they are those of their locks, and only what is allowed gets into a lock."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tools import vendor
from tools.requirements import CORE
from tools.vendor import LOCKS, Kept, Package

from fedscal.core.errors import DataRefused
from fedscal.data.icons.npm import Registry, integrity_of
from icon_packages import package, registry, tarball

CARD, CODE = "package/package.json", "package/dist/chart.min.js"
ENTRY = Package(
    name="chart",
    version="1.0.0",
    licence="",
    integrity="",
    files={"chart.min.js": Kept(member=CODE, integrity="")},
)


@pytest.mark.parametrize("part", LOCKS)
def test_the_files_are_those_of_the_lock(part: str) -> None:
    kept = {name: one.integrity for package in vendor.packages(part) for name, one in package.files.items()}
    folder = LOCKS[part].parent
    found = {path.name: integrity_of(path.read_bytes()) for path in folder.iterdir() if path != LOCKS[part]}
    assert found == kept


@pytest.mark.parametrize("part", LOCKS)
def test_every_package_has_its_licence_beside_it(part: str) -> None:
    for one in vendor.packages(part):
        assert [name for name in one.files if name.endswith(".LICENSE")], one.name


@pytest.mark.parametrize("licence", ["ISC", "GPL-3.0"])
def test_a_lock_takes_the_hashes_of_a_version_whose_licence_is_allowed(licence: str) -> None:
    data = tarball({CARD: json.dumps({"license": licence}).encode(), CODE: b"draw()"})
    with registry() as served:
        served.add(package("chart", data, {}), data)
        at = Registry(served.address)
        if licence != "ISC":
            with pytest.raises(DataRefused, match="chart is under GPL"):
                vendor.relocked(ENTRY, CORE, at)
            return
        locked = vendor.relocked(ENTRY, CORE, at)
        assert (locked.licence, locked.integrity) == ("ISC", integrity_of(data))
        assert vendor.fetched(locked, at) == {"chart.min.js": b"draw()"}
        with pytest.raises(DataRefused, match="is not the package of the lock"):
            vendor.fetched(replace(locked, integrity="sha512-other"), at)
