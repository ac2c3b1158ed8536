"""Rank the Quick Draw categories by how many icons bear their name: ``python -m tools.rank_icons``.

The rule, written before anything was counted:

1. A candidate is every Quick Draw category that is no class of an earlier benchmark.
2. An icon counts for a category if its name is the category's: after style endings, neutral words and numbers
   fell away as for ``icons``, and with hyphens and spaces taken out of both. A category's final s may be
   missing (grapes, grape). There are no synonyms.
3. A near-duplicate of an earlier drawing of the same category and domain does not count, as in the archive.
4. Categories are ranked by the smallest of their counts in outline, solid and color; then by the sum of the
   three; then by the alphabet.
5. From the top, a category is left out only for a reason that stands in the benchmark's file of classes: it
   cannot be told from a class of an earlier benchmark or from one that is ranked higher, or most icons of
   that name in some domain show something else. The first 25 others are the classes of ``icons-b``, the next
   25 those of ``icons-c``.

Needs the tarballs in the cache: ``fedscal data get icons``.
"""

from __future__ import annotations

import io
import re
import tarfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources

from fedscal.core.documents import parse_json
from fedscal.data.icons.archive import distinct, pictures
from fedscal.data.icons.benchmark import ARCHIVES, FIRST, Archive, folder
from fedscal.data.icons.npm import members
from fedscal.data.icons.rules import Package, Rules, packages

CLASSES = 25
DOMAINS = ("outline", "solid", "color")
_CATEGORY = re.compile(r"package/src/drawings/(.+)\.ndjson\.gz")
_ICONS = "package/icons.json"


@dataclass(frozen=True)
class Candidate:
    """A category, and how many drawings of it there are in each of the three domains."""

    category: str
    counts: tuple[int, ...]

    @property
    def rank(self) -> tuple[int, int, str]:
        """What candidates are sorted by."""
        return -min(self.counts), -sum(self.counts), self.category


def categories(tarball: bytes) -> list[str]:
    """Return the names of all categories of the package of sketches."""
    with tarfile.open(fileobj=io.BytesIO(tarball), mode="r:gz") as tar:
        found = (_CATEGORY.fullmatch(name) for name in tar.getnames())
        return sorted(match[1] for match in found if match)


def squeezed(name: str) -> str:
    """Return a name in small letters and digits alone.

    >>> squeezed("hot air balloon")
    'hotairballoon'
    """
    return re.sub("[^a-z0-9]", "", name.lower())


def spellings(categories: Sequence[str], names: Iterable[str]) -> dict[str, int]:
    """Return the plain icon names that are a category's, with the category's number."""
    numbers = {squeezed(category).removesuffix("s"): number for number, category in enumerate(categories)}
    numbers |= {squeezed(category): number for number, category in enumerate(categories)}
    return {name: numbers[squeezed(name)] for name in sorted(names) if squeezed(name) in numbers}


def by_name_alone(
    wanted: Sequence[str], sets: Sequence[Package], read: Callable[[Package], bytes], known: Rules
) -> Rules:
    """Return rules that take every icon with a category's name, with the neutral words of known rules."""
    names: set[str] = set()
    for package in sets:
        icons = parse_json(members(read(package), (_ICONS,), package.name)[_ICONS])["icons"]
        plain = (known.plain(icon, package.styles) for icon in icons)
        names.update(found[0] for found in plain if found)
    nothing: dict[int, frozenset[str]] = {number: frozenset() for number in range(len(wanted))}
    chosen = tuple(wanted)
    return replace(known, classes=chosen, sketches=chosen, names=spellings(wanted, names), excluded=nothing)


def ranking(sets: Sequence[Package], read: Callable[[Package], bytes], taken: Rules) -> list[Candidate]:
    """Return the candidates, the most frequent first."""
    drawn = [picture for package in sets for picture in pictures(package, read(package), taken)]
    domains = distinct(drawn, taken)
    counts = {domain: Counter(picture.label for picture in domains[domain]) for domain in DOMAINS}
    found = [
        Candidate(category, tuple(counts[domain][number] for domain in DOMAINS))
        for number, category in enumerate(taken.classes)
    ]
    return sorted(found, key=lambda candidate: candidate.rank)


def first_of(ranked: Sequence[Candidate], left_out: Mapping[str, str]) -> list[str]:
    """Return the classes: the first of the ranking that have no reason against them."""
    return [candidate.category for candidate in ranked if candidate.category not in left_out][:CLASSES]


def table(ranked: Sequence[Candidate], left_out: Mapping[str, str]) -> str:
    """Return the ranking as Markdown, down to the last class."""
    last = first_of(ranked, left_out)[-1]
    lines = ["| category | outline | solid | color | left out |", "|---|---:|---:|---:|---|"]
    for candidate in ranked:
        counts = " | ".join(str(count) for count in candidate.counts)
        lines.append(f"| {candidate.category} | {counts} | {left_out.get(candidate.category, '')} |")
        if candidate.category == last:
            break
    return "\n".join(lines)


def reasons(text: str) -> dict[str, str]:
    """Return which categories a file of rules leaves out, and why."""
    left_out: dict[str, str] = tomllib.loads(text)["left_out"]
    return left_out


def chosen_of(archive: Archive, earlier: Sequence[Archive], read: Callable[[Package], bytes]) -> list[str]:
    """Print the ranking without the classes of earlier archives, and spellings; return the classes."""
    left_out = reasons((resources.files("fedscal.data.icons") / archive.rules_file).read_text("utf-8"))
    sets = [package for package in packages() if package.styles]
    (sketches,) = (package for package in packages() if not package.styles)
    used = {category for one in earlier for category in one.rules.sketches}
    wanted = [name for name in categories(read(sketches)) if name not in used]
    taken = by_name_alone(wanted, sets, read, FIRST.rules)
    ranked = ranking(sets, read, taken)
    chosen = sorted(first_of(ranked, left_out))
    print(archive.name, table(ranked, left_out), sep="\n\n")
    for category in chosen:
        number = taken.classes.index(category)
        print(category, [name for name, label in taken.names.items() if label == number])
    return chosen


def main() -> None:
    """Print the rankings; end with 1 if shipped classes are others."""

    def read(package: Package) -> bytes:
        return (folder() / "tarballs" / package.tarball).read_bytes()

    for place, archive in enumerate(ARCHIVES[1:], start=1):
        if archive.rules.classes != tuple(chosen_of(archive, ARCHIVES[:place], read)):
            raise SystemExit(f"{archive.rules_file} has other classes: {', '.join(archive.rules.classes)}")


if __name__ == "__main__":
    main()
