"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from typing import Any

import click

from tbench.cli.parsing.commands import Argument
from tbench.cli.parsing.values import A_NAME, Integer, Number, OneOf

tasks_argument = click.argument(
    "source",
    cls=Argument,
    metavar="TASKS",
    type=A_NAME,
    default="bundled",
    help="A directory of tasks, one task, or 'bundled'.",
)
task_option = click.option("--task", "-t", multiple=True, help="Only tasks whose name matches this glob (repeatable).")
first_seed_option = click.option("--first-seed", type=Integer(min=0), default=0, help="The first seed.")
base_url_option = click.option(
    "--base-url", envvar="OPENAI_BASE_URL", show_envvar=True, help="The endpoint, e.g. http://localhost:8000/v1."
)
model_option = click.option("--model", "-m", help="Model id; may be left out when the endpoint lists just one.")
extra_body_option = click.option("--extra-body", help="JSON merged into each request, e.g. '{\"top_k\": 20}'.")
chat_template_kwargs_option = click.option(
    "--chat-template-kwargs", help="JSON for the server's template, e.g. '{\"enable_thinking\": false}'."
)
log_level_option = click.option(
    "--log-level",
    type=OneOf("debug", "info", "warning", "error"),
    default="info",
    help="What run.log holds: debug, info, warning or error, and what is above.",
)
request_timeout_option = click.option(
    "--request-timeout", type=Number(min=1), default=600.0, help="Seconds for one request to the endpoint."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")


def one_of(option: str, value: str, known: tuple[str, ...]) -> Any:
    """`value`, if it is known. Raises UsageError."""
    from tbench.errors import UsageError

    if value not in known:
        raise UsageError(f"{option} {value}: unknown; known: {', '.join(known)}")
    return value


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
