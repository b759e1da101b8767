"""Packaged agents that are shell scripts, put into the cache without a registry."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from tbench.agents.packages import Manifest, _directory
from tbench.agents.recipe import PackageSource, Recipe
from tbench.files import write_json
from tbench.sandbox.package import content_digest

CACHED = {"shell-agent": "1.0"}
ASK = r"""#!/opt/tbench/bin/busybox sh
# ask TEXT [KEY]: prints the endpoint's answer to a user's message.
busybox=/opt/tbench/bin/busybox
body="{\"model\": \"any\", \"messages\": [{\"role\": \"user\", \"content\": \"$1\"}]}"
$busybox wget -q -O - --header 'Content-Type: application/json' --header "Authorization: Bearer ${2:-$KEY}" \
    --post-data "$body" "$URL/v1/chat/completions"
"""


def shell_recipe(command: str, name: str = "shell-agent") -> Recipe:
    """A recipe whose command finds `ask` in its package, and URL and KEY in its environment."""
    return Recipe(
        name=name,
        dialect="chat",
        calls_tools=False,
        version="1.0",
        package=PackageSource(npm="shell-agent"),
        command=command,
        environment={"URL": "{url}", "KEY": "{key}", "ASK": "{package}/ask"},
    )


def write_recipe(path: Path, command: str, name: str = "shell-agent") -> Recipe:
    """Write a recipe, put its package into the cache, and return it."""
    recipe = shell_recipe(command, name)
    lines = [f'{name} = "{getattr(recipe, name)}"' for name in ("name", "dialect", "version")]
    table = [f'{name} = "{text}"' for name, text in recipe.environment.items()]
    lines.append("calls_tools = false")
    command_line = f"command = '''{command}'''"
    path.write_text(
        "\n".join([*lines, command_line, "[package]", 'npm = "shell-agent"', "[environment]", *table]) + "\n"
    )
    cache_package(recipe)
    return recipe


def cache_package(recipe: Recipe) -> Manifest:
    """Put a package with the program `ask` into the cache."""
    folder = _directory(recipe)
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "package.tar", "w") as tar:
        member = tarfile.TarInfo("ask")
        member.size, member.mode = len(ASK), 0o755
        tar.addfile(member, io.BytesIO(ASK.encode()))
    manifest = Manifest(
        name=recipe.name,
        version=recipe.version,
        architecture="amd64",
        registry="npm",
        sha256=content_digest(folder / "package.tar"),
        size_bytes=(folder / "package.tar").stat().st_size,
        contains=CACHED,
    )
    write_json(folder / "package.json", manifest.model_dump(mode="json"))
    return manifest
