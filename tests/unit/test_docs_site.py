"""The documentation's site: links lead somewhere, pages look as in the repository, the reference is whole."""

from __future__ import annotations

import re
from functools import cache

import pytest
import yaml
from tools import docs_site, reference
from tools.requirements import ROOT

import fedscal
from fedscal.experiment.spec import all_options
from fedscal.methods import ADAPTATIONS, METHODS


@cache
def page(name: str) -> str:
    """Return a page of the reference."""
    return pages()[f"reference/{name}.md"]


@cache
def pages() -> dict[str, str]:
    """Make the reference once."""
    return reference.pages()


@pytest.mark.parametrize(
    ("path", "link", "there"),
    [
        ("README.md", "[a](docs/folders.md#audit)", "[a](folders.md#audit)"),
        ("README.md", "![a](docs/images/a.svg)", "![a](images/a.svg)"),
        ("README.md", "[a](CONTRIBUTING.md)", "[a](contributing.md)"),
        ("docs/folders.md", "[a](models.md)", "[a](models.md)"),
        ("docs/folders.md", "[a](../LICENSE)", "[a](repository/LICENSE.md)"),
        ("docs/data/icons.md", "[a](../../src/a.toml)", "[a](../repository/src/a.toml.md)"),
        ("docs/data/icons.md", "[a](../results.md)", "[a](../results.md)"),
        ("docs/data/icons.md", "[a](#b) [c](https://d.example)", "[a](#b) [c](https://d.example)"),
    ],
)
def test_links_follow_their_files_to_the_site(path: str, link: str, there: str) -> None:
    assert docs_site.moved(path, link) == there


def test_files_that_pages_link_to_are_pages() -> None:
    written = docs_site.written()
    assert {"LICENSE", "examples/01_quickstart.py", "deploy/Containerfile"} <= written.keys()
    assert "import fedscal" in written["examples/01_quickstart.py"]


@pytest.mark.parametrize("text", ["words\n- one\n- two\n", "1. one\n\n   ```\n   code\n   ```\n2. two\n"])
def test_a_page_that_would_look_otherwise_is_found(text: str) -> None:
    assert docs_site.looks_otherwise(text)


def test_a_page_that_stands_nowhere_comes_last_among_the_how_tos() -> None:
    nav = yaml.safe_load(docs_site.configuration(["folders.md", "new.md", "repository/LICENSE.md"]))["nav"]
    (how_to,) = (section["How to"] for section in nav if "How to" in section)
    assert how_to[-1] == "new.md"
    assert "repository/LICENSE.md" not in str(nav)


def test_the_reference_has_every_command() -> None:
    shown = re.findall(r"^Usage: fedscal(.*?)(?: \[|$| [A-Z])", page("commands"), re.MULTILINE)
    assert {"", " run", " compare", " data check", " flower site"} <= set(shown)
    assert "--resume" in page("commands")


def test_the_reference_has_every_key_method_and_recipe() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", page("keys"), re.MULTILINE)) == all_options().keys()
    named = set(re.findall(r"^\| `([\w-]+)` \|", page("methods"), re.MULTILINE))
    assert named == METHODS.keys() | ADAPTATIONS.keys()
    recipes = {path.stem for path in (ROOT / "src/fedscal/experiment/recipes").glob("*.toml")}
    assert set(re.findall(r"^## (\S+)$", page("recipes"), re.MULTILINE)) == recipes


def test_the_reference_and_the_page_on_the_command_line_have_the_same_exit_codes() -> None:
    codes = set(re.findall(r"^\| (\d+) \|", page("exit-codes"), re.MULTILINE))
    sentence = (ROOT / "docs" / "usage.md").read_text().partition("## Exit codes")[2]
    assert set(re.findall(r"\d+", sentence)) == codes


def test_the_reference_has_every_public_function_and_class() -> None:
    described = set(re.findall(r"^::: fedscal\.(\w+)$", page("python"), re.MULTILINE))
    rest = set(fedscal.__all__) - described
    assert rest == {"ADAPTATIONS", "BENCHMARKS", "METHODS", "__version__", "losses", "trackers"}
    assert "::: fedscal.extend.register_method" in page("extend")
    assert "::: fedscal.losses.scal" in page("losses")
    assert "::: fedscal.trackers.TensorBoard" in page("trackers")
