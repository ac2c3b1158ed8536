"""What names the release: one version, wherever it is written."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml
from tools.requirements import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NEWEST = re.compile(r"^## (?P<version>\S+) \((?P<day>\d{4}-\d\d-\d\d)\)$", re.MULTILINE)


def test_the_program_says_the_version_of_the_project() -> None:
    from fedscal.core.version import __version__

    assert __version__ == VERSION, (
        "pip install --editable . again: the version is that of the installed package"
    )


def test_the_changelog_begins_with_the_release_and_the_citation_names_it() -> None:
    newest = NEWEST.search((ROOT / "CHANGELOG.md").read_text())
    assert newest
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], str(cited["date-released"])) == (newest["version"], newest["day"])
    assert newest["version"] == VERSION


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_wheels_are_named_by_the_version(page: str) -> None:
    named = set(re.findall(r"fedscal-([\d.]+)-py3-none-any\.whl", (ROOT / page).read_text()))
    assert named == {VERSION}
