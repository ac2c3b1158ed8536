"""The paper's data sets as published, and how to recognise them on disk by their folders."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from fedscal.core.convert import convert
from fedscal.core.errors import DataRefused, some
from fedscal.core.files import fault
from fedscal.data.benchmark import Benchmark
from fedscal.data.folders.benchmark import Folder
from fedscal.data.registry import benchmark

MARK = ".fedscal-rehearsal"
"""The file by which a tree of drawn images is known: it may have the published numbers of images."""
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
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def folders(self, names: Sequence[str]) -> dict[str, str] | None:
        """Return the folder of each domain, if they are all there; case, blanks and hyphens do not matter."""
        plain = {_plain(folder): folder for folder in names}
        fitting = {name: [key for key in self._spellings(name) if key in plain] for name in self.domains}
        return {name: plain[keys[0]] for name, keys in fitting.items()} if all(fitting.values()) else None

    def domain(self, name: str) -> str | None:
        """Return the domain of a name."""
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

    def flaws(self, data: Benchmark) -> Iterator[str]:
        """Name the differences from the published images; none if they seem the same."""
        title = self.dataset.title
        strange = sorted(set(data.domains) - set(self.folders.values()))
        if strange:
            yield f"{title} has no domain {some(strange, _MOST_NAMED)}"
        if sorted(map(_plain, data.classes)) != sorted(map(_plain, self.dataset.classes)):
            here = {_plain(name) for name in data.classes}
            absent = [name for name in self.dataset.classes if _plain(name) not in here]
            lacking = f", without {some(absent, _MOST_NAMED)}" if absent else ""
            count = len(self.dataset.classes)
            yield f"{title} has {count} classes, the folder {len(data.classes)}{lacking}"
        assert isinstance(data.folder, Folder), "a copy is a folder"
        if (data.folder.tree.root / MARK).exists():
            yield f"the images are drawings for a rehearsal and not {title}"
        for domain, images in self.dataset.domains.items():
            count = len(data.folder.tree.domains[self.folders[domain]])
            if images and count != images:
                yield f"{domain} of {title} has {images:,} images, {self.folders[domain]} here {count:,}"


def locate(wanted: Sequence[DataSet], roots: Sequence[Path]) -> dict[str, Copy]:
    """Return which of the wanted data sets the folders hold, by name; a folder with none is refused."""
    copies: dict[str, Copy] = {}
    for root in roots:
        if not root.is_dir():
            raise DataRefused(f"--data: {fault(root, 'folder', 'is not a folder.')}")
        path = root.resolve()
        domains = benchmark(str(path)).domains
        fitting = [(dataset, folders) for dataset in wanted if (folders := dataset.folders(domains))]
        if not fitting:
            needed = "; or ".join(f"{', '.join(dataset.domains)} ({dataset.title})" for dataset in wanted)
            raise DataRefused(
                f"--data {root} holds the folders {some(domains, _MOST_NAMED)}; needed: {needed}."
            )
        for dataset, folders in fitting:
            if dataset.name in copies:
                raise DataRefused(f"--data {root} and {copies[dataset.name].root} both hold {dataset.title}.")
            copies[dataset.name] = Copy(dataset, path, folders)
    return copies


def _plain(name: str) -> str:
    """Return a name as it is compared.

    >>> _plain("Real World") == _plain("real_world") == _plain("RealWorld")
    True
    """
    return "".join(char for char in name.casefold() if char.isalnum())


_PUBLISHED = (resources.files(__package__) / "datasets.toml").read_text("utf-8")
DATASETS = {
    name: convert({"name": name, **facts}, DataSet) for name, facts in tomllib.loads(_PUBLISHED).items()
}
