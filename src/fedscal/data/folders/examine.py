"""Check every file of a folder: what is broken, how many images there are, which are repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from fedscal.core.errors import some
from fedscal.core.types import Progress
from fedscal.data.folders.decoded import Bad, Decoded, decoded
from fedscal.data.folders.tree import Tree, told_foreign


class _BadFile(TypedDict):
    path: str
    reason: str


class _Shared(TypedDict):
    domains: list[str]
    images: int


class Document(TypedDict):
    """``Findings`` as JSON."""

    images: int
    counts: dict[str, dict[str, int]]
    bad: list[_BadFile]
    shared: list[_Shared]
    repeated: dict[str, int]
    even: dict[str, int]
    others: int
    hidden: int
    empty: list[str]
    foreign: dict[str, int]


@dataclass(frozen=True)
class Findings:
    """What a folder holds.

    Attributes:
        counts: images by domain and class; the class is "" where there are no labels.
        bad: files that are no whole images.
        shared: how many images two domains have in common, by the pair of their names.
        repeated: how many images a domain holds more than once.
        even: how many images of a domain are of a single colour.
        others: files that were skipped because their suffix is no image's.
        hidden: hidden files and folders, which are skipped.
        empty: folders that hold no image.
        foreign: image files by suffix that are not read here.
        nested: domains whose folders are no classes of the model that they are for.
    """

    counts: Mapping[str, Mapping[str, int]]
    bad: Sequence[Bad]
    shared: Mapping[tuple[str, str], int]
    repeated: Mapping[str, int]
    even: Mapping[str, int]
    others: int
    hidden: int
    empty: Sequence[str]
    foreign: Mapping[str, int]
    nested: Sequence[str]

    @property
    def images(self) -> int:
        """How many images can be used."""
        return sum(sum(classes.values()) for classes in self.counts.values())

    def warnings(self) -> Iterator[str]:
        """Describe what harms training without stopping it."""
        if self.bad:
            yield f"{_some(len(self.bad), 'file')} no whole image and left out, the first {self.bad[0].path}"
        for (first, second), count in self.shared.items():
            yield f"{_some(count, 'image')} in {first} and in {second} alike"
        for domain, count in self.repeated.items():
            yield f"{_some(count, 'image', of=domain)} there more than once"
        for domain, count in self.even.items():
            yield f"{_some(count, 'image', of=domain)} one even colour"
        yield from told_foreign(self.foreign)
        if self.nested:
            where = some(self.nested, 5)
            yield f"no folder in {where} is called like a class of the model: read without labels"

    def oddities(self) -> Iterator[str]:
        """Describe what is odd apart from broken files, and what was skipped."""
        yield from replace(self, bad=()).warnings()
        names = {name for classes in self.counts.values() for name in classes if name}
        for domain, classes in self.counts.items():
            absent = sorted(names - set(classes)) if "" not in classes else []
            if absent:
                yield f"{domain} lacks {len(absent)} of {len(names)} classes, the first {absent[0]}"
        if self.others:
            yield f"{_some(self.others, 'file')} passed over: no ending of an image"
        if self.hidden:
            yield f"{_some(self.hidden, 'hidden file')} passed over"
        for name in self.empty:
            yield f"{name} holds no image"

    def as_dict(self) -> Document:
        """Return all of it for JSON."""
        return {
            "images": self.images,
            "counts": {domain: dict(sorted(classes.items())) for domain, classes in self.counts.items()},
            "bad": [{"path": str(bad.path), "reason": bad.reason} for bad in self.bad],
            "shared": [{"domains": list(pair), "images": count} for pair, count in self.shared.items()],
            "repeated": dict(self.repeated),
            "even": dict(self.even),
            "others": self.others,
            "hidden": self.hidden,
            "empty": list(self.empty),
            "foreign": dict(self.foreign),
        }


def _some(count: int, noun: str, of: str = "") -> str:
    """Return a number of things and their verb.

    >>> _some(1, "image"), _some(2, "image", of="Art")
    ('1 image is', '2 images of Art are')
    """
    owner = f" of {of}" if of else ""
    return f"1 {noun}{owner} is" if count == 1 else f"{count} {noun}s{owner} are"


def examine(tree: Tree, progress: Progress | None = None) -> Findings:
    """Decode every file of a folder; the pixels stay in the cache for later runs."""
    return findings(
        tree, {name: decoded(files, progress=progress, name=name) for name, files in tree.domains.items()}
    )


def findings(tree: Tree, images: Mapping[str, Decoded]) -> Findings:
    """Summarise the decoded files of a folder."""
    hashes = {domain: Counter(part.hashes) for domain, part in images.items()}
    pairs = [(a, b) for a in hashes for b in hashes if a < b]
    shared = {(a, b): len(hashes[a].keys() & hashes[b].keys()) for a, b in pairs}
    return Findings(
        counts={domain: Counter(file.label or "" for file in part.files) for domain, part in images.items()},
        bad=[bad for part in images.values() for bad in part.bad],
        shared={pair: count for pair, count in shared.items() if count},
        repeated={d: twice for d, n in hashes.items() if (twice := sum(n.values()) - len(n))},
        even={domain: part.even for domain, part in images.items() if part.even},
        others=tree.others,
        hidden=tree.hidden,
        empty=tree.empty,
        foreign=tree.foreign,
        nested=tree.nested,
    )
