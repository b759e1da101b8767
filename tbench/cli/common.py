"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Tasks = Annotated[
    str, typer.Argument(metavar="TASKS", help="A directory of tasks, one task, or 'bundled'.", show_default=True)
]
TaskPatterns = Annotated[
    list[str] | None,
    typer.Option("--task", "-t", help="Only tasks whose name matches this glob (repeatable)."),
]
FirstSeed = Annotated[int, typer.Option(min=0, help="The first seed.")]
BaseUrl = Annotated[
    str | None, typer.Option(envvar="OPENAI_BASE_URL", help="The endpoint, e.g. http://localhost:8000/v1.")
]
Model = Annotated[
    str | None, typer.Option("--model", "-m", help="Model id; may be left out when the endpoint lists just one.")
]
ExtraBody = Annotated[str | None, typer.Option(help="JSON merged into each request, e.g. '{\"top_k\": 20}'.")]
ChatTemplateKwargs = Annotated[
    str | None, typer.Option(help="JSON for the server's template, e.g. '{\"enable_thinking\": false}'.")
]
LogLevel = Annotated[str, typer.Option(help="What run.log holds: debug, info, warning or error, and what is above.")]
RequestTimeout = Annotated[float, typer.Option(min=1, help="Seconds for one request to the endpoint.")]


def one_of(option: str, value: str, known: tuple[str, ...]) -> Any:
    """`value`, if it is known. Raises UsageError."""
    from tbench.errors import UsageError

    if value not in known:
        raise UsageError(f"{option} {value}: unknown; known: {', '.join(known)}")
    return value


def log_level_of(value: str) -> str:
    """`value`, if it is a level of run.log. Raises UsageError."""
    return str(one_of("--log-level", value, ("debug", "info", "warning", "error")))


def given(**values: Any) -> dict[str, Any]:
    """The values that the user gave: only these win over a preset."""
    return {name: value for name, value in values.items() if value is not None}


def json_object(option: str, text: str | None, example: str) -> dict[str, Any] | None:
    import json

    from tbench.errors import UsageError

    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{option}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{option}: must be a JSON object such as {example}")
    return value
