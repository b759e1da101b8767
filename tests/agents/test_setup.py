"""setup: resolving a configuration's agent, and refusals in one line before anything starts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from run_plans import a_config

from harness.fakes import ScriptedModel
from harness.limits import ShellMode
from harness.protocols import PROTOCOLS, load_protocol
from tbench.agents.recipe import is_recipe
from tbench.agents.setup import AgentSetup, load_agent_class
from tbench.config.layers import PRESETS
from tbench.errors import UsageError

URL = "http://localhost:1"
BASH = [name for name in PROTOCOLS if load_protocol(name).types_commands]
KEYSTROKES = sorted(PROTOCOLS.keys() - BASH)


def setup(agent: str = "model", **settings: Any) -> AgentSetup:
    config = a_config(**{"base_url": URL, "name": agent} | settings)
    return AgentSetup.from_config(config.agent, config.model, config.limits)


def refusal(agent: str = "model", **settings: Any) -> str:
    with pytest.raises(UsageError) as caught:
        setup(agent, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["oracle", "nop"])
def test_oracle_and_nop_need_no_model(name: str) -> None:
    made = setup(name, base_url=None)
    assert (made.name, made.may_use_model, made.maker(None)().name) == (name, False, name)


@pytest.mark.parametrize(
    ("agent", "settings", "said"),
    [
        ("clippy", {}, "--agent clippy: unknown; known: model, oracle, nop, "),
        ("model", {"base_url": None}, "no endpoint: give --base-url"),
        ("model", {"protocol": "morse"}, "--protocol: unknown protocol 'morse'"),
        ("model", {"prompt": "/nowhere"}, "--prompt /nowhere: "),
        (
            "model",
            {"shell_state": "fresh"},
            "--shell-state is for the bash protocols: bash-block, bash-tool, thinking-bash; keystrokes-json types keys",
        ),
        ("model", {"preset": "terminus-2", "shell_state": "persistent"}, "--shell-state is for the bash protocols: "),
        *(("model", {"protocol": name, "template": "chatml"}, "which needs --render server")
          for name in PROTOCOLS if load_protocol(name).tools),
    ],
)  # fmt: skip
def test_an_impossible_choice_is_refused_in_one_line(agent: str, settings: dict[str, Any], said: str) -> None:
    assert said in refusal(agent, **settings)


@pytest.mark.parametrize("name", [name for name in PRESETS if not is_recipe(name)])
def test_the_name_of_a_harness_leads_to_its_preset(name: str) -> None:
    assert f"give --preset {name} instead" in refusal(name)


# -- the shell state ------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", BASH)
def test_a_bash_protocol_keeps_its_shell_unless_set_otherwise(protocol: str) -> None:
    assert setup(protocol=protocol).shell_state == "persistent"
    assert setup(protocol=protocol, shell_state="fresh").shell_state == "fresh"


@pytest.mark.parametrize("protocol", KEYSTROKES)
def test_keystrokes_have_no_shell_state_also_where_the_preset_has_one(protocol: str) -> None:
    assert setup(protocol=protocol).resolve_names().shell_state is None
    assert setup(preset="mini-swe-agent", protocol=protocol).resolve_names().shell_state is None


@pytest.mark.parametrize("state", get_args(ShellMode))
def test_the_terminal_gets_the_shell_state(own: str, state: ShellMode) -> None:
    endpoint: Any = ScriptedModel([])
    for made in (setup(own, shell_state=state), setup(protocol="bash-block", shell_state=state)):
        agent: Any = made.maker(endpoint)()
        assert agent.shell_mode == state


# -- a user's own agent ----------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_agent_of_mine.py").write_text("class Idle:\n    async def run(self, assignment):\n        pass\n")
    return "own_agent_of_mine:Idle"


def test_a_users_agent_may_do_without_an_endpoint(own: str) -> None:
    made = setup(own, base_url=None, steps=5)
    assert (made.name, made.protocol, made.may_use_model) == (own, None, False)
    assert len(made.resolve_names().agent_sha256 or "") == 64


def test_a_users_agent_uses_the_endpoint_that_is_given(own: str) -> None:
    assert setup(own, temperature=0.1).may_use_model


def test_settings_of_the_built_in_loop_are_refused_with_a_users_agent(own: str) -> None:
    words = refusal(own, protocol="bash-block", on_overflow="summarize")
    assert re.search("agent.protocol, limits.on_overflow: only for tbench's own agent; remove them", words)
    assert setup(own, preset="terminus-2").name == own


# user_agent: a user's class is found by module:Class; what is wrong with it is said in one line, before a run.

GOOD = "class Agent:\n    async def run(self, assignment):\n        pass\n"
Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module into the current directory; the import path is restored afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "nothing-here"))

    def file(name: str, code: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)

    return file


def test_a_class_in_the_current_directory_is_found_with_the_hash_of_its_file(write: Write) -> None:
    write("ua_good.py", GOOD)
    found = load_agent_class("ua_good:Agent")
    assert found.name == "ua_good:Agent"
    assert found.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()
    assert type(found.make()).__name__ == "Agent"


def test_a_class_in_a_package_is_found(write: Write) -> None:
    write("ua_package/__init__.py", "")
    write("ua_package/inner.py", GOOD)
    assert load_agent_class("ua_package.inner:Agent").name == "ua_package.inner:Agent"


@pytest.mark.parametrize("name", [":Agent", "a:", "a b:Agent", "a/b.py:Agent", "a:B:C", "a..b:C"])
def test_a_malformed_class_name_is_refused_with_the_form(name: str) -> None:
    with pytest.raises(UsageError, match="must look like package"):
        load_agent_class(name)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import surely_missing_module\n", "importing it failed: ModuleNotFoundError: .*ua_case.*:1"),
        ("1 / 0\n", r"importing it failed: ZeroDivisionError: division by zero \(.*ua_case_\d+.py:1\)"),
        ("def f(:\n", r"importing it failed: SyntaxError: .*ua_case_\d+.py:1"),
        ("raise SystemExit(3)\n", "importing it failed: SystemExit: 3"),
        ("x = 1\n", r"ua_case_\d+.py has no Agent"),
        ("Agent = 5\n", "is not a class"),
        ("class Agent:\n    pass\n", r"has no `async def run\(self, assignment\)`"),
        ("class Agent:\n    def run(self, assignment): pass\n", "has no `async def run"),
        ("class Agent:\n    async def run(self): pass\n", r"run\(\) cannot be called with one assignment"),
        (
            "class Agent:\n    def __init__(self, key): pass\n    async def run(self, assignment): pass\n",
            "cannot be made without arguments",
        ),
    ],
)
def test_an_unusable_class_is_refused_in_one_line(write: Write, code: str, said: str) -> None:
    module = f"ua_case_{abs(hash(code))}"
    write(f"{module}.py", code)
    with pytest.raises(UsageError, match=said) as caught:
        load_agent_class(f"{module}:Agent")
    assert "\n" not in str(caught.value)


def test_a_missing_module_is_named_with_the_searched_places(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"there is no module 'ua_nowhere' in {tmp_path}"):
        load_agent_class("ua_nowhere:Agent")
    write("ua_half/__init__.py", "")
    with pytest.raises(UsageError, match=r"there is no module 'ua_half\.missing'"):
        load_agent_class("ua_half.missing:Agent")
