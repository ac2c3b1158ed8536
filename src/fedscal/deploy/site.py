"""A model at a site: with the statistics that its run kept for the site, or those of the images at hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedscal.core import weights
from fedscal.core.errors import UsageError, nearest
from fedscal.core.rng import stream
from fedscal.core.types import Images, Weights
from fedscal.data.features import FeatureViews
from fedscal.data.folders.decode import Unreadable
from fedscal.deploy.classifier import Classifier, PixelsToLogits
from fedscal.deploy.predict import as_model_sees
from fedscal.experiment.metrics import COMPARABLE
from fedscal.experiment.run_directory import SITES
from fedscal.models.statistics import SiteStatistics, predict_at_site, unlikeness
from fedscal.models.steadiness import equal_share, kept_share, steady_odds
from fedscal.models.store import load_model, read_card

_BATCH = 64
_LOOKED_AT = 256
_STRONG = 4
"""Strong views of each image that a share of the source model is decided by."""
ENOUGH = 30
"""Images that are enough for statistics of their own."""


class _Pictures:
    """Image files as a model sees them, decoded when used; a file that is no image is left out when met."""

    def __init__(self, paths: Sequence[Path], classifier: Classifier) -> None:
        self._paths, self._classifier = list(paths), classifier

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.stack([as_model_sees(self._paths[row], self._classifier) for row in rows.tolist()])

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield the images in batches."""
        for paths in [self._paths[start : start + size] for start in range(0, len(self), size)]:
            if batch := [pixels for path in paths if (pixels := self._decoded(path)) is not None]:
                yield torch.stack(batch)

    def _decoded(self, path: Path) -> Tensor | None:
        try:
            return as_model_sees(path, self._classifier)
        except Unreadable:
            self._paths.remove(path)  # rows are those of the images that there are
            return None


def sites_of(classifier: Classifier) -> dict[str, Path]:
    """Return the sites whose statistics were kept for this model, with their files.

    Statistics of activations that training moves are of one round's model; those of a frozen trunk's features
    serve every round's. A site that keeps the source model has statistics for that one.
    """
    paths = sorted((classifier.path.parent / SITES).glob("*.safetensors"))
    if classifier.module.network.features_move:
        fitting = (classifier.card.round, 0)
        paths = [path for path in paths if read_card(str(path)).round in fitting]
    return {path.stem: path for path in paths}


def use_site(classifier: Classifier, site: str) -> str:
    """Give a model the statistics that were kept for a site; return what was done."""
    known = sites_of(classifier)
    if site not in known:
        raise UsageError(f"no statistics are kept for the site '{site}'{nearest(site, known)}")
    tensors, card = load_model(known[site].parent, site)
    if card.round != 0:
        _use(classifier, tensors)
        return f"with the statistics of site {site}"
    _use(classifier, {**load_model(classifier.path.parent, "source")[0], **tensors})
    return f"with the source model, which its run keeps for site {site}, and the site's statistics"


def use_images(classifier: Classifier, paths: Sequence[Path] | Tensor) -> str:
    """Give a model the statistics of image files or pixels if they are enough; return what was done."""
    prior = classifier.card.statistics_prior
    if prior is None:
        return ""
    _use(classifier, {})  # those of another site may be in use
    if len(paths) < ENOUGH:
        return (
            f"with the source's statistics: {len(paths)} images are too few for their own "
            f"({ENOUGH} are enough)"
        )
    network, statistics = classifier.module.network, SiteStatistics(prior)
    images, view = _images(classifier, paths)
    if classifier.card.class_shares:
        assumed = torch.tensor(classifier.card.class_shares)
        statistics = statistics.knowing_classes(network, classifier.weights, images, view, assumed)
    share = _use_share(classifier, _some(classifier, paths), statistics)
    statistics.apply(network, images, view)
    kept = f" and {share:.0%} of the source model" if share else ""
    return f"with the statistics of these {len(paths)} images{kept}"


def _use_share(classifier: Classifier, pictures: Images, statistics: SiteStatistics) -> float:
    """Mix the source model into a model as a site of its run would; return its share.

    Only a run directory has it; a model that was exported without a site is used as it is.
    """
    network, most = classifier.module.network, classifier.card.site_share
    _use(classifier, {})
    if not most or not (classifier.path.parent / "source.safetensors").exists():
        return 0.0
    source, _ = load_model(classifier.path.parent, "source")
    views, kept = FeatureViews(_STRONG), _strong_views(classifier.module, pictures)
    answers, odds = [], []
    for model in (source, classifier.weights):
        prediction = predict_at_site(network, model, kept, views.evaluate, statistics)
        strong = partial(views.strong, generator=stream(0, "steadiness"))
        answers.append(prediction.logits.argmax(dim=1))
        odds.append(steady_odds(network, kept, strong, prediction))
    before, after = odds
    share = kept_share(before, after, equal_share(*answers), most)
    _use(classifier, weights.mean([source, classifier.weights], [share, 1 - share]))
    return share


def _strong_views(module: PixelsToLogits, pictures: Images) -> Tensor:
    """Return what the network sees of images (n, 1 + views, ...): as they are, then strong views of them."""
    draw, made = stream(0, "strong-views"), []
    with torch.no_grad():
        for batch in pictures.split(_BATCH):
            pixels = batch.to(module.network.device)
            strong = [module.trunk(module.views.strong(pixels, draw)) for _ in range(_STRONG)]
            made.append(torch.stack([module.network_sees(pixels), *strong], dim=1).cpu())
    return torch.cat(made)


def doubt_images(classifier: Classifier, paths: Sequence[Path] | Tensor) -> str:
    """Return a warning if files or pixels are unlike what a model knows; some of many are looked at."""
    if len(paths) < COMPARABLE:
        return ""
    module = classifier.module
    far = unlikeness(module.network, _some(classifier, paths), module.network_sees)
    if not far > 1:  # no number if none of them is an image
        return ""
    return (
        f"these images are unlike those that the model was trained on ({far:.1f} times as far as is usual at "
        "most): check some answers"
    )


def _some(classifier: Classifier, paths: Sequence[Path] | Tensor) -> Images:
    """Return some of many images, evenly."""
    return _pictures(classifier, paths[:: math.ceil(len(paths) / _LOOKED_AT)])


def _pictures(classifier: Classifier, paths: Sequence[Path] | Tensor) -> Images:
    return paths if isinstance(paths, Tensor) else _Pictures(paths, classifier)


def _images(
    classifier: Classifier, paths: Sequence[Path] | Tensor
) -> tuple[Images, Callable[[Tensor], Tensor]]:
    """Return the images, and how the network sees them; what a frozen trunk makes of them is made once."""
    module, pictures = classifier.module, _pictures(classifier, paths)
    if isinstance(module.trunk, nn.Identity):
        return pictures, module.network_sees
    device = module.network.device
    with torch.no_grad():
        made = [module.network_sees(batch.to(device)).cpu() for batch in pictures.split(_BATCH)]
    return torch.cat(made), lambda kept: kept


def _use(classifier: Classifier, tensors: Weights) -> None:
    """Put a site's tensors in the place of those that the model was loaded with."""
    classifier.module.network.load_state_dict({**classifier.weights, **tensors})
