"""Consent: what a task takes from tbench's environment, what it does not get, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from tbench.errors import TrialError
from tbench.tasks.consent import VariableRequest, requested_variables, resolve_env, withheld_variables_note
from tbench.tasks.format import TaskFile

HOST = {"HOST_A": "a", "OPENAI_API_KEY": "the-real-key", "EMPTY": ""}


def a_file(**tables: dict[str, str]) -> TaskFile:
    return TaskFile.model_validate({section: {"env": table} for section, table in tables.items()})


def missing(env: dict[str, str], allowed: Any, host: dict[str, str] | None = None) -> str:
    with pytest.raises(TrialError) as caught:
        resolve_env(env, allowed, HOST if host is None else host)
    assert caught.value.type == "env_missing"
    return str(caught.value)


def test_what_is_allowed_comes_from_the_host() -> None:
    env = {"A": "${HOST_A}", "B": "${HOST_B:-b}", "C": "${HOST_A:-other}", "D": "plain", "E": "${HOST_B:-}"}
    assert resolve_env(env, {"HOST_A", "HOST_B"}, HOST) == {"A": "a", "B": "b", "C": "a", "D": "plain", "E": ""}


def test_what_is_not_allowed_has_its_default_whatever_the_host_has() -> None:
    env = {"A": "${HOST_A:-other}", "KEY": "${OPENAI_API_KEY:-}", "D": "plain"}
    assert resolve_env(env, (), HOST) == {"A": "other", "KEY": "", "D": "plain"}
    assert resolve_env(env, {"HOST_B", "HOST", "A", "KEY"}, HOST) == {"A": "other", "KEY": "", "D": "plain"}


def test_only_a_whole_value_is_a_template() -> None:
    env = {"A": "x${HOST_A}", "B": "$HOST_A", "C": "${HOST_A} ", "D": "${not-a-name}"}
    assert resolve_env(env, {"HOST_A"}, HOST) == env


def test_without_a_default_the_key_the_variable_and_the_flag_are_named() -> None:
    env = {"KEY": "${OPENAI_API_KEY}"}
    words = missing(env, ())
    assert words.startswith("KEY = ${OPENAI_API_KEY}: ") and words.endswith("add --allow-env OPENAI_API_KEY")
    assert "the-real-key" not in words
    assert missing(env, (), {}).endswith(
        "add --allow-env OPENAI_API_KEY, and set OPENAI_API_KEY in tbench's environment"
    )
    assert missing(env, {"OPENAI_API_KEY"}, {}).endswith("set OPENAI_API_KEY in tbench's environment")


def test_every_wish_is_found_with_its_key() -> None:
    file = a_file(
        verifier={"KEY": "${A:-}", "PLAIN": "x"}, environment={"KEY": "${B}"}, solution={"OTHER": "${A}", "N": "x${C}"}
    )
    assert list(requested_variables(file)) == [
        VariableRequest("environment.env.KEY", "B", has_default=False),
        VariableRequest("solution.env.OTHER", "A", has_default=False),
        VariableRequest("verifier.env.KEY", "A", has_default=True),
    ]


def test_one_line_names_what_is_set_asked_for_and_not_allowed() -> None:
    files = [
        a_file(verifier={"K": "${OPENAI_API_KEY:-}", "L": "${NOT_SET}"}),
        a_file(environment={"A": "${HOST_A}", "K": "${OPENAI_API_KEY}"}),
    ]
    wished = [wish for file in files for wish in requested_variables(file)]
    assert withheld_variables_note(wished, (), HOST) == (
        "requested by tasks and set here, but not allowed: HOST_A, OPENAI_API_KEY; allow with "
        "--allow-env HOST_A --allow-env OPENAI_API_KEY"
    )
    assert "HOST_A" not in (withheld_variables_note(wished, {"HOST_A"}, HOST) or "")
    assert withheld_variables_note(wished, {"HOST_A", "OPENAI_API_KEY"}, HOST) is None
    assert withheld_variables_note(wished, (), {}) is withheld_variables_note([], (), HOST) is None
