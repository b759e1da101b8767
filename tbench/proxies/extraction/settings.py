"""The configuration of an extraction: the settings of a run that affect a single reply, and scoring."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.trajectory import Frozen
from tbench.config.setting import Option
from tbench.config.settings import ModelConfig, RequestsConfig, TasksConfig, protocols

Relevance = Literal["distinct", "occurrences", "literal"]
Conciseness = Literal["step", "linear", "negative"]


class ExtractModelConfig(ModelConfig):
    """Model"""

    max_tokens: int = Field(default=256, ge=1)
    """Maximum number of tokens per reply, including thinking."""


class ExtractAgentConfig(Frozen):
    """Agent"""

    protocol: Annotated[str, Option(metavar="NAME", choices=protocols)] = "thinking-bash"
    """The format of replies."""
    prompt: Annotated[str | None, Option(is_path=True)] = None
    """A file whose blocks replace the protocol's prompts; by default, thinking-bash only sends the request itself."""


class ScoreConfig(Frozen):
    """Scores"""

    relevance: Relevance = "distinct"
    """How relevance counts verbs of the task that the command uses: once each, each occurrence, or as literal text."""
    conciseness: Conciseness = "step"
    """Conciseness of a reply above the length limit: 0 (step), less and less (linear), or below 0 (negative)."""


class ExtractOutputConfig(Frozen):
    """Output"""

    directory: Annotated[str | None, Option(("--output", "-o"), metavar="DIR", daily=True, is_path=True)] = None
    """The extraction's directory, which must be new or empty, except with --resume."""
    min_coverage: float = Field(default=0.0, ge=0, le=1)
    """Exit with 3 if less than this fraction of the requests has a reply."""


class ExtractConfig(Frozen):
    """The configuration of an extraction."""

    tasks: TasksConfig = TasksConfig()
    model: ExtractModelConfig = ExtractModelConfig()
    agent: ExtractAgentConfig = ExtractAgentConfig()
    schedule: RequestsConfig = RequestsConfig()
    score: ScoreConfig = ScoreConfig()
    output: ExtractOutputConfig = ExtractOutputConfig()
