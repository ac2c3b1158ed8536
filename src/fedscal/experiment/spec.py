"""RunSpec: everything that decides a result, as flat, typed and checked keys.

Precedence: built-in < benchmark's defaults < recipe file < environment < command line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal

from fedscal.core.documents import read_toml
from fedscal.core.errors import UsageError, nearest, shown
from fedscal.core.files import sha256
from fedscal.core.options import Keys, Option, Value, option, options_of
from fedscal.core.user_code import PERMISSION, load_plugins
from fedscal.data.registry import BENCHMARKS, OWN_IMAGES, defaults_of, is_folder
from fedscal.data.remote import PREFIX as SITES
from fedscal.data.tensors import PREFIX as TENSORS
from fedscal.methods import ADAPTATIONS, hyperparameters, method, parts_of
from fedscal.models.registry import check_model, pretrained_is_installed
from fedscal.models.store import read_card
from fedscal.runtime.signals import SIGNALS

_ENV_PREFIX = "FEDSCAL_"
_ENV_OTHER = {"FEDSCAL_CACHE", "FEDSCAL_NPM_REGISTRY", PERMISSION}
EXECUTION_KEYS = frozenset({"workers"})
"""Keys that cannot move a bit of the result."""
RESUMABLE_KEYS = EXECUTION_KEYS | {"threads"}
"""Keys that a resumed run may be given anew: they move the last bits at most."""
_RETIRED = {
    "sure_share": "a key of version 0.2.0, which can go on with this run; now sites find out by themselves "
    "how much of the source model they keep (site_share)."
}
"""Keys of earlier versions, which did nothing at 0, and what has come in their place."""
_FROZEN_TRUNK = {"pretrain_dropout": 0.7}
"""Source training on features that never change learns them by heart, unless it misses most of them."""
DATA_KEYS = (
    *("benchmark", "classes", "image_size", "on_bad", "source_model"),
    *("model", "trunk", "feature_views", "thaw", "framing", "mirror", "crops", "device", "precision"),
)
"""Keys that decide which images, or features of them, are prepared."""


@dataclass(frozen=True)
class RunSpec:
    """One run. Build it with ``RunSpec.make``, which checks every value."""

    benchmark: str = option("digits", "data set: several domains with the same classes")
    source: str = option("", "domain that the source model is trained on; the others are the clients'")
    method: str = option("fedscal", "federated method, see `fedscal methods`")
    adaptation: str = option("", "local adaptation in the LoA slot; the method's own if not given")
    model: str = option(
        "convnet", "network: convnet, efficientnet-lite0, hf:<folder>, timm:<name>, package.module:factory"
    )
    trunk: Literal["trained", "frozen"] = option(
        "trained", "the backbone: trained and sent, or as it came, its features computed once", later=True
    )
    feature_views: int = option(
        2,
        "strong views of each image whose features are kept for a frozen trunk",
        low=1,
        high=100,
        later=True,
    )
    thaw: int = option(
        0,
        "last blocks of a frozen trunk that are trained and sent all the same; the rest stays as it came",
        low=0,
        high=10_000,
        later=True,
    )
    rounds: int = option(12, "communication rounds T", low=1, high=100_000)
    local_epochs: int = option(5, "local epochs E", low=1, high=10_000)
    participation: float = option(0.3, "share of the clients that take part in a round", above=0, high=1)
    least_participants: int = option(
        1, "clients that take part in a round at least, if there are so many", low=1, high=100_000, later=True
    )
    clients_per_domain: int = option(5, "clients that each target domain is cut into", low=1, high=100_000)
    class_skew: float = option(
        0.0,
        "cut domains so that clients' classes are unlike: Dirichlet(alpha) over them; 0: at random",
        low=0,
        high=1_000,
        later=True,
    )
    lr: float = option(0.03, "clients' learning rate in the first round", above=0, high=10)
    lr_schedule: Literal["cosine", "oscillating"] = option(
        "cosine", "rate over the rounds: a cosine towards 0, or the authors' code's, which rises again"
    )
    batch_size: int = option(64, "images in a client's batch", low=2, high=65_536)
    view_passes: Literal["auto", "separate", "joint"] = option(
        "auto", "weak and strong view in one forward pass; auto: only without BatchNorm"
    )
    label_view: Literal["evaluation", "weak"] = option(
        "evaluation", "view of the images that pseudo-labels and threshold are taken from"
    )
    statistics: Literal["shared", "site"] = option(
        "shared",
        "statistics of normalisation layers: averaged by the server, or each client's own, which stay there",
        later=True,
    )
    statistics_prior: float = option(
        0.0, "images that the model's statistics count as against a client's own", low=0, later=True
    )
    class_shares: Literal["equal", "site"] = option(
        "equal",
        "with statistics=site: classes occur alike at a client, or as it estimates from its own images",
        later=True,
    )
    site_share: float = option(
        0.0,
        "share of the source model in what answers at clients where learning made answers no steadier",
        low=0,
        high=1,
        later=True,
    )
    pretrain_epochs: int = option(50, "epochs of source training", low=1, high=10_000)
    pretrain_steps: int = option(
        0,
        "steps of source training at least: few images are seen in more epochs; 0: pretrain_epochs decides",
        low=0,
        high=10_000_000,
        later=True,
    )
    pretrain_lr: float = option(0.03, "learning rate of source training", above=0, high=10)
    pretrain_views: Literal["weak", "both"] = option(
        "weak", "views of source training: weak as in the paper, or half weak and half strong", later=True
    )
    pretrain_styles: Literal["source", "clients"] = option(
        "source",
        "styles of source training: the images' own, or drawn from clients, which tell theirs before it",
        later=True,
    )
    pretrain_dropout: float = option(
        0.0,
        "share of the backbone's features that source training leaves out at random",
        low=0,
        high=0.99,
        later=True,
    )
    select: str = option(
        "infomax",
        "choice of a round without labels: a signal, agreement with the source model, or the last",
        choices=(*SIGNALS, "agreement", "last"),
    )
    judge_clients: int = option(
        0,
        "clients that judge the server's model in a round, drawn anew; 0: all, as in the first and last one",
        low=0,
        high=100_000,
        later=True,
    )
    judge_every: int = option(
        1,
        "judge the model of every so manieth round; the last one always is",
        low=1,
        high=100_000,
        later=True,
    )
    judge_together: bool = option(
        False,
        "clients with few images judge a model in batches that they share: faster, other last bits",
        later=True,
    )
    source_model: str = option("", "a trained source model, file or folder; not given: trained on source")
    clients: str = option(
        "", "a folder of sites, each sub-folder the images of one client; or flower:<site>+<site>"
    )
    transport: Literal["fp32", "fp16", "bf16"] = option(
        "fp32", "how weights travel between the machines of a Flower federation", later=True
    )
    image_size: int = option(0, "side of the views; 0: 224 for a folder, as drawn for a benchmark", low=0)
    framing: Literal["paper", "whole"] = option(
        "paper",
        "a folder's images: their middle and small crops as in the paper, or the whole and large crops",
        later=True,
    )
    mirror: Literal["auto", "yes", "no"] = option(
        "auto", "mirror half of the training views; auto: a folder's images are, drawn digits not", later=True
    )
    crops: float = option(
        0.0,
        "least share of an image's area that a random crop keeps; 0: 0.08 or, with framing=whole, 0.6",
        low=0,
        high=1,
        later=True,
    )
    classes: str = option(
        "", "a folder's classes to keep: domainnet-10, or a file with one a line; all if empty", later=True
    )
    on_bad: Literal["error", "skip"] = option("error", "what to do with files that are no whole images")
    seed: int = option(0, "seed of every random stream", low=0, high=2**31 - 1)
    workers: int = option(
        0, "processes that train clients side by side; 0: as many as the cores allow", low=0, high=1024
    )
    threads: int = option(
        1, "threads of each process; results are equal bit for bit only for the same number", low=1, high=1024
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = option(
        "auto", "where networks compute; auto: the first of cuda, mps and cpu that is there"
    )
    precision: Literal["auto", "fp32", "bf16"] = option(
        "auto",
        "numbers that a backbone computes with; auto: bf16 on CUDA devices made for it, else fp32",
        later=True,
    )
    micro_batch: int = option(
        0,
        "images whose activations are held at once, for the same step in less memory; 0: all",
        low=0,
        later=True,
    )
    plugins: str = option(
        "",
        "modules of methods, data sets or backbones of your own, joined by +; needs --allow-code",
        later=True,
    )
    hyper: Mapping[str, Value] = field(default_factory=dict)
    """Hyper-parameters of the method's terms and rule that differ from their defaults."""

    @classmethod
    def make(cls, **given: object) -> RunSpec:
        """Build a checked spec from keys and typed or text values.

        >>> RunSpec.make(method="fedprox", mu="0.1").hyper
        {'mu': 0.1}
        """
        load_plugins(str(given.get("plugins", "")))
        given = _without_retired(given)
        known, own = all_options(), options_of(cls)
        for name in given:
            if name not in known:
                raise UsageError(f"unknown key '{shown(name)}'{nearest(name, known)}")
        given = {**_sites(given), **given}
        defaults = dict(defaults_of(str(given.get("benchmark", cls.benchmark))))
        chosen = method(str(given.get("method", defaults.get("method", cls.method))))
        defaults |= {**chosen.defaults, **_own_images({**defaults, **given}), **_from_card(given)}
        if {**defaults, **given}.get("trunk") == "frozen":
            defaults |= {**_FROZEN_TRUNK, **chosen.frozen_defaults}
        if "pretrain_epochs" in given:  # whoever asks for three epochs wants three, whatever the method
            defaults.pop("pretrain_steps", None)
        given = {**defaults, **given}
        load_plugins(str(given.get("plugins", "")))  # a model's card may name some, too
        given.setdefault("adaptation", method(str(given.get("method", cls.method))).adaptation)
        values = {name: known[name].parse(value) for name, value in given.items()}
        core = {name: values.pop(name) for name in list(values) if name in own}
        spec = cls(**core, hyper=dict(sorted(values.items())))  # type: ignore[arg-type]
        spec._check()
        return spec

    def _check(self) -> None:
        if self.clients and not self.source_model:
            raise UsageError("clients=DIR holds no source domain: give source_model=MODEL too.")
        if self.transport != "fp32" and not self.clients.startswith(SITES):
            raise UsageError(f"transport={self.transport}: on one machine nothing travels; leave it away.")
        if self.benchmark in BENCHMARKS:
            self.check_source(BENCHMARKS[self.benchmark].domains)
        method(self.method)
        check_model(self.model)
        if self.trunk == "frozen" and self.model == "convnet":
            raise UsageError(
                "trunk=frozen: model=convnet comes without weights, and knows nothing untrained."
            )
        if self.thaw and self.trunk != "frozen":
            raise UsageError(
                f"thaw={self.thaw}: trunk=trained trains every block already; thaw goes with trunk=frozen."
            )
        if self.trunk == "frozen" and method(self.method).profile:
            raise UsageError(
                f"trunk=frozen: {self.method} describes clients by their images, and features stand for them."
            )
        if self.trunk == "frozen" and self.pretrain_styles == "clients" and not self.source_model:
            raise UsageError("trunk=frozen: features have no style; leave pretrain_styles=clients away.")
        if self.adaptation not in ADAPTATIONS:
            raise UsageError(
                f"adaptation={shown(self.adaptation)}: no such adaptation"
                f"{nearest(self.adaptation, ADAPTATIONS)}"
            )

    def check_source(self, domains: Sequence[str]) -> None:
        """Refuse a source that is none of the data's domains; a given model needs no source."""
        if self.source not in domains and not (self.source_model and not self.source):
            raise UsageError(
                f"source={shown(self.source)}: no such domain in {shown(self.benchmark)}"
                f"{nearest(self.source, domains)}"
            )

    @property
    def trained_on(self) -> str:
        """The source domain, if the source model is trained in this run; empty if it is given."""
        return "" if self.source_model else self.source

    @property
    def estimates_shares(self) -> bool:
        """Whether clients estimate how often classes occur among their images."""
        return self.statistics == "site" and self.class_shares == "site"

    def flat(self) -> dict[str, Value]:
        """Return all keys of this run, its method's hyper-parameters with their values in force included."""
        core = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "hyper"}
        used = {
            name: self.hyper.get(name, declared.default)
            for part in parts_of(self.method, self.adaptation)
            for name, declared in options_of(part).items()
        }
        return core | used

    def all_keys(self) -> dict[str, Value]:
        """Return all keys of this run, those of parts that its method does not have included."""
        return {**self.flat(), **self.hyper}

    def digest(self) -> str:
        """Return a hash of everything that decides the result."""
        known = all_options()
        deciding = {
            name: value
            for name, value in self.flat().items()
            if name not in EXECUTION_KEYS and not (known[name].later and value == known[name].default)
        }
        return sha256(json.dumps(deciding, sort_keys=True).encode())

    def replace(self, **changes: object) -> RunSpec:
        """Return a copy with other values, checked."""
        core = {k: v for k, v in asdict(self).items() if k != "hyper"}
        return RunSpec.make(**{**core, **self.hyper, **changes})

    def to_toml(self) -> str:
        """Return the spec as a recipe that builds it again."""
        return dump_toml(self.all_keys())


def refuse_changes(names: Iterable[str]) -> None:
    """Refuse keys that would make another run of one that is resumed."""
    if refused := sorted(set(names) - RESUMABLE_KEYS):
        raise UsageError(
            f"{refused[0]} cannot change in a resumed run, only {', '.join(sorted(RESUMABLE_KEYS))}."
        )


def _without_retired(given: Keys) -> dict[str, object]:
    """Return the keys but those that earlier versions had; refuse one that did something."""
    for name in given.keys() & _RETIRED.keys():
        if Option(name, float, 0.0, _RETIRED[name]).parse(given[name]):
            raise UsageError(f"{name}={given[name]}: {_RETIRED[name]}")
    return {name: value for name, value in given.items() if name not in _RETIRED}


def _sites(given: Keys) -> dict[str, Value]:
    """Return the keys that a folder of sites implies."""
    sites = str(given.get("clients", ""))
    if not sites:
        return {}
    if not (sites.startswith((SITES, TENSORS)) or sites in BENCHMARKS or is_folder(sites)):
        raise UsageError(f"clients={shown(sites)}: there is no such folder.")
    return {"benchmark": sites, "clients_per_domain": 1}


def _own_images(given: Keys) -> dict[str, Value]:
    """Return the keys that suit somebody's own images, for the method that is made for them.

    A pretrained trunk where one is installed; without one, a small network that sees small images.
    """
    named, folder = given.get("method") == OWN_IMAGES, is_folder(str(given.get("benchmark", "")))
    if not (named and folder) or given.get("source_model"):  # a given model's card says all of this
        return {}
    keys: dict[str, Value] = {"framing": "whole"}
    if "model" in given:
        return keys
    if not pretrained_is_installed():
        return {**keys, "image_size": 64}
    return {**keys, "model": "efficientnet-lite0", "trunk": "frozen", "image_size": 160}


def _from_card(given: Keys) -> dict[str, Value]:
    """Return the keys that a given source model decides."""
    if not given.get("source_model"):
        return {}
    card = read_card(str(given["source_model"]))
    known: dict[str, Value] = {"model": card.model, "image_size": card.shape[1]}
    if str(given.get("thaw", card.thaw)) != str(card.thaw):
        raise UsageError(
            f"thaw={shown(given['thaw'])}: the given model has thaw={card.thaw}; leave the key away."
        )
    if card.trunk_sha256:
        known |= {"trunk": "frozen", "thaw": card.thaw}
    return {**known, "plugins": card.plugins} if card.plugins else known


def all_options() -> dict[str, Option]:
    """Return every key that a run knows: its own, and the hyper-parameters of all methods."""
    hyper = {name: declared[0][1] for name, declared in hyperparameters().items()}
    return {**hyper, **options_of(RunSpec)}


def dump_toml(values: Mapping[str, Value]) -> str:
    """Write flat keys as TOML; a JSON scalar is a TOML scalar, but for a character that JSON leaves bare."""
    lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())
    return "".join(lines).replace("\x7f", "\\u007f")


def read_recipe(path: Path) -> dict[str, object]:
    """Read a flat TOML file of keys."""
    try:
        return read_toml(path)
    except OSError as error:
        raise UsageError(f"cannot read the recipe {shown(path)}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{shown(path)} is not TOML: {error}") from error


def environment_keys(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the keys that are set as FEDSCAL_<KEY>."""
    return {
        name.removeprefix(_ENV_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(_ENV_PREFIX) and name not in _ENV_OTHER
    }


def parse_assignments(words: list[str]) -> dict[str, str]:
    """Split ``key=value`` words."""
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"'{shown(word)}' is not key=value")
        pairs[name.strip().replace("-", "_")] = value.strip()
    return pairs
