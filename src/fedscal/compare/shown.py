"""Several runs side by side, as a person sees them in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedscal.compare.audited import audit_tables, has_audit
from fedscal.compare.comparison import leaderboards, source_tables, usable
from fedscal.core.table import Table
from fedscal.experiment.load import load_run
from fedscal.experiment.run_directory import RunDirectory


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs compared: a leaderboard if there are several sources, a table a source, and audits.

    Attributes:
        tables: in that order; ``table.markdown()`` is one of them for a paper.
        left_out: runs that are in none of them, and why.
    """

    tables: Sequence[Table]
    left_out: Mapping[str, str]

    def __repr__(self) -> str:
        return "\n\n".join(table.text() for table in self._all())

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return "".join(table.html() for table in self._all())

    def _all(self) -> list[Table]:
        without = Table("Left out", (), [], [f"{run}: {why}" for run, why in self.left_out.items()])
        return [*self.tables, *([without] if self.left_out else [])]


def compare_runs(runs: Iterable[RunDirectory | Path | str]) -> Comparison:
    """Compare finished runs: by their accuracy where labels are known, else by audits on the same images.

    ``fedscal.write_comparison`` writes a page of the same; the command ``fedscal compare`` makes the runs.
    """
    paths = [run.path if isinstance(run, RunDirectory) else Path(run) for run in runs]
    loaded = [load_run(path) for path in dict.fromkeys(paths)]
    compared, reasons = usable(loaded)
    by_source = source_tables(compared)
    tables = [*leaderboards(by_source), *(source.table() for source in by_source), *audit_tables(loaded)]
    audited = {str(run.path) for run in loaded if has_audit(run)}
    return Comparison(tables, {path: why for path, why in reasons.items() if path not in audited})
