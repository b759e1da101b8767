"""redaction: secrets are removed from messages and tracebacks, similar words are not."""

from __future__ import annotations

from typing import Any

from tbench.runs.redaction import make_redactor
from tbench.tasks.task import Task

KEY = "sk-planted-0815"
TOML = """
[environment]
allow_internet = false
[environment.env]
TOKEN = "${PLANTED_TOKEN}"
PLAIN = "not-a-secret"
[verifier.env]
PASSWORD = "${PLANTED_PASSWORD:-default-password}"
[solution.env]
OTHER = "${PLANTED_OTHER}"
"""


def hide(text: str, *tasks: Task | None, host: dict[str, str]) -> str:
    return make_redactor(tasks, host=host)(text)


def test_the_key_is_hidden_wherever_it_stands() -> None:
    text = f"HTTP 401: no such key {KEY}\n  File '{KEY}.py'"
    assert hide(text, host={"OPENAI_API_KEY": f" {KEY}\n"}) == "HTTP 401: no such key [key]\n  File '[key].py'"


def test_a_placeholder_for_a_key_is_no_secret() -> None:
    for value in ("", "none", "EMPTY"):
        assert hide("EMPTY or none", host={"OPENAI_API_KEY": value}) == "EMPTY or none"


def test_a_password_in_a_url_is_hidden_and_an_address_is_not() -> None:
    assert hide("http://me:pass:word@host:8000/v1", host={}) == "http://[password]@host:8000/v1"
    for text in ("http://host:8000/v1", "git@host:repo", "http://host/a:b@c", "http://host:80/ me:you@there"):
        assert hide(text, host={}) == text


def test_a_tasks_variables_are_hidden_in_its_own_messages(make_task: Any) -> None:
    task = Task.read(make_task(toml=TOML))
    host = {
        "PLANTED_TOKEN": "token-value-1", "PLANTED_PASSWORD": "token-value-1-longer", "PLANTED_OTHER": "solution-value",
        "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    text = "token-value-1, token-value-1-longer, solution-value, not-a-secret, default-password, /usr/bin:/bin"
    hidden = "[PLANTED_TOKEN], [PLANTED_PASSWORD], [PLANTED_OTHER], not-a-secret, default-password, /usr/bin:/bin"
    assert hide(text, task, host=host) == hidden
    assert hide(text, None, host=host) == text


def test_the_variables_of_all_tasks_are_hidden(make_task: Any) -> None:
    toml = '[environment.env]\nTOKEN = "${%s}"\n'
    tasks = [Task.read(make_task(name.lower(), toml=toml % name)) for name in ("ONE", "TWO")]
    host = {"ONE": "first-value", "TWO": "second-value", "THREE": "third-value"}
    assert make_redactor(tasks, host=host)("first-value second-value third-value") == "[ONE] [TWO] third-value"
