"""The configuration of a nightly benchmark, but for what `tbench run` and the proxies have themselves."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from harness.trajectory import Frozen
from tbench.scores.gate.nights import GateRule

_RULE = GateRule()
PLACEHOLDERS = ("checkpoint", "name", "port")
"""What stands in braces in `serve`: the checkpoint as it was listed or found, its last part, the server's port."""


def _no_other_placeholder(text: str) -> str:
    for name in re.findall(r"\{(\w+)\}", text):
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
            raise ValueError(f"{{{name}}} stands for nothing; there are {known}")
    return text


def _words_with_placeholders(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_no_other_placeholder(word) for word in words)


def _variables(variables: dict[str, Any]) -> dict[str, Any]:
    for name, value in variables.items():
        if not isinstance(value, str) or "=" in name or not name:
            raise ValueError(f"{name} needs a text for its value")
    return variables


class NightlySection(Frozen, use_attribute_docstrings=True):
    """What a night is about"""

    name: str = ""
    """What summaries call this benchmark. Without it, the name of the file says."""
    directory: str = "nightly"
    """Everything is kept here: runs, nights, the index. It has to outlive the night."""
    checkpoints: tuple[str, ...] = ()
    """Names of models, paths or globs of paths. An entry without wildcards is run every night; of a glob, each match is
    run once, in natural order. Each entry is a lane: the series that the gate looks at. Without any, the one model of
    [run.model] name is run."""
    repeat: bool = False
    """Run all matches of globs every night."""
    advance_seeds: bool = True
    """Each night has seeds of its own, which follow those of the night before. With the same ones, a model that answers
    alike every night seems to have no noise."""
    keep: Annotated[int | None, Field(ge=1)] = None
    """Recordings, trajectories and server logs are kept of the last so many nights. Results are kept of all."""
    baseline: str | None = None
    """A run directory that each night is compared with, besides the night before."""
    summary: str | None = None
    """A file that gets the Markdown of the last night, too."""
    page: str | None = None
    """A file that gets the report page of the last night's last run, too."""
    site: str = "site"
    """The folder of the pages about all nights; a relative path is below `directory`. "" leaves them out."""


class ServeSection(Frozen, use_attribute_docstrings=True):
    """The model server, where nightly starts it itself"""

    command: Annotated[tuple[str, ...], AfterValidator(_words_with_placeholders)] = ()
    """The server's command, word by word, with {checkpoint}, {name} and {port}. Without it, the endpoint of [run.model]
    base_url is asked, and a checkpoint is the name of a model there."""
    port: int = Field(default=8000, ge=0, le=65535)
    """The server's port. 0 takes a free one."""
    health_url: Annotated[str, AfterValidator(_no_other_placeholder)] = "http://127.0.0.1:{port}/health"
    """Answers with 200 when the server is ready."""
    base_url: Annotated[str, AfterValidator(_no_other_placeholder)] = "http://127.0.0.1:{port}/v1"
    """The endpoint that the server is."""
    ready_timeout_sec: float = Field(default=1800.0, gt=0)
    """Seconds from the server's start until it has to be ready."""
    stop_timeout_sec: float = Field(default=60.0, ge=0)
    """Seconds between SIGTERM and SIGKILL at the end."""
    env: Annotated[dict[str, Any], AfterValidator(_variables)] = Field(default={})
    """Variables of the server's environment, besides those of this one."""


class GateSection(Frozen, use_attribute_docstrings=True):
    """The gate"""

    enabled: bool = True
    """Judge each lane, and end with 5 where its score has dropped by more than chance."""
    base_nights: int = Field(default=_RULE.base_nights, ge=2)
    """Nights that the baseline begins with."""
    k: float = Field(default=_RULE.k, gt=0, allow_inf_nan=False)
    """Half of the drop that is looked for, in standard deviations of a night."""
    h: float = Field(default=_RULE.h, gt=0, allow_inf_nan=False)
    """The alarm is where C is above it."""
    min_se: float = Field(default=_RULE.min_se, ge=0, allow_inf_nan=False)
    """Standard errors by which the nights since the change have to be below the baseline for an alarm. 0 is C alone."""
    base_from: str | None = _RULE.base_from
    """Name or date (YYYY-MM-DD) of the night at which the baseline begins. Without it, the first."""
    min_coverage: float = Field(default=_RULE.min_coverage, gt=0, le=1)
    """Share of a night's trials that need a verdict for the night to count."""
    min_shared: float = Field(default=_RULE.min_shared, gt=0, le=1)
    """Share of tasks that a night needs in common with the last one to be compared with it."""

    @property
    def rule(self) -> GateRule:
        return GateRule(**self.model_dump(exclude={"enabled"}))


class NotifySection(Frozen, use_attribute_docstrings=True):
    """Who is told"""

    webhook_env: str | None = None
    """The variable of the environment that holds the URL of a webhook. A night's news is posted there as JSON."""
    only_news: bool = False
    """Post nothing of a quiet night."""
    deadline_sec: float = Field(default=20.0, gt=0)
    """Seconds for one request to the webhook, of which there are three at most."""


class NightlyConfig(Frozen):
    """The configuration of a nightly benchmark."""

    nightly: NightlySection = NightlySection()
    serve: ServeSection = ServeSection()
    gate: GateSection = GateSection()
    notify: NotifySection = NotifySection()

    @model_validator(mode="after")
    def _port_is_somewhere(self) -> NightlyConfig:
        serve = self.serve
        if serve.command and serve.port == 0 and not any("{port}" in word for word in serve.command):
            raise ValueError("port 0 is chosen at the start, so command needs a {port}")
        return self
