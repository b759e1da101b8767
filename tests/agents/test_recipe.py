"""Recipes of agents: what they may say, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import tbench
from shell_agents import write_recipe
from tool_calling_server import ToolCallingServer

from tbench.agents.recipe import PLACES, Recipe, is_recipe, known_recipes, load_recipe
from tbench.errors import UsageError

RECIPE = """
name = "my-agent"
dialect = "chat"
version = "1.2"
command = "{package}/run --model {model} --task {instruction}"
[package]
npm = "my-agent"
[environment]
URL = "{url}/v1"
"""


def written(folder: Path, text: str = RECIPE) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", known_recipes())
def test_every_recipe_that_comes_along_can_be_filled_in(name: str) -> None:
    recipe = load_recipe(name)
    assert (recipe.name, recipe.title) == (name, f"{name}@{recipe.version}")
    command, environment = recipe.fill({place: f"<{place}>" for place in PLACES})
    assert "<instruction>" in command
    assert any("<url>" in text for text in (command, *environment.values()))
    assert any("<key>" in text for text in (command, *environment.values()))


def test_a_file_is_a_recipe_and_fills_its_command(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path))
    command, environment = recipe.fill(
        dict.fromkeys(PLACES, "") | {"package": "/p", "model": "m", "instruction": "'do'"}
    )
    assert (command, environment) == ("/p/run --model m --task 'do'", {"URL": "/v1"})


def test_another_version_is_another_agent(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path))
    other = recipe.at("2.0")
    assert (other.title, other.package.requirement(other.version)) == ("my-agent@2.0", "my-agent@2.0")
    assert other.digest != recipe.digest
    assert recipe.at(None) == recipe.at("1.2") == recipe
    with pytest.raises(UsageError, match="--agent-version"):
        recipe.at("../../etc")


def test_texts_for_people_do_not_make_another_agent(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path))
    assert recipe.model_copy(update={"about": "better than ever"}).digest == recipe.digest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "cannot be read"),
        (RECIPE.replace('"chat"', '"smoke signals"'), "dialect: Input should be 'chat', 'responses' or 'messages'"),
        (RECIPE.replace("{model}", "{modle}"), "{modle} is unknown; known: instruction, url"),
        (RECIPE.replace("{url}", "{0}"), "URL: {0} is unknown"),
        (RECIPE.replace("--task {instruction}", ""), "command: has no {instruction}"),
        (RECIPE.replace("{model}", "{model"), "for braces"),
        (RECIPE.replace('npm = "my-agent"', ""), "package: name either pypi or npm"),
        (RECIPE.replace('npm = "my-agent"', 'npm = "a"\npypi = "b"'), "package: name either pypi or npm"),
        (RECIPE.replace('npm = "my-agent"', 'pypi = "a"\nnode = "22"'), "package: node: only for an agent from npm"),
        (RECIPE.replace('"my-agent"', '"../evil"', 1), "use lower-case letters"),
        (RECIPE.replace('"my-agent"', '"oracle"', 1), "use lower-case letters"),
        (RECIPE.replace('"1.2"', '"1/2"'), "is not a version"),
        (RECIPE + "TYPO = 5\n", "environment.TYPO"),
    ],
)
def test_a_wrong_recipe_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_recipe(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"--agent {path}: ")
    assert "\n" not in str(caught.value)


def test_a_name_that_is_no_recipe_is_refused() -> None:
    with pytest.raises(UsageError, match="known: aider, claude-code, codex, mini-swe-agent, opencode, qwen-code"):
        load_recipe("nobody.toml")
    assert [is_recipe(name) for name in ("codex", "oracle", "model", "x.toml", "a:B")] == [
        True,
        False,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--agent", "codex"], "tbench agent pull codex --agent-version 0.169.0"),
        (["--agent", "codex", "--agent-version", "0.1"], "tbench agent pull codex --agent-version 0.1"),
        (["--agent", "nop", "--agent-version", "1"], "--agent-version: no effect with --agent nop"),
        (["--agent", "codex", "--protocol", "bash-tool"], "agent.protocol: only for tbench's own agent"),
        (["--agent", "codex", "--render", "chatml"], "calls tools, which needs --render server"),
        (["--agent", "missing.toml"], "there is no such recipe"),
    ],
)
def test_a_run_is_refused_before_anything_starts(tmp_path: Path, arguments: list[str], words: str) -> None:
    url = [] if "nop" in arguments else ["--base-url", "http://127.0.0.1:9/v1"]
    done = tbench("run", "-t", "tidy-notes", *url, *arguments, directory=tmp_path, TBENCH_CACHE=str(tmp_path))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.engine
@pytest.mark.parametrize("calls_tools", [True, False])
def test_a_server_that_refuses_tool_calls_ends_the_run_before_it_starts(tmp_path: Path, calls_tools: bool) -> None:
    with pytest.MonkeyPatch.context() as patch, ToolCallingServer([]) as server:
        patch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
        server.refuses_tools = True
        recipe = tmp_path / "shell.toml"
        write_recipe(recipe, "true {instruction}")
        if calls_tools:
            recipe.write_text(recipe.read_text().replace("calls_tools = false\n", ""))
        command = ("run", "-t", "tidy-notes", "--dry-run", "--agent", str(recipe), "--base-url", server.base_url)
        done = tbench(*command, directory=tmp_path, TBENCH_CACHE=str(tmp_path / "cache"))
    refusal = "works by tool calls, which the server refuses: "
    assert (refusal in done.stderr, done.returncode == 2) == (calls_tools, calls_tools)
    if calls_tools:
        assert len(done.stderr.strip().splitlines()) == 1
        assert "--tool-call-parser" in done.stderr


def test_agents_are_listed_and_shown(tmp_path: Path) -> None:
    listed = tbench("agent", "list", TBENCH_CACHE=str(tmp_path))
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(known_recipes())
    shown = tbench("agent", "show", "codex", "--agent-version", "0.9", TBENCH_CACHE=str(tmp_path))
    assert "npm: @openai/codex@0.9" in shown.stdout
    assert "tbench agent pull codex" in shown.stdout


def test_a_recipe_knows_where_its_package_is_from(tmp_path: Path) -> None:
    recipe = Recipe.model_validate(load_recipe("mini-swe-agent").model_dump())
    assert (recipe.package.registry, recipe.package.requirement("1")) == ("pypi", "mini-swe-agent==1")
