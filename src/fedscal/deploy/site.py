"""A model at a site: with the statistics that its run kept for the site, or those of the images at hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import cycle
from pathlib import Path

import torch
from torch import Tensor, nn

from fedscal.core.errors import UsageError, nearest
from fedscal.core.rng import stream
from fedscal.core.types import Images, Weights
from fedscal.data.folders.decode import Unreadable
from fedscal.deploy.classifier import Classifier, PixelsToLogits
from fedscal.deploy.predict import as_model_sees
from fedscal.experiment.metrics import COMPARABLE
from fedscal.experiment.run_directory import SITES
from fedscal.models.network import Network
from fedscal.models.statistics import SiteStatistics, predict_at_site, unlikeness
from fedscal.models.steadiness import VIEWS, Answers, chosen_share, steady_answers, with_share
from fedscal.models.store import load_model, read_card

_BATCH = 64
_LOOKED_AT = 256
_STRONG = 4
"""Strong views of each image; a share of the source model is decided by some of them."""
ENOUGH = 30
"""Images that are enough for statistics of their own."""


class _Pictures:
    """Image files as a model sees them, decoded when used; a file that is no image is left out when met."""

    def __init__(self, paths: Sequence[Path], decode: Callable[[Path], Tensor]) -> None:
        self._paths, self._decode = list(paths), decode

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.stack([self._decode(self._paths[row]) for row in rows.tolist()])

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield the images in batches."""
        for paths in [self._paths[start : start + size] for start in range(0, len(self), size)]:
            if batch := [pixels for path in paths if (pixels := self._decoded(path)) is not None]:
                yield torch.stack(batch)

    def _decoded(self, path: Path) -> Tensor | None:
        try:
            return self._decode(path)
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
    source = _source_beside(classifier)
    pictures, some = _pictures(classifier, paths, keep_some=source is not None)
    images, view = _images(classifier.module, pictures)
    statistics = _statistics(classifier, prior, images, view)
    share = _use_share(classifier, source, some, prior) if source else 0.0
    statistics.apply(classifier.module.network, images, view)
    kept = f" and {share:.0%} of the source model" if share else ""
    return f"with the statistics of these {len(paths)} images{kept}"


def _statistics(
    classifier: Classifier, prior: float, images: Images, view: Callable[[Tensor], Tensor]
) -> SiteStatistics:
    """Return how statistics of images are taken, for a model that is left as it was loaded."""
    statistics, assumed = SiteStatistics(prior), classifier.card.class_shares
    if not assumed:
        return statistics
    network, shares = classifier.module.network, torch.tensor(assumed)
    statistics = statistics.knowing_classes(network, classifier.weights, images, view, shares)
    _use(classifier, {})
    return statistics


def _source_beside(classifier: Classifier) -> Weights | None:
    """Return the source model if it may have a share in a model.

    Only a run directory has it; a model that was exported without a site is used as it is.
    """
    if not classifier.card.site_share or not (classifier.path.parent / "source.safetensors").exists():
        return None
    return load_model(classifier.path.parent, "source")[0]


def _use_share(classifier: Classifier, source: Weights, some: Images, prior: float) -> float:
    """Mix the source model into a model as a site of its run would; return its share."""
    network, most = classifier.module.network, classifier.card.site_share
    assert most, "the source model was asked for because it may have a share"
    kept = _strong_views(classifier.module, some)
    statistics = _statistics(classifier, prior, kept, _as_they_are)  # rows are those of these images
    before, after = (_answers(network, model, kept, statistics) for model in (source, classifier.weights))
    share = chosen_share(before, after, most)
    _use(classifier, with_share(source, classifier.weights, share))
    return share


def _answers(network: Network, model: Weights, kept: Tensor, statistics: SiteStatistics) -> Answers:
    """Return a model's answers to images and their strong views (n, 1 + views, ...)."""
    prediction = predict_at_site(network, model, kept, _as_they_are, statistics)
    turns = cycle(range(1, kept.shape[1]))  # so few images are one batch: each pass takes the next view
    return steady_answers(network, kept, lambda batch: batch[:, next(turns)], prediction)


def _as_they_are(kept: Tensor) -> Tensor:
    return kept[:, 0]


def _strong_views(module: PixelsToLogits, some: Images) -> Tensor:
    """Return what the network sees of images (n, 1 + views, ...): as they are, then strong views of them."""
    batches, draw, choice = list(some.split(_BATCH)), stream(0, "strong-views"), stream(0, "steadiness")
    sizes, made = [len(batch) for batch in batches], []
    chosen = torch.stack([torch.randint(_STRONG, (sum(sizes),), generator=choice) for _ in range(VIEWS)])
    with torch.no_grad():
        for batch, numbers in zip(batches, torch.split(chosen, sizes, dim=1), strict=True):
            pixels = batch.to(module.network.device)
            drawn = torch.stack([module.views.strong(pixels, draw) for _ in range(_STRONG)])
            strong = drawn[numbers, torch.arange(len(pixels))]  # a trunk takes longer than drawing them
            made.append(torch.stack([module.network_sees(pixels), *map(module.trunk, strong)], dim=1).cpu())
    return torch.cat(made)


def doubt_images(classifier: Classifier, paths: Sequence[Path] | Tensor) -> str:
    """Return a warning if files or pixels are unlike what a model knows; some of many are looked at."""
    if len(paths) < COMPARABLE:
        return ""
    module = classifier.module
    _, some = _pictures(classifier, paths)
    far = unlikeness(module.network, some, module.network_sees)
    if not far > 1:  # no number if none of them is an image
        return ""
    return (
        f"these images are unlike those that the model was trained on ({far:.1f} times as far as is usual at "
        "most): check some answers"
    )


def _pictures(
    classifier: Classifier, paths: Sequence[Path] | Tensor, keep_some: bool = False
) -> tuple[Images, Images]:
    """Return images, and some of them, evenly, if they are many.

    Args:
        classifier: the model that sees them.
        paths: files, or pixels.
        keep_some: keep what is decoded of the latter, for a second look.
    """
    step = math.ceil(len(paths) / _LOOKED_AT)
    if isinstance(paths, Tensor):
        return paths, paths[::step]
    some = paths[::step]
    decode = partial(as_model_sees, classifier=classifier)
    decode_some, known = cache(decode) if keep_some else decode, frozenset(some)
    all_of_them = _Pictures(paths, lambda path: (decode_some if path in known else decode)(path))
    return all_of_them, _Pictures(some, decode_some)


def _images(module: PixelsToLogits, pictures: Images) -> tuple[Images, Callable[[Tensor], Tensor]]:
    """Return the images, and how the network sees them; what a frozen trunk makes of them is made once."""
    if isinstance(module.trunk, nn.Identity):
        return pictures, module.network_sees
    device = module.network.device
    with torch.no_grad():
        made = [module.network_sees(batch.to(device)).cpu() for batch in pictures.split(_BATCH)]
    return torch.cat(made), lambda kept: kept


def _use(classifier: Classifier, tensors: Weights) -> None:
    """Put a site's tensors in the place of those that the model was loaded with."""
    classifier.module.network.load_state_dict({**classifier.weights, **tensors})
