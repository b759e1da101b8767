"""The page of a run: in a site, or as a self-contained file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from reports.charts import seed_strip, status_bar
from reports.explained import explanation_for_page
from reports.page_frame import Crumb, page, time_text
from reports.page_paths import compare_page, night_page, run_page
from reports.run.effort import effort_data
from reports.run.grid import grid_data
from reports.run.links import FileLinks, RunLinks, SiteLinks
from reports.run.validity import ValidityCheck, validity_checks
from reports.site.changes import score_change
from reports.site.content import Site, SiteRun
from reports.site.states import drop_text, state_of
from tbench.explaining.explain import explain_side
from tbench.explaining.explanation import Explanation
from tbench.explaining.trials import side_of
from tbench.scores.summary import Summary, range_text
from tbench.storage.read_run import StoredRun
from tbench.storage.summaries import make_summary
from tbench.text import counted, names_text

# The headline of a run: its score or, if it has not finished, its progress.

CUT_OFF = "cut off"
_MEANINGS = {
    "running": "This run is in progress.",
    CUT_OFF: "The process of this run is gone, although it never recorded an end: it was killed.",
    "interrupted": "This run was interrupted, by a user or a planned stop.",
    "stopped": "This run stopped by itself.",
    "failed": "This run failed.",
    "incomplete": "Some of the planned trials have no result.",
}


@dataclass(frozen=True, slots=True)
class RunHeadline:
    """Large figure of a run, and the lines below it."""

    state: str | None
    """State of an unfinished or incomplete run; None for a complete one, whose figure is a score."""
    label: str
    """Text before the figure."""
    figure: str
    spread: str
    """Spread after the figure, with its ±; may be empty."""
    rest: str
    """Text after the figure, in the same line."""
    meaning: str
    """Reason why there is no plain score; empty if there is one."""
    lines: tuple[str, ...]
    """Further lines with the score by other conventions."""

    @property
    def text(self) -> str:
        """Headline in one line, for the window title."""
        return " ".join(filter(None, [self.label, self.figure, self.spread, self.rest]))


def make_headline(run: StoredRun, summary: Summary) -> RunHeadline:
    """Return the headline of a run."""
    if (state := _state(run, summary)) is not None:
        figure = f"{summary.counts.scored:,} of {summary.counts.planned:,}"
        noun = counted(summary.counts.planned, "trial").partition(" ")[2]
        rest = f"{noun} {'has' if summary.counts.planned == 1 else 'have'} a verdict"
        return RunHeadline(state, f"{state}:", figure, "", rest, _meaning(run, state), summary.score_lines)
    score, opening, rest = summary.score_line.partition(" (")
    label, _, figure = score.partition(" ")
    figure, plus_minus, spread = figure.partition(" ± ")
    spread = f"{plus_minus.strip()} {spread}" if plus_minus else ""
    return RunHeadline(None, label, figure, spread, f"{opening.strip()}{rest}", "", summary.score_lines[1:])


def _state(run: StoredRun, summary: Summary) -> str | None:
    status = run.status
    if status == "running":
        return CUT_OFF if run.is_cut_off else status
    if not summary.counts.missing:
        return None
    return "incomplete" if status in ("finished", None) else status


def _meaning(run: StoredRun, state: str) -> str:
    if run.document is None:
        return _MEANINGS[state]
    why = f"Why: {run.document.stopped}." if run.document.stopped else ""
    return " ".join(filter(None, [_MEANINGS[state], why, "tbench resume continues it when its process has ended."]))


# Facts about a run, and its configuration as text.

_SAMPLING = {"temperature", "top_p", "max_tokens", "extra_body"}
_TASKS_SHOWN = 20
"""Number of planned tasks above which the configuration is shown without them."""
_SEEDS_SHOWN = 12


def run_facts(run: StoredRun, model: object) -> dict[str, str]:
    """Return the known facts about a run, by label."""
    facts = {
        "Model": model,
        **_settings(run),
        "Dataset": run.dataset.spec if run.dataset is not None else None,
        "Tasks": len(run.planned_tasks),
        "Seeds": _seeds(run.planned_seeds),
        "Status": run.status,
        **_times(run),
    }
    return {label: _words(value) for label, value in facts.items() if value not in (None, "", {})}


_QUOTED = ("Model", "Agent", "Protocol", "Sampling", "Limits", "Dataset", "Imported from", "tbench", "Created")
"""Facts that have to be known before a score can be compared with another one."""


def score_markdown(run: StoredRun, summary: Summary, model: object) -> str:
    """Return the score of a run with everything needed to quote it, as a Markdown table; empty without a score."""
    score, counts = summary.score, summary.counts
    if score is None or _state(run, summary) is not None:
        return ""
    facts = run_facts(run, model)
    interval = range_text(*score.interval_95) if score.interval_95 is not None else ""
    rows = {
        "Score": summary.score_line.removeprefix("score "),
        "95 % interval over tasks": interval,
        "Tasks × seeds": f"{len(run.planned_tasks):,} × {len(run.planned_seeds):,}",
        "Coverage": f"{counts.scored:,} of {counts.planned:,} trials have a verdict, the others count as 0",
        **{label: facts.get(label, "") for label in _QUOTED},
        "Dataset digest": run.dataset.digest if run.dataset is not None else None,
        "Prompt hash": run.document.locked.prompt_hash if run.document is not None else None,
    }
    cells = [(label, " ".join(str(value).split()).replace("|", "\\|")) for label, value in rows.items() if value]
    return "\n".join(["| | |", "|---|---|", *(f"| {label} | {value} |" for label, value in cells)])


def config_text(run: StoredRun) -> str:
    """Return the content of run.json; for imported results, their plan."""
    if (about := run.document or run.plan) is not None:
        content = about.model_dump(mode="json")
    else:
        content = {"run": run.name, "tasks": list(run.planned_tasks), "seeds": run.planned_seeds}
    if len(run.planned_tasks) > _TASKS_SHOWN:
        content["tasks"] = f"{len(run.planned_tasks):,} tasks, left out here"
    return json.dumps(content, indent=2, ensure_ascii=False)


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > _SEEDS_SHOWN and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]} to {seeds[-1]} ({len(seeds):,})"
    shown = ", ".join(map(str, seeds[:_SEEDS_SHOWN]))
    return shown if len(seeds) <= _SEEDS_SHOWN else f"{shown} … ({len(seeds):,})"


def _settings(run: StoredRun) -> dict[str, Any]:
    if run.plan is not None:
        origin = run.plan.imported
        return {
            "Agent": " ".join(filter(None, [run.plan.agent, run.plan.agent_version])),
            "Imported from": " ".join(filter(None, [origin.format, origin.version, origin.source])),
            "Settings": run.plan.settings,
        }
    if run.document is None:
        return {}
    config, locked = run.document.config, run.document.locked
    samples = locked.model is not None
    return {
        "Endpoint": locked.base_url,
        "Machines": names_text([each["name"] for each in (run.document.engine or {}).get("machines", ())]),
        "Agent": locked.agent,
        "Protocol": config.agent.protocol if locked.prompt_hash else None,
        "Sampling": config.model.model_dump(mode="json", include=_SAMPLING) if samples else None,
        "Limits": config.limits.model_dump(mode="json") if samples else None,
    }


def _times(run: StoredRun) -> dict[str, Any]:
    about = run.document or run.plan
    if about is None:
        return {}
    return {
        "Created": time_text(about.created_at) if about.created_at else None,
        "Ended": time_text(about.ended_at) if about.ended_at else None,
        "tbench": run.document.tbench_version if run.document is not None else None,
    }


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(part)}" for key, part in value.items() if part not in (None, {}))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# Error messages as plain text: the output of a failed build as a terminal would show it.

MAX_CHARACTERS = 12_000
_ESCAPE = r"(?:\x1b|\\u001b|\\x1b)"
_SEQUENCE = re.compile(
    rf"{_ESCAPE}\[[0-?]*[ -/]*[@-~]"  # colours, moves of the cursor
    rf"|{_ESCAPE}\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_BLANKS = re.compile(r"\n{3,}")


def readable(message: str) -> str:
    """Return the text without terminal escapes and overwritten parts of lines; a long text loses its middle."""
    plain = _SEQUENCE.sub("", message).replace("\r\n", "\n")
    lines = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in plain.split("\n"))
    text = _BLANKS.sub("\n\n", "\n".join(lines)).strip("\n")
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n… {left_out:,} characters are left out here …\n{text[-half:]}"


SCRIPTED_DEMO = "scripted-demo"
"""Model name of the scripted endpoint that comes with tbench; its scores say nothing about any model."""
ERRORS_SHOWN = 30
"""Number of kinds of errors whose messages a page shows, most frequent first."""
MAX_RESAMPLED = 500
"""Number of tasks above which pages show the standard error instead of a bootstrap interval."""


def page_summary(run: StoredRun) -> Summary:
    """Return the summary of a run, without intervals if there are so many tasks that they would take minutes."""
    return make_summary(run, intervals=len(run.planned_tasks) <= MAX_RESAMPLED)


def render(site: Site, run: SiteRun, stored: StoredRun, summary: Summary) -> str:
    """Render the page of a run in a site."""
    explained = explanation_for_page(stored.planned, lambda: explain_side(site.side(run), listed=0))
    content = _content(stored, summary, SiteLinks(run.slug, stored), explained)
    series, before = site.series_of(run), site.last_good_before(run)
    is_over = content["headline"].state is None
    change = score_change(site, before, run) if before is not None and is_over else None
    drop = series.drop_at(run)
    place = {
        "series": series,
        "night": run.night,
        "night_page": night_page(run.night),
        "state": state_of(series, run),
        "before": before,
        "compare_page": compare_page(before.slug, run.slug) if before is not None else None,
        "drop": "" if drop is None else drop_text(drop),
        "change": None if change is None else change.points,
    }
    return page("run.html.j2", run_page(run.slug), crumbs=[Crumb(run.row.name)], place=place, **content)


def render_standalone(run: StoredRun, place: Path, *, style: Markup, policy: str) -> str:
    """Render the self-contained page of a run, with links to files of trials."""
    summary = page_summary(run)
    explained = explanation_for_page(run.planned, lambda: explain_side(side_of(run), listed=0))
    content = _content(run, summary, FileLinks(run.path, place.parent, summary), explained)
    return page("report.html.j2", place.name, policy=policy, style=style, place=None, **content)


def data_from_other_runs(site: Site, run: SiteRun) -> str:
    """Return everything on the page of a run that comes from other runs: if it changes, the page is written again."""
    series, before = site.series_of(run), site.last_good_before(run)
    drop = series.drop_at(run)
    place = (series.name, series.page, run.night, state_of(series, run).kind, drop_text(drop) if drop else "")
    return repr((*place, before.slug if before else None, before.row.score if before else None))


def _content(run: StoredRun, summary: Summary, links: RunLinks, explained: Explanation | None) -> dict[str, Any]:
    """Return the content that both pages of a run share."""
    model = run.model or summary.model
    counts = Counter(cell.status for row in summary.tasks for cell in row.cells)
    checks = validity_checks(run, summary)
    trial_links = _trial_links(summary, checks, links)
    return {
        "name": run.name,
        "headline": make_headline(run, summary),
        "summary": summary,
        "is_demo": SCRIPTED_DEMO in {model, summary.model},
        "counts": counts,
        "status_bar": status_bar(counts, "Trials: "),
        "seed_strip": _seed_strip(summary),
        "checks": checks,
        "trial_links": trial_links,
        "results": {(each.task, each.seed, each.attempt): each for each in run.results},
        "links": links,
        "numbers": {row.task: number for number, row in enumerate(summary.tasks)},
        "grid": grid_data(run, summary),
        "errors": summary.errors[:ERRORS_SHOWN],
        "errors_left_out": max(0, len(summary.errors) - ERRORS_SHOWN),
        "readable": readable,
        "effort": effort_data(summary),
        "lost": explained.lost if explained is not None else (),
        "facts": run_facts(run, model),
        "quote": score_markdown(run, summary, model),
        "config": config_text(run),
    }


def _trial_links(summary: Summary, checks: Sequence[ValidityCheck], links: RunLinks) -> dict[str, str]:
    """Return links to the trials that checks and errors name, by `TASK seed SEED`."""
    named = {trial for check in checks for trial, _ in check.trials} | {each.example_trial for each in summary.errors}
    found = {
        name: links.trial(row.task, cell)
        for row in summary.tasks
        for cell in row.cells
        if (name := f"{row.task} seed {cell.seed}") in named
    }
    return {name: href for name, href in found.items() if href is not None}


def _seed_strip(summary: Summary) -> Markup | None:
    """Draw the scores of all seeds; None for a single seed, or if trials are missing."""
    score = summary.score
    if score is None or score.std is None or summary.counts.missing:
        return None
    label = f"The scores of {len(score.per_seed):,} seeds, their mean and one standard deviation around it"
    return seed_strip(score.per_seed, score.mean, score.std, label=label)
