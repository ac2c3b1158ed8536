"""The paper's data sets: how to know them on disk, whatever their folders are called, and the real ones."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fedscal.core.errors import DataRefused, some
from fedscal.data.benchmark import Benchmark
from fedscal.data.folders.benchmark import Folder
from fedscal.data.registry import benchmark

_MOST_NAMED = 5


@dataclass(frozen=True)
class DataSet:
    """A data set as its authors published it.

    Attributes:
        name: its name, which is also that of the recipe with the paper's protocol.
        title: its name in sentences.
        domains: the number of images of each domain, under the names of the paper's tables; 0: not known.
        classes: the names of its classes, in the order of their numbers.
        aliases: other names that folders of a domain have, by the paper's.
    """

    name: str
    title: str
    domains: Mapping[str, int]
    classes: tuple[str, ...]
    aliases: Mapping[str, tuple[str, ...]]

    def folders(self, found: Sequence[str]) -> dict[str, str] | None:
        """Return the folder of each domain, if they are all there; case, blanks and hyphens do not matter."""
        plain = {_plain(folder): folder for folder in found}
        names = {
            domain: next((plain[key] for key in self._spellings(domain) if key in plain), None)
            for domain in self.domains
        }
        known = {domain: folder for domain, folder in names.items() if folder is not None}
        return known if len(known) == len(self.domains) else None

    def domain(self, name: str) -> str | None:
        """Return the domain that a name means."""
        return next((domain for domain in self.domains if _plain(name) in self._spellings(domain)), None)

    def _spellings(self, domain: str) -> list[str]:
        return [_plain(name) for name in (domain, *self.aliases.get(domain, ()))]


@dataclass(frozen=True)
class Copy:
    """A data set in a user's folder.

    Attributes:
        dataset: which one it is, by the names of its domains.
        root: the folder.
        folders: the folder's name of each domain.
    """

    dataset: DataSet
    root: Path
    folders: Mapping[str, str]

    def flaws(self, found: Benchmark) -> Iterator[str]:
        """Say where these images are not the published ones; nothing if they seem to be."""
        title = self.dataset.title
        strange = sorted(set(found.domains) - set(self.folders.values()))
        if strange:
            yield f"{title} has no domain {some(strange, _MOST_NAMED)}"
        if sorted(map(_plain, found.classes)) != sorted(map(_plain, self.dataset.classes)):
            yield _other_classes(title, self.dataset.classes, found.classes)
        assert isinstance(found.folder, Folder), "a copy is a folder"
        for domain, images in self.dataset.domains.items():
            here = len(found.folder.tree.domains[self.folders[domain]])
            if images and here != images:
                yield f"{domain} of {title} has {images:,} images, {self.folders[domain]} here {here:,}"


def locate(wanted: Sequence[DataSet], roots: Sequence[Path]) -> dict[str, Copy]:
    """Return which of the wanted data sets the folders hold, by name; a folder with none is refused."""
    found: dict[str, Copy] = {}
    for root in roots:
        if not root.is_dir():
            raise DataRefused(f"--data {root} is not a folder.")
        place = root.resolve()
        domains = benchmark(str(place)).domains
        fitting = [(one, folders) for one in wanted if (folders := one.folders(domains))]
        if not fitting:
            known = "; or ".join(f"{', '.join(one.domains)} ({one.title})" for one in wanted)
            raise DataRefused(
                f"--data {root} holds the folders {some(domains, _MOST_NAMED)}; needed: {known}."
            )
        for one, folders in fitting:
            if one.name in found:
                raise DataRefused(f"--data {root} and {found[one.name].root} both hold {one.title}.")
            found[one.name] = Copy(one, place, folders)
    return found


def _other_classes(title: str, wanted: Sequence[str], found: Sequence[str]) -> str:
    have = {_plain(name) for name in found}
    absent = [name for name in wanted if _plain(name) not in have]
    lacking = f", without {some(absent, _MOST_NAMED)}" if absent else ""
    return f"{title} has {len(wanted)} classes, the folder {len(found)}{lacking}"


def _plain(name: str) -> str:
    """Return a name as it is compared.

    >>> _plain("Real World") == _plain("real_world") == _plain("RealWorld")
    True
    """
    return "".join(char for char in name.casefold() if char.isalnum())


def _published() -> Iterator[DataSet]:
    text = (resources.files("fedscal.paper") / "datasets.toml").read_text(encoding="utf-8")
    for name, facts in tomllib.loads(text).items():
        aliases = {domain: tuple(names) for domain, names in facts.get("aliases", {}).items()}
        yield DataSet(name, facts["title"], facts["domains"], tuple(facts["classes"]), aliases)


DATASETS = {one.name: one for one in _published()}
