"""What the answers of a run have to show on its page: charts, tables, and images worth a look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedscal.core.table import Table
from fedscal.experiment.answers import Answers, Example
from fedscal.report import answer_charts
from fedscal.report.answered import choices
from fedscal.report.charts import Exhibit

_HEADINGS = {"changed": "Answers that changed", "mistake": "Sure, and wrong", "doubtful": "Doubtful answers"}
"""Of the kinds of examples, in the order of the page."""
_MOST_EXAMPLES = 48
_PNG = "iVBORw0KGgo"
"""How the base64 of a PNG file begins."""


@dataclass(frozen=True, kw_only=True)
class Looks:
    """What there is to look at.

    Attributes:
        round: of the model that answered.
        choices: the domains that can be chosen; all together first.
        examples: images by their heading.
    """

    round: int
    choices: Sequence[str]
    classes: Sequence[Exhibit]
    calibration: Sequence[Exhibit]
    features: Sequence[Exhibit]
    domain_table: Table
    class_table: Table
    mistakes: Table | None
    examples: Mapping[str, Sequence[Example]]

    @property
    def exhibits(self) -> list[Exhibit]:
        """All charts."""
        return [*self.classes, *self.calibration, *self.features]


def looks(answers: Answers) -> Looks:
    """Return what answers have to show."""
    return Looks(
        round=answers.round,
        choices=list(choices(answers)),
        classes=answer_charts.class_charts(answers),
        calibration=answer_charts.calibration_chart(answers),
        features=answer_charts.feature_chart(answers),
        domain_table=answer_charts.domain_table(answers),
        class_table=answer_charts.class_table(answers),
        mistakes=answer_charts.mistake_table(answers),
        examples=_examples(answers.examples),
    )


def _examples(found: Sequence[Example]) -> Mapping[str, Sequence[Example]]:
    """Return the examples that hold a picture, by their heading."""
    drawn = [one for one in found if one.png.startswith(_PNG)]
    groups = {title: [one for one in drawn if one.kind == kind] for kind, title in _HEADINGS.items()}
    return {title: group[:_MOST_EXAMPLES] for title, group in groups.items() if group}
