"""Stored runs for tests of pages, and a parser for pages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from run_plans import a_document, a_plan

from tbench.config.document import PlannedTask
from tbench.results import Blame, ErrorInfo, Stage, Timings, TrialResult

TIME = datetime(2026, 1, 1, tzinfo=UTC)
VOID = {"meta", "link", "br", "wbr", "img", "input", "hr"}
LOADING = {"src", "href", "srcset", "data", "action", "poster"}


class Page(HTMLParser):
    """Parsed page, checked for nesting: tags, references, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.references: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        self.tags.append((tag, known))
        self.references += [value for name, value in known.items() if name in LOADING]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def words(self) -> str:
        return " ".join(self.text.split())

    def files(self) -> list[str]:
        """Return the targets of links that leave the page."""
        known = (attrs["href"] for tag, attrs in self.tags if tag == "a")
        return [href for href in known if not href.startswith("#")]

    def of_class(self, name: str) -> list[tuple[str, dict[str, str]]]:
        return [(tag, attrs) for tag, attrs in self.tags if name in attrs.get("class", "").split()]


def trial(task: str, seed: int, reward: float | None, **more: Any) -> TrialResult:
    known = {"run": "r", "trial": "x", "agent": "terminal", "started_at": TIME, "finished_at": TIME}
    timings = Timings(sandbox_sec=1, agent_sec=8, model_sec=6, command_sec=2, verifier_sec=1, wall_sec=10)
    return TrialResult(task=task, seed=seed, reward=reward, **(known | {"timings": timings, "steps": 3} | more))


def failure(message: str) -> ErrorInfo:
    return ErrorInfo(stage=Stage.VERIFIER, type="TestsNeverRan", blame=Blame.INFRA, retryable=True, message=message)


def store(
    path: Path, results: list[TrialResult], tasks: list[str], *, status: Any = "running", version: str = "", **plan: Any
) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    document = a_document(a_plan(**{"run": "nightly", "seeds": (0, 1)} | plan)).model_copy(
        update={"status": status, "tbench_version": version, "tasks": tuple(PlannedTask(name=task) for task in tasks)}
    )
    (path / "run.json").write_text(json.dumps(document.model_dump(mode="json")))
    (path / "results.jsonl").write_text("".join(result.model_dump_json() + "\n" for result in results))
    return path


def mixed(path: Path, **plan: Any) -> Path:
    results = [
        trial("solved", 0, 1.0),
        trial("solved", 1, 0.25),
        trial("hard", 0, 0.0, outcome="step_limit"),
        trial("hard", 1, None, error=failure("dpkg lock held")),
        trial("late", 0, 1.0),
    ]
    return store(path, results, ["solved", "hard", "late"], **plan)


def read(page: Path) -> Page:
    return Page(page.read_text(encoding="utf-8"))
