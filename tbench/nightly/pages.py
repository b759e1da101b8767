"""The site of folders, some of which may be those of nightly benchmarks: their nights and lanes are its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from reports.site.content import Lane
from reports.site.writing import Progress, WrittenSite, write_site
from tbench.nightly.journal import NightRecord, Nights
from tbench.nightly.series import runs_of_lane
from tbench.scores.gate.nights import GateRule


def write_pages(
    folders: Sequence[Path], out: Path, index: Path | None = None, progress: Progress | None = None
) -> WrittenSite:
    """Write the pages about all runs of `folders` into `out`. Raises UsageError."""
    nightly = {folder: Nights(folder) for folder in folders if Nights(folder).has_begun}
    if index is None and len(folders) == len(nightly) == 1:
        index = nightly[folders[0]].index
    roots = [nightly[folder].runs if folder in nightly else folder for folder in folders]
    lanes = [lane for nights in nightly.values() for lane in _lanes(nights)]
    return write_site(roots, out, index=index, lanes=lanes, progress=progress)


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
