"""Writes the pages about nightly benchmarks, and selects the runs of a series for pages and gate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.site.content import NightlySeries
from reports.site.writer import WrittenSite, write_site
from tbench.explaining.confirmations import read_confirmations
from tbench.history.index import RunHistory
from tbench.nightly.configuration import is_glob
from tbench.nightly.journal import CheckpointRecord, NightRecord, Nights
from tbench.scores.gate.nights import GateRule, Night


@dataclass(frozen=True, slots=True)
class SeriesRun:
    """A finished run of a series."""

    night: NightRecord
    checkpoint: CheckpointRecord

    @property
    def name(self) -> str:
        """Name in tables: the night, and the checkpoint if the series has several."""
        lane, night = self.checkpoint.lane, self.night.name
        return f"{night} {self.checkpoint.slug}" if is_glob(lane) else night


def series_runs(nights: Iterable[NightRecord], lane: str) -> list[SeriesRun]:
    """Return a series' finished runs, oldest first."""
    return [
        SeriesRun(night, each) for night in nights for each in night.checkpoints if each.lane == lane and each.has_run
    ]


def gate_nights(runs: Iterable[SeriesRun], folder: Path, history: RunHistory) -> list[Night]:
    """Return the runs with rewards and task hashes from the index. Raises UsageError for a run that the index lacks."""
    rows = ((each, history.run(folder / each.checkpoint.run)) for each in runs)
    return [history.night(row, each.name, each.night.begun_at) for each, row in rows]


def write_pages(folders: Sequence[Path], out: Path, index: Path | None = None) -> WrittenSite:
    """Write the pages about all runs of `folders` into `out`. Raises UsageError."""
    nightly = {folder: Nights(folder) for folder in folders if Nights(folder).has_nights}
    if index is None and len(folders) == len(nightly) == 1:
        index = nightly[folders[0]].index
    roots = [nightly[folder].runs if folder in nightly else folder for folder in folders]
    lanes = [lane for nights in nightly.values() for lane in _series_of(nights)]
    return write_site(roots, out, index=index, lanes=lanes)


def _series_of(nights: Nights) -> Iterator[NightlySeries]:
    """Yield the series of a nightly benchmark, with the rule by which each was last judged."""
    records = nights.all()
    for name in dict.fromkeys(each.lane for record in records for each in record.checkpoints):
        runs = {nights.runs / run.checkpoint.run: run.night.name for run in series_runs(records, name)}
        if runs:
            yield NightlySeries(name, runs, _rule(records, name), _explained(nights, records, name))


def _explained(nights: Nights, records: Sequence[NightRecord], lane: str) -> dict[Path, dict[str, Any]]:
    """Return the explanations that nights recorded for their last run of a series, by its directory."""
    found: dict[Path, dict[str, Any]] = {}
    for record in records:
        if explained := record.gates.get(lane, {}).get("explained"):
            for last in series_runs([record], lane)[-1:]:
                run = nights.runs / last.checkpoint.run
                found[run] = _confirmed(explained, run)
    return found


def _confirmed(explained: dict[str, Any], run: Path) -> dict[str, Any]:
    """Add later confirmations to an explanation."""
    known = read_confirmations(run)
    parts = [{**part, "confirmed": known.get(part.get("cause"))} for part in explained.get("parts", ())]
    return {**explained, "parts": parts}


def _rule(records: Sequence[NightRecord], lane: str) -> GateRule:
    rules = (record.gates[lane]["rule"] for record in reversed(records) if lane in record.gates)
    return GateRule(**next(rules, {}))
