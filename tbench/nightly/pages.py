"""The site of nightly benchmarks: their lanes over the nights, as pages and gate see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.site.content import Lane
from reports.site.writing import WrittenSite, write_site
from tbench.history.index import RunHistory
from tbench.nightly.journal import CheckpointRecord, NightRecord, Nights
from tbench.nightly.reading import is_glob
from tbench.scores.gate.nights import GateRule, Night

# The runs of a lane over the nights, as the gate sees them.


@dataclass(frozen=True, slots=True)
class LaneRun:
    """One run of a lane that came to its end."""

    night: NightRecord
    checkpoint: CheckpointRecord

    @property
    def name(self) -> str:
        """What tables call it: the night, and the checkpoint where the lane has several."""
        lane, night = self.checkpoint.lane, self.night.name
        return f"{night} {self.checkpoint.slug}" if is_glob(lane) else night


def runs_of_lane(nights: Iterable[NightRecord], lane: str) -> list[LaneRun]:
    """A lane's runs that came to their end, oldest first."""
    return [
        LaneRun(night, each) for night in nights for each in night.checkpoints if each.lane == lane and each.has_run
    ]


def as_the_gate_sees(runs: Iterable[LaneRun], folder: Path, history: RunHistory) -> list[Night]:
    """The runs with their rewards and task hashes, out of the index. Raises UsageError for one that is not in it."""
    rows = ((each, history.run(folder / each.checkpoint.run)) for each in runs)
    return [history.night(row, each.name, each.night.begun_at) for each, row in rows]


def write_pages(folders: Sequence[Path], out: Path, index: Path | None = None) -> WrittenSite:
    """Write the pages about all runs of `folders` into `out`. Raises UsageError."""
    nightly = {folder: Nights(folder) for folder in folders if Nights(folder).has_begun}
    if index is None and len(folders) == len(nightly) == 1:
        index = nightly[folders[0]].index
    roots = [nightly[folder].runs if folder in nightly else folder for folder in folders]
    lanes = [lane for nights in nightly.values() for lane in _lanes(nights)]
    return write_site(roots, out, index=index, lanes=lanes)


def _lanes(nights: Nights) -> Iterator[Lane]:
    """The lanes of a nightly benchmark, with the rule by which each was judged last."""
    records = nights.all()
    for name in dict.fromkeys(each.lane for record in records for each in record.checkpoints):
        runs = {nights.runs / run.checkpoint.run: run.night.name for run in runs_of_lane(records, name)}
        if runs:
            yield Lane(name, runs, _rule(records, name))


def _rule(records: Sequence[NightRecord], lane: str) -> GateRule:
    rules = (record.gates[lane]["rule"] for record in reversed(records) if lane in record.gates)
    return GateRule(**next(rules, {}))
