"""`tbench agent`: list, pull and show packaged agents."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tbench.cli.common import json_option
from tbench.cli.parsing.commands import LazyGroup, TbenchCommand, argument, option
from tbench.cli.parsing.values import NAME_TYPE
from tbench.cli.printing import print_json, print_line, print_progress
from tbench.text import size_text

if TYPE_CHECKING:
    from tbench.agents.packages import Manifest
    from tbench.agents.recipe import Recipe

COMMANDS = {
    "list": "tbench.cli.agents.commands:list_agents",
    "pull": "tbench.cli.agents.commands:pull",
    "show": "tbench.cli.agents.commands:show",
}
_name = argument("name", "NAME", "An agent's name, or a recipe.toml.", type=NAME_TYPE)
_version = option("--agent-version VERSION", "A version other than the recipe's.")


@click.group(cls=LazyGroup, table=COMMANDS)
def agent() -> None:
    """List, pull and show packaged agents."""


@click.command("list", cls=TbenchCommand)
@json_option
def list_agents(as_json: bool) -> None:
    """List the known agents and their versions."""
    from tbench.agents.packages import find_package
    from tbench.agents.recipe import known_recipes, load_recipe

    recipes = [load_recipe(name) for name in known_recipes()]
    rows = [
        {"name": each.name, "version": each.version, "dialect": each.dialect, "about": each.about}
        | {"pulled": find_package(each) is not None}
        for each in recipes
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        pulled = "pulled" if row["pulled"] else ""
        print_line(f"{row['name']:16} {row['version']:10} {row['dialect']:10} {pulled:7} {row['about']}".rstrip())


@click.command(cls=TbenchCommand)
@_name
@_version
def pull(name: str, agent_version: str | None) -> None:
    """Fetch an agent's package from PyPI or npm into the cache. Afterwards, no registry is needed."""
    from tbench.agents.recipe import load_recipe

    manifest = fetch(load_recipe(name, agent_version))
    print_line(f"{manifest.title}: {size_text(manifest.size_bytes)}, sha256 {manifest.sha256[:16]}")


def fetch(recipe: Recipe) -> Manifest:
    """Fetch the package of a recipe into the cache. Raises UsageError."""
    from tbench.agents.packages import pull_package
    from tbench.cli.interruption import run_interruptibly
    from tbench.sandbox.docker.engine import Engine
    from tbench.sandbox.docker.packages import add_runtime

    with contextlib.closing(Engine.connect()) as engine:
        return run_interruptibly(pull_package(recipe, partial(add_runtime, engine, print_progress), print_progress))


@click.command(cls=TbenchCommand)
@_name
@_version
@json_option
def show(name: str, agent_version: str | None, as_json: bool) -> None:
    """Show an agent's recipe and the contents of its package."""
    from tbench.agents.packages import find_package
    from tbench.agents.recipe import load_recipe

    recipe = load_recipe(name, agent_version)
    found = find_package(recipe)
    row = _row(recipe, None if found is None else found[1])
    if as_json:
        print_json(row)
        return
    for label, value in row.items():
        if isinstance(value, dict):
            value = ", ".join(
                f"{key} {text}" if label == "contains" else f"{key}={text}" for key, text in value.items()
            )
        print_line(f"{label.replace('_', ' '):12} {str(value).strip()}".rstrip())


def _row(recipe: Recipe, manifest: Manifest | None) -> dict[str, Any]:
    source = recipe.package
    row: dict[str, Any] = {
        "name": recipe.name,
        "about": recipe.about,
        "version": recipe.version,
        "dialect": recipe.dialect,
        "package": f"{source.registry}: {source.requirement(recipe.version)}",
        "command": recipe.command.strip(),
        "environment": recipe.environment,
    }
    if manifest is None:
        return {**row, "pulled": f"no: tbench agent pull {recipe.name}"}
    size = {"size_bytes": manifest.size_bytes, "sha256": manifest.sha256}
    return {**row, "pulled": "yes", **size, "contains": manifest.contains}
