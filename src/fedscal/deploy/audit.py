"""Ask models about a few labelled images of the sites, which are never used for training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from fedscal.compare.audit_verdict import site_audit, verdict_on
from fedscal.core import files
from fedscal.core.errors import DataRefused, nearest
from fedscal.data.folders.decoded import known_hashes
from fedscal.data.folders.scan import scan
from fedscal.data.folders.tree import File, Tree, as_one_domain
from fedscal.data.tensors import PREFIX as TENSORS
from fedscal.deploy.classifier import Classifier
from fedscal.deploy.predict import ask
from fedscal.deploy.site import sites_of, use_images, use_site
from fedscal.experiment.audits import ALL, Audit, Seen
from fedscal.experiment.load import Run

_KEY = 16
"""Hexadecimal digits that tell the images of an audit apart."""


@dataclass(frozen=True)
class Trained:
    """The sha256 of the files that a run had: the sites', and the source's unless its model was given."""

    sites: Collection[str]
    source: Collection[str] | None


def trained_files(run: Run | None) -> Trained | str:
    """Return what files a run had, or in words why that cannot be known.

    The hashes were made when the images were decoded, and are in the cache beside the pixels. They are not
    kept in the run directory: whoever is given it could tell which images a site holds.
    """
    if run is None:
        return "the model is not part of a run"
    if run.fact("benchmark").startswith(TENSORS):
        return "the run had tensors, not files"
    keys = run.environment.images if run.environment else {}
    if not keys:
        return "the run has no folder of images on this machine"
    found = {domain: known_hashes(key) for domain, key in keys.items()}
    hashes = {domain: known for domain, known in found.items() if known is not None}
    if len(hashes) < len(found):
        return "the run's decoded images are no longer in the cache of this machine"
    source = hashes.pop(run.fact("source"), None)
    return Trained(frozenset(chain.from_iterable(hashes.values())), source)


def audit(
    adapted: Classifier, source: Classifier | None, folder: Path, trained: Trained | str = "nobody looked"
) -> Audit:
    """Ask the models about ``folder/<site>/<class>/*`` or ``folder/<class>/*``; then a row for all sites."""
    answers: dict[str, tuple[list[bool], list[bool]]] = {}
    labelled = _labelled(scan(folder), adapted.classes)
    for site, images in labelled.items():
        before = list(_right(source, images)) if source else []
        answers[site] = list(_right(_at(adapted, site, images), images)), before
    hashes = {site: [files.sha256_of(file.path) for file in images] for site, images in labelled.items()}
    sites = [site_audit(site, after, before) for site, (after, before) in _with_all(answers).items()]
    verdict, sentence = verdict_on(sites)
    return Audit(
        model_sha256=adapted.card.weights_sha256,
        sites=sites,
        model=adapted.path.name,
        verdict=verdict,
        sentence=sentence,
        seen=_seen(list(chain.from_iterable(hashes.values())), trained),
        answers={
            site: dict(zip(map(_key, hashes[site], images), answers[site][0], strict=True))
            for site, images in labelled.items()
        },
    )


def _with_all(
    answers: Mapping[str, tuple[list[bool], list[bool]]],
) -> Mapping[str, tuple[list[bool], list[bool]]]:
    """Add the answers of all sites together, if there are several."""
    if len(answers) < 2:
        return answers
    after, before = (list(chain.from_iterable(parts)) for parts in zip(*answers.values(), strict=True))
    return {**answers, ALL: (after, before)}


def _key(sha256: str, file: File) -> str:
    """Return what two audits know an image again by: its bytes and the label that somebody gave it."""
    return files.sha256(f"{sha256} {file.label}".encode())[:_KEY]


def _seen(hashes: Sequence[str], trained: Trained | str) -> Seen:
    if isinstance(trained, str):
        return Seen(unknown=trained)
    return Seen(
        adapted_to=sum(sha in trained.sites for sha in hashes),
        source=None if trained.source is None else sum(sha in trained.source for sha in hashes),
    )


def _at(adapted: Classifier, site: str, labelled: Sequence[File]) -> Classifier:
    """Return the adapted model as it is used at a site."""
    if site in sites_of(adapted):
        use_site(adapted, site)
    else:
        use_images(adapted, [file.path for file in labelled])
    return adapted


def _labelled(tree: Tree, classes: Sequence[str]) -> Mapping[str, Sequence[File]]:
    """Return the files by site; folders that are named like classes are the classes of one site."""
    sites = as_one_domain(tree, tree.root.name).domains
    for name in sorted({file.label or "" for images in sites.values() for file in images}):
        if name not in classes:
            raise DataRefused(f"{tree.root}: '{name}' is no class of the model{nearest(name, classes)}")
    return sites


def _right(classifier: Classifier, files: Sequence[File]) -> Iterator[bool]:
    for file, answer in zip(files, ask(classifier, [file.path for file in files]), strict=True):
        if answer.problem:
            raise DataRefused(f"{file.path}: {answer.problem}. Remove it, or repair it.")
        yield answer.label == file.label
