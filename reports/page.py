"""One self-contained HTML page about one run. Reads the run directory and writes the page; starts nothing.

Every text in the page may come from a model, a task or an endpoint, so everything is escaped by the template.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tbench.results import TaskStepResult
from tbench.scores.summarise import summarise
from tbench.scores.summary import Cell, Status, Summary, TaskRow, TimeSplit, percent, range_text
from tbench.storage.read_run import StoredRun, read_run
from tbench.storage.run_files import trial_directory

PAGE_NAME = "report.html"
SCRIPTED_DEMO = "scripted-demo"
"""The model name of the scripted endpoint that comes with tbench: its scores say nothing about any model."""

_TRIAL_FILES = {
    "result": "result.json",
    "trajectory": "trajectory.json",
    "recording": "session.cast",
    "verifier output": "verifier/stdout.txt",
}
_SAMPLING = {"temperature", "top_p", "max_tokens", "extra_body"}
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_CAMEL_WORD = re.compile(r".[^A-Z]*", re.DOTALL)
_SYMBOLS = {Status.PASS: "✓", Status.FAIL: "✗", Status.ERROR: "!", Status.MISSING: "·"}


@dataclass(frozen=True, slots=True)
class FileLink:
    """A file of a trial, as a URL relative to the page."""

    label: str
    href: str


@dataclass(frozen=True, slots=True)
class CellView:
    """A trial as the grid shows it."""

    status: Status
    symbol: str
    words: str
    """The symbol's meaning, for a reader who does not see it."""
    error: tuple[str, ...]
    """The error type in pieces between which a narrow cell may break the line; empty without an error."""
    facts: tuple[str, ...]
    links: tuple[FileLink, ...]
    task_steps: tuple[StepView, ...]
    """A line for each step of the task; empty for a task without steps."""


@dataclass(frozen=True, slots=True)
class StepView:
    """A step of a task as the trial's cell shows it."""

    words: str
    links: tuple[FileLink, ...]


@dataclass(frozen=True, slots=True)
class RowView:
    """A task as the grid shows it."""

    task: str
    mean: str
    solved: str
    cells: tuple[CellView, ...]


@dataclass(frozen=True, slots=True)
class BarPart:
    """A piece of a stacked bar. `percent` is of the bar's own total, `width` of the full line."""

    name: str
    sec: str
    percent: str
    width: str


@dataclass(frozen=True, slots=True)
class TaskTime:
    """Mean seconds per trial of one task, and the bar of what they went into."""

    task: str
    mean_sec: str
    bar: tuple[BarPart, ...]


def write_report(run_dir: Path, out_path: Path | None = None) -> Path:
    """Write the page about a run and return its path; `report.html` in the run directory by default.

    Raises RunUnreadable for what is not a run, MixedResults for results of several models.
    """
    run = read_run(run_dir)
    page = out_path or run.path / PAGE_NAME
    text = render_page(run, page.parent)
    page.parent.mkdir(parents=True, exist_ok=True)
    unfinished = page.with_name(f".{page.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(page)
    return page


def render_page(run: StoredRun, page_dir: Path) -> str:
    """The page as HTML text, with links to trial files relative to `page_dir`."""
    summary = summarise(
        run.results,
        run.planned_tasks,
        run.planned_seeds,
        overrides=run.overrides,
        dataset=run.dataset,
        broken_rules=run.broken_rules,
    )
    model = run.model or summary.model
    template = _environment().get_template("page.html.j2")
    return template.render(
        name=run.name,
        summary=summary,
        demo=SCRIPTED_DEMO in {model, summary.model},
        facts=_facts(run, model),
        notes=run.notes,
        rows=[_row_view(row, run.path, page_dir) for row in summary.tasks],
        time=_bar(summary.time, summary.time.total_sec),
        task_times=_task_times(summary),
        config=_config_text(run),
        written_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters["pct"] = lambda fraction: f"{percent(fraction)}\N{NO-BREAK SPACE}%"
    environment.filters["range"] = lambda ends: range_text(*ends)
    environment.filters["thousands"] = lambda number: f"{number:,}"
    environment.filters["seconds"] = _seconds
    return environment


def _visible(value: Any) -> Any:
    """Text without characters that HTML forbids (control characters, surrogates) or that turn the reading direction."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", value) if type(value) is str else value


def _config_text(run: StoredRun) -> str:
    """The content of run.json; of imported results, the plan that they make."""
    if (about := run.document or run.plan) is not None:
        content = about.model_dump(mode="json")
    else:
        content = {"run": run.name, "tasks": run.planned_tasks, "seeds": run.planned_seeds}
    return json.dumps(content, indent=2, ensure_ascii=False)


def _facts(run: StoredRun, model: object) -> dict[str, str]:
    """The known facts about the run, by the label that a reader sees."""
    facts = {
        "Model": model,
        **_settings(run),
        "Dataset": run.dataset.words if run.dataset is not None else None,
        "Tasks": len(run.planned_tasks),
        "Seeds": ", ".join(str(seed) for seed in run.planned_seeds),
        **_times(run),
    }
    return {label: _words(value) for label, value in facts.items() if value not in (None, "", {})}


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
        "Agent": locked.agent,
        "Protocol": config.agent.protocol if locked.prompt_hash else None,
        "Sampling": config.model.model_dump(mode="json", include=_SAMPLING) if samples else None,
        "Limits": config.limits.model_dump(mode="json") if samples else None,
    }


def _times(run: StoredRun) -> dict[str, Any]:
    if run.plan is not None:
        return {"Status": run.plan.status, "Created": run.plan.created_at[:19].replace("T", " ")}
    document = run.document
    if document is None:
        return {}
    created = document.created_at[:19].replace("T", " ")
    return {"Status": document.status, "Created": created, "tbench": document.tbench_version}


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(part)}" for key, part in value.items() if part not in (None, {}))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _row_view(row: TaskRow, run_dir: Path, page_dir: Path) -> RowView:
    return RowView(
        task=row.task,
        mean="–" if row.mean_reward is None else f"{row.mean_reward:.2f}",
        solved=f"{row.solved}/{len(row.cells)}",
        cells=tuple(_cell_view(row.task, cell, run_dir, page_dir) for cell in row.cells),
    )


def _cell_view(task: str, cell: Cell, run_dir: Path, page_dir: Path) -> CellView:
    return CellView(
        status=cell.status,
        symbol=_symbol(cell),
        words=_status_words(cell),
        error=tuple(_CAMEL_WORD.findall(cell.error or "")),
        facts=tuple(_cell_facts(cell)),
        links=tuple(_links(task, cell, run_dir, page_dir)),
        task_steps=tuple(
            StepView(_step_words(number, step), tuple(_links(task, cell, run_dir, page_dir, step)))
            for number, step in enumerate(cell.task_steps, start=1)
        ),
    )


def _symbol(cell: Cell) -> str:
    """The symbol of a trial: a number wherever the reward is neither 0 nor 1, so that nothing is rounded away."""
    if cell.reward is None or cell.reward in (0.0, 1.0):
        return _SYMBOLS[cell.status]
    text = f"{cell.reward:.2f}"
    return f"{cell.reward:.3g}" if text in ("0.00", "1.00") else text


def _status_words(cell: Cell) -> str:
    if cell.status is Status.ERROR:
        return f"error, no verdict: {cell.error}"
    return "no result" if cell.status is Status.MISSING else str(cell.status)


def _cell_facts(cell: Cell) -> Iterator[str]:
    if cell.status is Status.MISSING:
        return
    if cell.reward is not None:
        yield f"reward {cell.reward:g}"
    if cell.reward_all_steps not in (None, cell.reward):
        yield f"{cell.reward_all_steps:g} with 0 for task steps that were never begun"
    if cell.outcome is not None:
        yield cell.outcome
    yield f"{cell.steps} step" + ("" if cell.steps == 1 else "s")
    yield _seconds(cell.wall_sec)
    if cell.attempt > 1:
        yield f"attempt {cell.attempt}"
    if cell.human_touched:
        yield "a human typed in it"


def _step_words(number: int, step: TaskStepResult) -> str:
    """What became of a step of a task, in a line."""
    words = [f"step {number} {step.name}: {'no verdict' if step.reward is None else f'reward {step.reward:g}'}"]
    if not step.begun:
        return f"step {number} {step.name}: never begun"
    if step.outcome is not None:
        words.append(step.outcome)
    if step.error is not None:
        words.append(f"error {step.error.type}")
    words += [f"{step.steps} step" + ("" if step.steps == 1 else "s"), _seconds(step.timings.wall_sec)]
    return ", ".join([*words, *filter(None, [step.stopped])])


def _links(
    task: str, cell: Cell, run_dir: Path, page_dir: Path, step: TaskStepResult | None = None
) -> Iterator[FileLink]:
    """Links to the files that exist, and only to files inside the run: names of tasks and steps may hold `..`."""
    if cell.status is Status.MISSING or not task.isprintable():
        return
    trial = trial_directory(run_dir.resolve(), task, cell.seed, cell.attempt)
    if step is not None:
        trial = trial / "steps" / step.name
    if not trial.resolve().is_relative_to((run_dir / "trials").resolve()):
        return
    for label, name in _TRIAL_FILES.items():
        if (trial / name).is_file():
            yield FileLink(label=label, href=quote(os.path.relpath(trial / name, page_dir.resolve())))


def _bar(time: TimeSplit, full_line_sec: float) -> tuple[BarPart, ...]:
    if time.total_sec <= 0:
        return ()
    return tuple(
        BarPart(
            name=name,
            sec=_seconds(sec),
            percent=f"{100 * sec / time.total_sec:.1f} %",
            width=f"{100 * sec / full_line_sec:.3f}%",
        )
        for name, sec in time.parts().items()
        if sec > 0
    )


def _task_times(summary: Summary) -> list[TaskTime]:
    """Bars of all tasks on one scale, so that a longer bar is a slower task."""
    means = {row.task: _per_trial(row) for row in summary.tasks}
    longest_sec = max((time.total_sec for time in means.values()), default=0.0)
    return [
        TaskTime(task=task, mean_sec=_seconds(time.total_sec), bar=_bar(time, longest_sec))
        for task, time in means.items()
        if time.total_sec > 0
    ]


def _per_trial(row: TaskRow) -> TimeSplit:
    ended = sum(cell.status is not Status.MISSING for cell in row.cells) or 1
    return TimeSplit(**{name: sec / ended for name, sec in row.time.model_dump().items()})


def _seconds(sec: float) -> str:
    return f"{sec:,.1f} s" if sec < 100 else f"{sec:,.0f} s"
