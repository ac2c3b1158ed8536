"""Look at every file of a folder before it is trusted: what is broken, how much there is, what is twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedscal.data.decoded import Bad, decoded
from fedscal.data.folders import Tree


@dataclass(frozen=True)
class Findings:
    """What a folder holds.

    Attributes:
        counts: images by domain and class; the class is "" where there are no labels.
        bad: files that are no whole images.
        shared: how many images two domains have in common, by the pair of their names.
        repeated: how many images a domain holds more than once.
        others: files that were passed over because their ending is no image's.
    """

    counts: Mapping[str, Mapping[str, int]]
    bad: Sequence[Bad]
    shared: Mapping[tuple[str, str], int]
    repeated: Mapping[str, int]
    others: int

    def remarks(self) -> Iterator[str]:
        """Say in sentences what a person should know."""
        yield from (f"{bad.path}: {bad.reason}" for bad in self.bad)
        for (first, second), count in self.shared.items():
            yield f"{count} images are in {first} and in {second} alike."
        for domain, count in self.repeated.items():
            yield f"{count} images of {domain} are there more than once."
        if self.others:
            yield f"{self.others} files are passed over: their names do not end like an image's."


def examine(tree: Tree, done: Callable[[], None] = lambda: None) -> Findings:
    """Decode every file of a folder; the pixels are kept for the runs to come."""
    found = {domain: decoded(files, done=done) for domain, files in tree.domains.items()}
    hashes = {domain: Counter(part.hashes) for domain, part in found.items()}
    pairs = [(a, b) for a in hashes for b in hashes if a < b]
    shared = {(a, b): len(hashes[a].keys() & hashes[b].keys()) for a, b in pairs}
    return Findings(
        counts={domain: Counter(file.label or "" for file in part.files) for domain, part in found.items()},
        bad=[bad for part in found.values() for bad in part.bad],
        shared={pair: count for pair, count in shared.items() if count},
        repeated={d: twice for d, n in hashes.items() if (twice := sum(n.values()) - len(n))},
        others=tree.others,
    )
