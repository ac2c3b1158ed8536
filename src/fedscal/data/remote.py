"""The sites of a federation of real machines as a benchmark: names only, no images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedscal.core.errors import DataRefused, UsageError, shown
from fedscal.core.files import sha256
from fedscal.core.types import Images, Progress
from fedscal.data.benchmark import Benchmark
from fedscal.data.views import AugmentedViews

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "flower:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def site_name(name: str) -> str:
    """Return a site's name if it is valid: it becomes a file name and is sent."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"'{shown(name)}' is no name for a site: 1 to 63 letters, digits, - and _, the first a letter or "
            "digit."
        )
    return name


def sites_benchmark(name: str) -> Benchmark:
    """Return the benchmark of ``flower:a+b+c``; classes, shape and views come from the source model."""
    names = [site_name(part) for part in name.removeprefix(PREFIX).split("+")]
    repeated = sorted({part for part in names if names.count(part) > 1})
    if repeated:
        raise UsageError(f"{shown(name)} names {repeated[0]} twice.")
    return Benchmark(
        name=name,
        title="sites",
        classes=(),
        domains=tuple(sorted(names)),
        shape=(0, 0, 0),
        views=AugmentedViews(),
        build=_not_here,
        version=1,
        defaults={},
        folder=RemoteImages(names),
    )


def _not_here(domain: str) -> tuple[Tensor, Tensor]:
    raise DataRefused(f"the images of {domain} are at the site, and stay there.")


class RemoteImages:
    """Images that are at the sites: nothing can be read or checked here."""

    empty: Sequence[str] = ()

    def __init__(self, names: Sequence[str]) -> None:
        self._names = sorted(names)

    def prepare(self, progress: Progress | None = None) -> None:
        """Do nothing: every site decodes its own images."""

    def images(self, domain: str) -> Images:
        """Refuse: the images are at the site."""
        return _not_here(domain)[0]

    def labels(self, domain: str) -> Tensor | None:
        """Return None: labels stay at the site."""
        return None

    def digest(self) -> str:
        """Return a hash of the sites' names."""
        return sha256(",".join(self._names).encode())

    def ordered(self, classes: Sequence[str]) -> RemoteImages:
        """Change nothing: every site takes the order from its copy of the model."""
        return self

    def keys(self) -> Mapping[str, str]:
        """Return none."""
        return {}

    def changes(self, keys: Mapping[str, str]) -> Sequence[str]:
        """Name none."""
        return ()

    def warnings(self) -> Sequence[str]:
        """Say nothing."""
        return ()

    def require_same_classes(self) -> None:
        """Check nothing: a site with other classes than the model's is refused when it connects."""
