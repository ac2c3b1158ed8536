"""The paper's figures: what is drawn from numbers that are written by hand, and how it is saved."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fedscal.core.errors import UsageError
from fedscal.core.lazy import _Lazy
from fedscal.paper import tables
from fedscal.paper.result import FIGURES, Drawn, Result
from fedscal.paper.scores import Score
from fedscal.paper.tables import TABLES, TAU, figures_of, table

if TYPE_CHECKING:
    from fedscal.paper import drawing, figures
else:  # matplotlib and scikit-learn are for the process that draws, not for all that collect the tests
    drawing, figures = _Lazy("fedscal.paper.drawing"), _Lazy("fedscal.paper.figures")

SPREAD = np.random.default_rng(0).gamma(2.0, 0.3, 200)
TEXT = "{http://www.w3.org/2000/svg}text"


def skewed(client: str, skewness: float) -> figures.Skewed:
    return figures.Skewed(client, SPREAD, skewness)


def texts(svg: bytes) -> list[str]:
    return ["".join(element.itertext()).strip() for element in ET.fromstring(svg).iter(TEXT)]


def tried(values: Mapping[str, float], source: str = "Art") -> list[Score]:
    return [Score(TAU, row, source, "average", None, None, {"last": [v]}) for row, v in values.items()]


# ---- which there are


def test_the_papers_values_of_tau_init_are_tried() -> None:
    assert [variant.keys["tau_init"] for variant in TAU.variants] == [0.1, 0.4, 0.7, 0.8, 1, 1.1]


def test_every_figure_can_be_drawn_alone_and_all_together() -> None:
    assert figures_of("figures") == tuple(tables.FIGURES) == tuple(figures._DRAW)
    for name in tables.FIGURES:
        assert figures_of(name) == (name,)
        needed = {(block.name, variant.title) for block in table(name) for variant in block.variants}
        assert needed <= {(block.name, row.title) for block in TABLES["figures"] for row in block.variants}
    assert figures_of("office-home") == ()


def test_an_unknown_figure_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no table or figure of the paper; did you mean 'figure-tau'"):
        table("figure-tua")


# ---- densities


def test_a_density_has_all_of_its_mass_between_0_and_the_highest_entropy() -> None:
    highest = float(SPREAD.max())
    at = np.linspace(0, highest, 4001)
    assert np.trapezoid(figures.density(SPREAD, at, highest), at) == pytest.approx(1, abs=1e-3)


def test_far_from_the_ends_it_is_scipys_kernel_density() -> None:
    from scipy.stats import gaussian_kde

    values, at = SPREAD + 20.0, np.linspace(20.5, 21.5, 7)
    assert figures.density(values, at, 42.0) == pytest.approx(gaussian_kde(values)(at), rel=1e-9)


def test_equal_entropies_have_a_density_too() -> None:
    assert np.isfinite(figures.density(np.full(20, 0.5), np.linspace(0, 1, 9), 1.0)).all()


def test_the_clients_of_lowest_and_highest_skewness_are_shown() -> None:
    clients = [skewed("a", 0.2), skewed("b", -0.3), skewed("c", 0.5), skewed("d", -0.3)]
    pair = figures.extremes(clients)
    assert [one.client for one in pair] == ["b", "c"]
    assert figures.opposite(pair)
    assert not figures.opposite(figures.extremes([skewed("a", 0.2), skewed("b", 0.1)]))


def test_two_densities_are_filled_and_say_whose_they_are() -> None:
    from matplotlib.colors import to_hex

    low, high = skewed("Product-0", -0.12), skewed("Art-1", 0.34)
    made = figures._densities((low, high), math.log(65), "Entropy")
    assert {"Product-0, gamma = -0.12", "Art-1, gamma = +0.34"} <= set(texts(made.files["svg"]))
    assert made.caption.startswith(
        "Product-0 has the lowest skewness gamma of all clients, Art-1 the highest."
    )
    for colour in drawing.COLOURS[:2]:
        assert re.search(rf"fill: {to_hex(colour)}; fill-opacity: 0.3", made.svg)
    alike = figures._densities((high, high), math.log(65), "Entropy")
    assert "; none has the opposite sign." in alike.caption


# ---- axes


@pytest.mark.parametrize("values", [(0.1, 0.3, 1.0, 3.0, 10.0), (0.1, 0.4, 0.7, 0.8, 1.0, 1.1)])
def test_an_axis_names_the_values_that_were_tried_as_they_are_typed(values: tuple[float, ...]) -> None:
    with drawing.drawing():
        figure, (axis,) = drawing.canvas(2.0)
        axis.plot(values, values)
        drawing.value_axis(axis, values)
        svg = drawing.drawn(figure, "x", "x", "").files["svg"]
    assert axis.get_xscale() == ("log" if values[-1] == 10 else "linear")
    assert [f"{value:g}" for value in values] == [text for text in texts(svg) if text][: len(values)]
    assert b"mathdefault" not in svg


def test_a_sweep_has_a_curve_for_each_source() -> None:
    scores = tried({"tau_init=0.1": 60.0, "tau_init=1.1": 75.5}) + tried({"tau_init=0.1": 62.0}, "Clipart")
    made = figures._sweeps("tau", [TAU], [*scores, *tried({"tau_init=0.1": 61.0}, "all")])
    assert made is not None
    assert made.title == "Office-Home: average accuracy over tau_init"
    assert {"Art", "Clipart", "0.1", "1.1", "tau_init"} <= set(texts(made.files["svg"]))
    assert "all" not in texts(made.files["svg"])
    assert figures._sweeps("tau", [TAU], []) is None


# ---- files


def test_a_figure_is_a_file_of_each_kind_beside_the_page_and_the_same_each_time(tmp_path: Path) -> None:
    def make() -> Drawn:
        with drawing.drawing():
            figure, (axis,) = drawing.canvas(2.0)
            axis.plot([0, 1], [1, 0])
            return drawing.drawn(figure, "tau", "Two points", "A line.")

    first = make()
    assert first.files == make().files
    result = Result("figure-tau", [], {}, ["no data"])
    written = result.write(tmp_path, [first])
    assert written[-1] == tmp_path / FIGURES
    begins = {"svg": b"<?xml", "pdf": b"%PDF-", "png": b"\x89PNG"}
    page = (tmp_path / "figure-tau.html").read_text()
    for ending, magic in begins.items():
        assert (tmp_path / FIGURES / f"tau.{ending}").read_bytes().startswith(magic)
        assert f'<a href="figures/tau.{ending}">{ending}</a>' in page
    assert "Two points</title>" in page
    rehearsed = Result("figure-tau", [], {}, ["drawn images"], rehearsed=True)
    assert rehearsed.write(tmp_path / "b", [first])[-1].name == "rehearsal-figures"
