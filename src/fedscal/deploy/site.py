"""A model at a site: with the statistics that its run kept for the site, or those of the images at hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedscal.core.errors import UsageError, nearest
from fedscal.core.types import Weights
from fedscal.data.folders.decode import Unreadable
from fedscal.deploy.classifier import Classifier
from fedscal.deploy.predict import as_model_sees
from fedscal.experiment.metrics import COMPARABLE
from fedscal.models.statistics import SiteStatistics, unlikeness
from fedscal.models.store import load_model, read_card

SITES = "sites"
"""The folder beside a run's models that holds the statistics of its sites."""
_LOOKED_AT = 256
ENOUGH = 30
"""Images that are enough for statistics of their own."""


class _Pictures:
    """Image files as a model sees them, decoded when used; what is no image is passed over."""

    def __init__(self, paths: Sequence[Path], classifier: Classifier) -> None:
        self._paths, self._classifier = paths, classifier

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.stack(self._decoded([self._paths[row] for row in rows.tolist()]))

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield the images in batches."""
        for start in range(0, len(self._paths), size):
            if batch := self._decoded(self._paths[start : start + size]):
                yield torch.stack(batch)

    def _decoded(self, paths: Sequence[Path]) -> list[Tensor]:
        decoded: list[Tensor] = []
        for path in paths:
            try:
                decoded.append(as_model_sees(path, self._classifier))
            except Unreadable:
                continue
        return decoded


def sites_of(classifier: Classifier) -> dict[str, Path]:
    """Return the sites whose statistics were kept for this model, with their files.

    Those of BatchNorm are of one round's activations; those of a frozen trunk's features serve every round's.
    """
    paths = sorted((classifier.path.parent / SITES).glob("*.safetensors"))
    if classifier.module.network.standardise is None:
        paths = [path for path in paths if read_card(str(path)).round == classifier.card.round]
    return {path.stem: path for path in paths}


def use_site(classifier: Classifier, site: str) -> str:
    """Give a model the statistics that were kept for a site; return what was done."""
    known = sites_of(classifier)
    if site not in known:
        raise UsageError(f"no statistics are kept for the site '{site}'{nearest(site, known)}")
    tensors, _ = load_model(known[site].parent, site)
    _set(classifier, tensors)
    return f"with the statistics of site {site}"


def use_images(classifier: Classifier, paths: Sequence[Path]) -> str:
    """Give a model the statistics of image files if they are enough; return what was done."""
    prior = classifier.card.statistics_prior
    if prior is None:
        return ""
    _set(classifier, classifier.statistics)  # those of another site may be in use
    if len(paths) < ENOUGH:
        return (
            f"with the source's statistics: {len(paths)} images are too few for their own "
            f"({ENOUGH} are enough)"
        )
    module = classifier.module
    SiteStatistics(prior).apply(module.network, _Pictures(paths, classifier), module.views.evaluate)
    return f"with the statistics of these {len(paths)} images"


def doubt_images(classifier: Classifier, paths: Sequence[Path]) -> str:
    """Return a warning if image files are unlike those that a model knows; some of many are looked at."""
    if len(paths) < COMPARABLE:
        return ""
    module = classifier.module
    some = _Pictures(paths[:: math.ceil(len(paths) / _LOOKED_AT)], classifier)
    far = unlikeness(module.network, some, module.views.evaluate)
    if not far > 1:  # no number if none of them is an image
        return ""
    return (
        f"these images are unlike those that the model was trained on ({far:.1f} times as far as is usual at "
        "most): check some answers"
    )


def _set(classifier: Classifier, statistics: Weights) -> None:
    network = classifier.module.network
    network.load_state_dict({**network.state_dict(), **statistics})
