"""What a report shows of the models' answers: counts, confusions, calibration, images; and odd files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_report_pages import Page, assert_harmless
from tools import example_runs

from fedscal.core.convert import dump
from fedscal.experiment.answers import Answers, Bins, DomainAnswers, Example, Labelled, Point
from fedscal.experiment.load import load_run
from fedscal.report import write_report
from fedscal.report.answer_charts import (
    class_charts,
    class_table,
    domain_table,
    feature_chart,
    mistake_table,
)
from fedscal.report.answered import ALL, choices, consistent
from fedscal.report.charts import Classes, Confusions, Recalls, Scatter

CATS, DOGS = "cat <b>", "dog"


def labelled(confusion: list[list[int]], sure: float, right: float, images: int) -> Labelled:
    bins = Bins(images=[0, images], confidence=[0.0, sure], right=[0.0, right])
    return Labelled(confusion=confusion, bins=bins, calibration_error=abs(sure - right))


NORTH = DomainAnswers(
    images=10,
    changed=3,
    predicted_before=[7, 3],
    predicted_after=[5, 5],
    before=labelled([[4, 1], [3, 2]], 0.9, 0.6, 10),
    after=labelled([[4, 1], [1, 4]], 0.9, 0.8, 10),
)
SOUTH = DomainAnswers(
    images=30,
    changed=0,
    predicted_before=[30, 0],
    predicted_after=[30, 0],
    before=labelled([[30, 0], [0, 0]], 1.0, 1.0, 30),
    after=labelled([[30, 0], [0, 0]], 1.0, 1.0, 30),
)
ANSWERS = Answers(
    classes=(CATS, DOGS),
    model_sha256=example_runs.MODEL_SHA256,
    round=2,
    domains={"north": NORTH, "south": SOUTH},
)


def bare(domain: DomainAnswers) -> DomainAnswers:
    return replace(domain, before=None, after=None)


def test_all_domains_together_are_the_sum_of_each() -> None:
    whole = choices(ANSWERS)[ALL]
    assert (whole.images, whole.changed, whole.predicted_after) == (40, 3, [35, 5])
    assert whole.after is not None
    assert whole.after.confusion == [[34, 1], [1, 4]]
    # The full bin: 10 answers, 0.9 sure and 0.8 right, and 30 that are 1 and 1: 39 / 40 and 38 / 40.
    assert whole.after.bins.images == [0, 40]
    assert whole.after.bins.confidence == pytest.approx([0.0, 0.975])
    assert whole.after.bins.right == pytest.approx([0.0, 0.95])
    assert whole.after.calibration_error == pytest.approx(0.025)


def test_one_domain_is_the_only_choice() -> None:
    assert list(choices(replace(ANSWERS, domains={"north": NORTH}))) == ["north"]


def test_with_labels_every_chart_has_its_numbers() -> None:
    counted, recall, matrix = (one.chart for one in class_charts(ANSWERS))
    assert isinstance(counted, Classes)
    assert isinstance(recall, Recalls)
    assert isinstance(matrix, Confusions)
    assert list(counted.choices) == [ALL, "north", "south"]
    assert (counted.choices["north"].before, counted.choices["north"].true) == ([7, 3], [5, 5])
    assert (recall.choices["north"].before, recall.choices["north"].after) == ([4, 2], [4, 4])
    assert matrix.choices["north"].before == [[4, 1], [3, 2]]


def test_without_labels_only_the_answers_are_counted() -> None:
    unlabelled = replace(ANSWERS, domains={"north": bare(NORTH)})
    (counted,) = class_charts(unlabelled)
    assert counted.name == "classes"
    assert mistake_table(unlabelled) is None
    assert domain_table(unlabelled).rows == [["north", "10", "3", "30.0"]]
    assert class_table(unlabelled).header == ["class", "answered before", "answered after"]


def test_tables_of_answers() -> None:
    assert domain_table(ANSWERS).rows == [
        ["north", "10", "3", "30.0", "30.0", "10.0"],
        ["south", "30", "0", "0.0", "0.0", "0.0"],
        [ALL, "40", "3", "7.5", "7.5", "2.5"],
    ]
    assert class_table(ANSWERS).rows == [
        [CATS, "37", "35", "35", "97.1 %", "97.1 %", "0.0"],
        [DOGS, "3", "5", "5", "40.0 %", "80.0 %", "+40.0"],
    ]
    found = mistake_table(ANSWERS)
    assert found is not None
    assert found.rows == [[f"{CATS} → {DOGS}", "1", "1"], [f"{DOGS} → {CATS}", "3", "1"]]


def test_a_matrix_that_nobody_could_read_is_left_out() -> None:
    size = 41
    table = [[1] * size for _ in range(size)]
    many = replace(
        NORTH,
        predicted_before=[size] * size,
        predicted_after=[size] * size,
        before=labelled(table, 0.9, 0.6, 10),
        after=labelled(table, 0.9, 0.6, 10),
    )
    answers = replace(ANSWERS, classes=tuple(map(str, range(size))), domains={"north": many})
    assert consistent(answers)
    assert [one.name for one in class_charts(answers)] == ["classes", "recall"]


def test_many_points_are_thinned_out_and_labels_are_kept() -> None:
    points = [
        Point(domain="north", before=(place, 0.0), after=(0.0, place), answer=0, label=place % 2)
        for place in range(5_000)
    ]
    (exhibit,) = feature_chart(replace(ANSWERS, points=points, projection="t-SNE"))
    assert isinstance(exhibit.chart, Scatter)
    assert len(exhibit.chart.before) == len(exhibit.chart.label) == 1667
    assert exhibit.views == ("domain", "answer", "label")
    assert "by t-SNE" in exhibit.caption


@pytest.mark.parametrize(
    "odd",
    [
        replace(ANSWERS, classes=(CATS,)),
        replace(ANSWERS, classes=()),
        replace(ANSWERS, domains={}),
        replace(ANSWERS, domains={"north": replace(NORTH, predicted_after=[1])}),
        replace(ANSWERS, domains={"north": replace(NORTH, after=labelled([[1, 2]], 0.9, 0.9, 3))}),
        replace(ANSWERS, points=[Point(domain="north", before=(0, 0), after=(0, 0), answer=2)]),
    ],
)
def test_answers_that_contradict_themselves_are_said_and_left_out(tmp_path: Path, odd: Answers) -> None:
    run = example_runs.write(tmp_path / "run", replace(example_runs.HEALTHY, rounds=1, answers=False))
    (run / "answers.json").write_text(json.dumps(dump(odd)))
    assert not consistent(odd)
    page = write_report(run).read_text()
    assert "answers.json contradicts itself and was left out." in page
    assert 'data-chart="classes"' not in page


def test_examples_are_pictures_with_answers_or_the_command_that_adds_them(tmp_path: Path) -> None:
    run = example_runs.write(tmp_path / "run", replace(example_runs.HEALTHY, rounds=1, answers=False))
    png = example_runs.thumbnail("4", np.random.default_rng(0))
    shown = Example(
        kind="changed",
        domain="north",
        client="<c>",
        name="a.png",
        before=CATS,
        after=DOGS,
        confidence=0.5,
        png=png,
    )
    found = replace(ANSWERS, examples=[shown, replace(shown, png='x" onerror="alert(1)')])
    (run / "answers.json").write_text(json.dumps(dump(found)))
    text = write_report(run).read_text()
    page = assert_harmless(text)
    assert page.tags.count("img") == 1
    assert "<s>cat &lt;b&gt;</s> → <strong>dog</strong>" in text
    assert "Answers that changed" in text
    assert "--images</code>" not in text
    (run / "answers.json").write_text(json.dumps(dump(ANSWERS)))
    assert f"<code>fedscal report {run} --images</code>" in write_report(run).read_text()


@pytest.mark.parametrize("name", ["HEALTHY", "COLLAPSED"])
def test_what_is_seen_first(tmp_path: Path, name: str) -> None:
    story = replace(getattr(example_runs, name), rounds=6, thumbnails=1)
    text = write_report(example_runs.write(tmp_path / "run", story)).read_text()
    word, tile, line = {
        "HEALTHY": ("Better", "Clients that lost", '<tr role="row" class="better">'),
        "COLLAPSED": ("Do not use", "Clients that collapsed", "COLLAPSED"),
    }[name]
    assert f"</span> {word}</p>" in text
    assert f"<dt>{tile}</dt>" in text
    assert line in text
    assert text.index('class="badge"') < text.index('class="tracks"') < text.index('class="card next"')


def test_two_hundred_sites_are_one_shape_and_a_table(tmp_path: Path) -> None:
    run = example_runs.write(tmp_path / "run", replace(example_runs.MANY, rounds=1))
    text = write_report(run).read_text()
    page = Page(text)
    assert sum(page.charts["client-strip"]["counts"]) == 200
    assert "194 more: who lost and who gained most is in the" in text
    assert "180 more clients in <code>metrics.jsonl</code>" in text
    assert text.count('<tr role="row" class="worse">') == 6
    assert list(page.charts["classes"]["choices"]) == [ALL]
    assert len(load_run(run).clients) == 200
