"""The tables: medians of both runners, how many times as much Harbor takes, and where the time of a trial goes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beside_harbor.runners import PHASES, Case


@dataclass(frozen=True)
class Sample:
    """The figures of one run."""

    wall_sec: float
    cpu_sec: float
    memory_mb: float
    step_sec: float | None
    """None for the oracle, which takes no steps."""
    phases: Mapping[str, float]
    """Of its only trial; empty where there were several."""


Samples = Mapping[str, Sequence[Sample]]
"""The runs of one case by runner, ours first."""


FIGURES = (
    ("wall time", "wall_sec", "{:.2f} s"),
    ("per step", "step_sec", "{:.3f} s"),
    ("CPU time", "cpu_sec", "{:.2f} s"),
    ("memory", "memory_mb", "{:.0f} MB"),
)
"""What each is called, its field of a sample, and how it is written."""


def figures(samples: Mapping[Case, Samples]) -> str:
    """A row per figure, in Markdown: the medians and their ratio."""
    ours, theirs = next(iter(samples.values()))
    rows = []
    for case, runs in samples.items():
        for what, field, shown in FIGURES:
            sides = [[getattr(run, field) for run in side] for side in runs.values()]
            if None not in sides[0]:
                mine, other = map(statistics.median, sides)
                ratio = f"{other / mine:.1f}"
                rows.append([f"{case.about}: {what}", shown.format(mine), shown.format(other), ratio])
    return table(["figure", ours, theirs, f"{theirs} / {ours}"], rows)


def phases(runs: Samples) -> str:
    """A row per phase of a trial, in Markdown: the median seconds. The rest is the start and end of the program."""
    rows = [[phase, *(_phase(phase, side) for side in runs.values())] for phase in PHASES]
    rest = ["the rest of the run", *(_without(PHASES, side) for side in runs.values())]
    work = ["the run without its teardown", *(_without(["teardown"], side) for side in runs.values())]
    return table(["phase", *runs], [*rows, rest, work])


def _phase(phase: str, side: Sequence[Sample]) -> str:
    if phase not in side[0].phases:
        return ""
    return f"{statistics.median(run.phases[phase] for run in side):.2f} s"


def _without(left_out: Sequence[str], side: Sequence[Sample]) -> str:
    seconds = [run.wall_sec - sum(run.phases.get(phase, 0.0) for phase in left_out) for run in side]
    return f"{statistics.median(seconds):.2f} s"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown whose columns are aligned, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    line = f"|{'-' * (widths[0] + 2)}|" + "".join(f"{'-' * (width + 1)}:|" for width in widths[1:])

    def written(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return f"| {first[0]:<{first[1]}} | " + " | ".join(f"{cell:>{width}}" for cell, width in others) + " |"

    return "\n".join([written(head), line, *map(written, rows)])
