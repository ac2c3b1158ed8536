"""Invented runs, for the tests of the pages and for screenshots: nothing was trained for these numbers.

A page must be seen with what real runs show by luck only: a collapse, sure mistakes, two hundred sites.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedscal.core.convert import dump
from fedscal.experiment.answers import ANSWERS, Answers, Bins, DomainAnswers, Example, Labelled, Point
from fedscal.experiment.records import (
    Accuracies,
    ClientModels,
    ClientRecord,
    Delivery,
    RoundRecord,
    RoundScores,
    RunSummary,
    Scores,
    Seconds,
    Traffic,
    by_domain,
)
from fedscal.experiment.spec import RunSpec

DIGITS = tuple("0123456789")
MODEL_SHA256 = "4f" * 32
_ALIKE = {0: 6, 1: 7, 2: 7, 3: 8, 4: 9, 5: 3, 6: 0, 7: 1, 8: 3, 9: 4}
"""What a digit is most often taken for."""
_IMAGES = 60
"""Of each class in a domain."""
_BINS = 10


@dataclass(frozen=True, kw_only=True)
class Story:
    """What happens in an invented run.

    Attributes:
        domains: accuracy in percent before and after, by domain.
        clients: of each domain; a single one has the domain's name, as a site's folder has.
        fallen: clients whose predictions collapse.
        thumbnails: examples of each kind.
    """

    domains: Mapping[str, tuple[float, float]]
    clients: int = 5
    rounds: int = 12
    method: str = "fedscal"
    source: str = "mnist"
    seed: int = 0
    labelled: bool = True
    fallen: Sequence[str] = ()
    delivery: Delivery | None = None
    answers: bool = True
    thumbnails: int = 8
    spec: tuple[str, ...] = ()

    def names(self, domain: str) -> list[str]:
        """Return a domain's clients."""
        return [domain] if self.clients == 1 else [f"{domain}-{place}" for place in range(self.clients)]


HEALTHY = Story(domains={"font": (62.4, 91.8), "optdigits": (78.9, 96.1)})
UNLABELLED = Story(
    domains={"north": (60, 85), "east wing": (70, 88), "harbour": (65, 80)},
    clients=1,
    method="fedsite",
    source="",
    labelled=False,
    delivery=Delivery(12, "better"),
    spec=("clients=/data/sites", "source_model=/data/model"),
)
COLLAPSED = replace(
    UNLABELLED,
    domains={"north": (60, 30), "east wing": (70, 75), "harbour": (65, 12)},
    fallen=("harbour",),
    delivery=Delivery(
        3,
        "do not use",
        ["the last round collapsed to few classes at harbour", "answers changed for 61 % of the images"],
        ["harbour"],
    ),
)
MANY = Story(
    domains={f"site {place:03d}": (60 + place % 23, 64 + (7 * place) % 31) for place in range(200)},
    clients=1,
    thumbnails=0,
)
METHODS = {
    "source-only": 0.0, "loa": 8.0, "fedloa": 6.2, "fedprox": 6.0, "fedmoon": 7.1,
    "fedwca": 9.4, "ladd": 3.0, "dualadapt": 8.8, "fedscal": 11.5, "fedsite": 10.9,
}  # fmt: skip
"""Invented gains in points, for a comparison of ten methods."""


def write(path: Path, story: Story) -> Path:
    """Write an invented run directory."""
    draws = np.random.default_rng(story.seed)
    lines = [_round(story, at, draws) for at in range(story.rounds + 1)]
    path.mkdir(parents=True, exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(dump(line)) + "\n" for line in lines))
    (path / "summary.json").write_text(json.dumps(dump(_summary(story, lines))))
    (path / "spec.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in _spec(story)))
    (path / "environment.json").write_text(
        json.dumps({"python": "3.11.9", "cores": 2, "data_sha256": "ab" * 32, "spec_sha256": "cd" * 32})
    )
    if story.answers:
        (path / ANSWERS).write_text(json.dumps(dump(answers(story, draws))))
    return path


def write_methods(folder: Path, seeds: int = 3) -> list[Path]:
    """Write the runs of a comparison of ten methods, in two sources and some seeds."""
    runs = []
    for source, others in {"mnist": ("font", "optdigits"), "font": ("mnist", "optdigits")}.items():
        for method, gain in METHODS.items():
            for seed in range(seeds):
                ends = {
                    name: (70.0 + 2 * seed, 70.0 + gain + 3 * seed - place)
                    for place, name in enumerate(others)
                }
                rounds = 0 if method == "source-only" else 8
                story = Story(
                    domains=ends,
                    source=source,
                    method=method,
                    seed=seed,
                    clients=2,
                    rounds=rounds,
                    answers=False,
                )
                runs.append(write(folder / f"{source}-{method}-{seed}", story))
    return runs


def _spec(story: Story) -> list[tuple[str, Any]]:
    own = [f"method={story.method}", f"rounds={max(story.rounds, 1)}", f"seed={story.seed}"]
    if not story.source:
        return [tuple(word.split("=", 1)) for word in (*story.spec, *own)]  # type: ignore[misc]
    known = RunSpec.make(benchmark="digits", source=story.source, method=story.method, seed=story.seed)
    return list({**known.flat(), "rounds": story.rounds or 8}.items())


def _round(story: Story, at: int, draws: np.random.Generator) -> RoundRecord:
    """Return a round on the way from the first accuracies to the last, fast at first."""
    done = 1 - math.exp(-3 * at / max(story.rounds, 1))
    done /= 1 - math.exp(-3)
    clients: dict[str, ClientRecord] = {}
    for domain, (first, last) in story.domains.items():
        for name in story.names(domain):
            score = min(99.5, first + (last - first) * done + float(draws.normal(0, 1.2)))
            clients[name] = _client(story, name, domain, score, at, done, draws)
    domains = {name: record.domain for name, record in clients.items()}
    taking_part = [name for name in clients if at and draws.random() < 0.6] or (
        list(clients)[:1] if at else []
    )

    def mean(field: str, names: Sequence[str]) -> Scores:
        known = {name: getattr(clients[name], field) for name in names}
        return by_domain({k: v for k, v in known.items() if math.isfinite(v)}, domains)

    signals = {
        name: float(np.mean([one.signals[name] for one in clients.values()]))
        for name in ("entropy", "infomax", "snd")
    }
    fallen = at >= story.rounds // 2 and story.fallen
    return RoundRecord(
        round=at,
        participants=taking_part,
        accuracy=RoundScores(mean("accuracy", list(clients)), mean("local_accuracy", taking_part)),
        pseudo_label_accuracy=mean("pseudo_label_accuracy", list(clients)),
        signals=signals,
        clients={
            name: one
            if name in taking_part
            else replace(one, drift=math.nan, epochs=None, local_accuracy=math.nan)
            for name, one in clients.items()
        },
        warnings=[f"round {at}: predictions collapse to few classes for {', '.join(story.fallen)}"]
        if fallen
        else [],
        failures={},
        seconds=Seconds(adapt=3 + float(draws.random()), evaluate=0.6),
        bytes=Traffic(310_000.0 * len(taking_part), 310_000.0 * len(taking_part)),
        selected_round=max(0, at - 1),
    )


def _client(
    story: Story, name: str, domain: str, score: float, at: int, done: float, draws: np.random.Generator
) -> ClientRecord:
    fallen = name in story.fallen
    sure = 1.2 - 0.8 * done
    gamma = float(draws.normal(0.02, 0.05))
    epoch = {
        "alignment.tau": 0.8 + gamma,
        "alignment.gamma": gamma,
        "alignment.share_local": min(1.0, 0.4 + 0.5 * done),
        "alignment.share_server": min(1.0, 0.35 + 0.5 * done),
    }
    known = math.nan if not story.labelled else score
    return ClientRecord(
        domain=domain,
        accuracy=known,
        pseudo_label_accuracy=known + 2 if story.labelled else math.nan,
        images=120,
        signals={"entropy": sure, "infomax": 2.2 - sure, "snd": 3 + done},
        effective_classes=max(1.4, 9.6 - 8 * done) if fallen else 9.6 - float(draws.random()) * 0.5,
        agreement=math.nan if story.labelled else max(0.3 if fallen else 0.72, 1 - 0.5 * done),
        drift=0.4 + float(draws.random()) * 0.2,
        epochs=[epoch, epoch] if story.method in {"fedscal", "fedsite"} else [{}],
        local_accuracy=known + 1 if story.labelled else math.nan,
    )


def _summary(story: Story, lines: Sequence[RoundRecord]) -> RunSummary:
    tables = [line.accuracy.server for line in lines]
    best = max(range(len(tables)), key=lambda at: tables[at].average) if story.labelled else None
    chosen = max(0, story.rounds - 1)
    scored = Accuracies(tables[0], tables[-1], tables[chosen], tables[best or 0])
    return RunSummary(
        benchmark="digits" if story.source else "/data/sites",
        source=story.source,
        method=story.method,
        adaptation="ucon"
        if story.method == "fedsite"
        else "self-training"
        if story.method == "ladd"
        else "shot",
        seed=story.seed,
        rounds=story.rounds,
        accuracy=scored if story.labelled else Accuracies(),
        client_models=ClientModels(tables[-1]) if story.labelled else ClientModels(),
        selected_round=chosen,
        best_round=best,
        seconds=Seconds(pretrain=98, adapt=41, evaluate=7),
        weights_sha256=MODEL_SHA256,
        delivery=story.delivery,
        warnings=[text for line in lines for text in line.warnings],
        source_accuracy=98.8,
        spec_sha256="cd" * 32,
        version="0.1.0",
    )


# Answers


def answers(story: Story, draws: np.random.Generator) -> Answers:
    """Return what the models of the story would answer."""
    domains = {}
    for name, (first, last) in story.domains.items():
        fallen = any(client in story.fallen for client in story.names(name))
        before = _confusion(first, False, draws)
        after = _confusion(last, fallen, draws)
        labels = {
            "before": _labelled(before, first, 0.12, draws),
            "after": _labelled(after, last, 0.05, draws),
        }
        domains[name] = DomainAnswers(
            images=int(before.sum()),
            changed=int(before.sum() * abs(last - first) / 90),
            predicted_before=before.sum(0).tolist(),
            predicted_after=after.sum(0).tolist(),
            **(labels if story.labelled else {}),
        )
    few = list(story.domains)[:6]
    return Answers(
        classes=DIGITS,
        model_sha256=MODEL_SHA256,
        round=story.delivery.round if story.delivery else story.rounds,
        domains=domains,
        projection="t-SNE",
        points=[_point(story, few[place % len(few)], draws) for place in range(420)],
        examples=_examples(story, draws),
    )


def _confusion(
    accuracy: float, fallen: bool, draws: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.int64]]:
    table = np.zeros((10, 10), dtype=np.int64)
    for true in range(10):
        right = float(np.clip(accuracy / 100 + draws.normal(0, 0.06), 0.02, 0.99))
        shares = np.full(10, (1 - right) * 0.45 / 8)
        shares[_ALIKE[true]], shares[true] = (1 - right) * 0.55, right
        if fallen:
            shares = np.full(10, 0.01)
            shares[[1, 7]] = 0.6, 0.32
        table[true] = draws.multinomial(_IMAGES, shares / shares.sum())
    return table


def _labelled(
    table: np.ndarray[Any, np.dtype[np.int64]], accuracy: float, gap: float, draws: np.random.Generator
) -> Labelled:
    """Return labels' word on a confusion: the model is surer than right by about the gap."""
    centres = (np.arange(_BINS) + 0.5) / _BINS
    weight = np.exp(4 * centres * accuracy / 100)
    images = np.floor(table.sum() * weight / weight.sum()).astype(int)
    right = np.clip(centres - gap * (0.4 + centres) + draws.normal(0, 0.02, _BINS), 0, 1)
    error = float((images * abs(right - centres)).sum() / images.sum())
    bins = Bins(images=images.tolist(), confidence=centres.tolist(), right=right.tolist())
    return Labelled(confusion=table.tolist(), bins=bins, calibration_error=error)


def _point(story: Story, domain: str, draws: np.random.Generator) -> Point:
    """Return a point: the domains lie apart before, the classes after."""
    label = int(draws.integers(10))
    _, last = story.domains[domain]
    angle, place = 2 * math.pi * label / 10, list(story.domains).index(domain)
    hub = np.array([math.cos(angle), math.sin(angle)])
    before = 6 * hub + np.array([9.0 * (place % 3) - 5, 5.0 * (place % 2)]) + draws.normal(0, 2.2, 2)
    after = 14 * hub + draws.normal(0, 1.6, 2) + place
    right = draws.random() < last / 100
    return Point(
        domain=domain,
        before=(float(before[0]), float(before[1])),
        after=(float(after[0]), float(after[1])),
        answer=label if right else _ALIKE[label],
        label=label if story.labelled else None,
    )


def _examples(story: Story, draws: np.random.Generator) -> list[Example]:
    kinds: tuple[Literal["changed", "mistake", "doubtful"], ...] = ("changed", "mistake", "doubtful")
    return [
        _example(story, kind, place, draws)
        for kind in kinds
        if story.labelled or kind != "mistake"
        for place in range(story.thumbnails)
    ]


def _example(
    story: Story, kind: Literal["changed", "mistake", "doubtful"], place: int, draws: np.random.Generator
) -> Example:
    label = int(draws.integers(10))
    domain = list(story.domains)[place % len(story.domains)]
    other = DIGITS[_ALIKE[label]]
    wrong = kind == "mistake" or (kind == "doubtful" and place % 2 == 0)
    low, high = (0.32, 0.48) if kind == "doubtful" else (0.86, 0.99)
    return Example(
        kind=kind,
        domain=domain,
        client=story.names(domain)[place % story.clients],
        name=f"{domain}/{1000 + 37 * place}.png",
        before=other if kind == "changed" else DIGITS[label],
        after=other if wrong else DIGITS[label],
        confidence=float(draws.uniform(low, high)),
        label=DIGITS[label] if story.labelled else None,
        png=thumbnail(DIGITS[label], draws),
    )


def thumbnail(text: str, draws: np.random.Generator) -> str:
    """Return a small picture of a sign, tilted and grainy, as base64."""
    picture = Image.new("L", (32, 32), 0)
    font = ImageFont.load_default(size=26)
    ImageDraw.Draw(picture).text((16, 16), text, fill=255, font=font, anchor="mm")
    picture = picture.rotate(float(draws.normal(0, 14)), resample=Image.Resampling.BILINEAR)
    grainy = np.asarray(picture, dtype=np.float64) * draws.uniform(0.6, 1.0) + draws.normal(20, 12, (32, 32))
    file = io.BytesIO()
    Image.fromarray(grainy.clip(0, 255).astype(np.uint8)).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
