"""Lay out the documentation for the program that makes the site of it: ``make docs``.

The pages of docs/ are written to be read in the repository as they are. For the site, the reference is made
from the code (``tools/reference.py``); README, CONTRIBUTING and CHANGELOG become pages, and so does every
other file that a page links to. All of it is written to dist/docs, with a configuration beside it, as plain
files: whatever reads a mkdocs.yml can make the site.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import markdown
import yaml
from markdown_it import MarkdownIt

from tools import reference
from tools.requirements import ROOT

DOCS, LAID_OUT = ROOT / "docs", ROOT / "dist" / "docs"
_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(\]\(|<img src=\")(?![a-z]+:|#)([^)#\s\"]+)")
_LANGUAGES = {".py": "python", ".toml": "toml", ".service": "ini"}
_TAGS = {"li": "list_item_open", "table": "table_open", "pre": "code_block fence", "h": "heading_open"}
_EXTENSIONS = ("pymdownx.superfences", "tables")


def main() -> int:
    """Write pages and configuration; end with 1 if a page would look otherwise than in the repository."""
    shutil.rmtree(LAID_OUT, ignore_errors=True)
    shutil.copytree(DOCS, LAID_OUT)
    pages = written()
    for path, text in pages.items():
        _write(LAID_OUT / place(path), moved(path, text))
    for uri, text in reference.pages().items():
        _write(LAID_OUT / uri, text)
    _write(ROOT / "dist" / "mkdocs.yml", configuration([place(path) for path in pages]))
    odd = [f"{path}: {what}" for path, text in pages.items() for what in looks_otherwise(text)]
    print("\n".join(odd) or f"{LAID_OUT.relative_to(ROOT)}: {len(pages)} pages beside the reference")
    return int(bool(odd))


def written() -> dict[str, str]:
    """Return the pages that somebody wrote, and the files that they link to as pages, by their paths."""
    paths = [*_PAGES, *sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))]
    pages = {path: (ROOT / path).read_text() for path in paths}
    linked = {found for path, text in pages.items() for found in _linked(path, text)}
    outside = sorted(path for path in linked if not path.startswith("docs/") and path not in _PAGES)
    return pages | {path: _as_page(path) for path in outside}


def configuration(pages: list[str]) -> str:
    """Return mkdocs.yml for what is laid out: pages that stand nowhere in it come last among the how-tos."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = {uri for section in settings["nav"] for uri in _uris(section)}
    (how_to,) = (section["How to"] for section in settings["nav"] if "How to" in section)
    how_to += [uri for uri in pages if uri not in listed and not uri.startswith("repository/")]
    return str(yaml.safe_dump(settings, sort_keys=False))


def place(path: str) -> str:
    """Return where a file of the repository is on the site.

    >>> place("README.md"), place("docs/folders.md"), place("examples/01_quickstart.py")
    ('index.md', 'folders.md', 'repository/examples/01_quickstart.py.md')
    """
    return (
        path.removeprefix("docs/") if path.startswith("docs/") else _PAGES.get(path, f"repository/{path}.md")
    )


def moved(path: str, text: str) -> str:
    """Return a page with its links pointing at places of the site."""
    home = posixpath.dirname(place(path)) or "."
    return _LINK.sub(lambda link: link[1] + posixpath.relpath(place(_meant(path, link[2])), home), text)


def looks_otherwise(text: str) -> list[str]:
    """Say where the site's Markdown is not the repository's: it wants a blank line before a list."""
    html = markdown.markdown(text, extensions=_EXTENSIONS)
    tokens = Counter(token.type for token in MarkdownIt().enable("table").parse(text))
    counts = {
        tag: (len(re.findall(rf"<{tag}[1-6]?[ >]", html)), sum(tokens[kind] for kind in kinds.split()))
        for tag, kinds in _TAGS.items()
    }
    return [
        f"{here} <{tag}> on the site, {there} in the repository"
        for tag, (here, there) in counts.items()
        if here != there
    ]


def _uris(section: Any) -> Iterator[str]:
    """Yield the pages of a part of nav."""
    if isinstance(section, str):
        yield section
    for part in (
        section.values() if isinstance(section, dict) else section if isinstance(section, list) else ()
    ):
        yield from _uris(part)


def _meant(path: str, link: str) -> str:
    """Return the file of the repository that a link of another one means."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _linked(path: str, text: str) -> Iterator[str]:
    for link in _LINK.finditer(text):
        yield _meant(path, link[2])


def _as_page(path: str) -> str:
    """Show a file of the repository as it is."""
    language = _LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{(ROOT / path).read_text()}````\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
