"""Packages in the cache: how they are found, told apart, and had."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from run_plans import a_config, a_plan
from shell_agents import CACHED, cache_package, shell_recipe, write_recipe

from tbench.agents.packages import find_package, pull_package, require_package
from tbench.agents.recipe import PackageSource
from tbench.agents.setup import AgentSetup
from tbench.errors import UsageError
from tbench.runs.plan import sandbox_settings
from tbench.sandbox.package import AgentPackage, content_digest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "agents"


def archive(path: Path, files: Mapping[str, bytes], mtime: int = 0, mode: int = 0o644) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), mtime, mode
            tar.addfile(member, io.BytesIO(content))
    return path


def test_equal_content_has_an_equal_hash_whatever_its_times_and_order(tmp_path: Path) -> None:
    one = content_digest(archive(tmp_path / "1.tar", {"a": b"1", "b": b"2"}))
    assert content_digest(archive(tmp_path / "2.tar", {"b": b"2", "a": b"1", "x.pyc": b"now"}, mtime=9)) == one
    for other in ({"a": b"1", "b": b"3"}, {"a": b"1", "c": b"2"}, {"a": b"1"}):
        assert content_digest(archive(tmp_path / "3.tar", other)) != one
    assert content_digest(archive(tmp_path / "4.tar", {"a": b"1", "b": b"2"}, mode=0o755)) != one


def test_a_package_is_found_again_and_another_version_is_not(cache: Path) -> None:
    recipe = shell_recipe("true {instruction}")
    assert find_package(recipe) is None
    made = cache_package(recipe)
    package, manifest = require_package(recipe, "x")
    assert (package.title, package.sha256, manifest.contains) == ("shell-agent@1.0", made.sha256, CACHED)
    assert find_package(recipe.at("2.0")) is None
    other_source = recipe.model_copy(update={"package": PackageSource(npm="shell-agent", leave_out=("docs",))})
    assert find_package(other_source) is None


def test_a_package_that_has_to_be_pulled_is_said_to(cache: Path) -> None:
    with pytest.raises(UsageError, match=r"run: tbench agent pull my\.toml --agent-version 1\.0"):
        require_package(shell_recipe("true {instruction}"), "my.toml")


@pytest.mark.parametrize("damage", ["package.tar", "package.json"])
def test_a_damaged_package_is_refused(cache: Path, damage: str) -> None:
    recipe = shell_recipe("true {instruction}")
    cache_package(recipe)
    (folder,) = cache.iterdir()
    (folder / damage).write_bytes(b"{")
    with pytest.raises(UsageError, match="remove"):
        find_package(recipe)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def no_runtime(packages: Path, archive: Path) -> None:
    raise AssertionError("nothing in it needs a loader")


def pretend(folder: Path, program: str, text: str) -> None:
    path = folder / program
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


INSTALLS = """
while [ "$1" != --prefix ]; do shift; done
cd "$2" && mkdir -p node_modules/shell-agent/bin node_modules/shell-agent/docs node_modules/other
echo run > node_modules/shell-agent/bin/run && chmod 700 node_modules/shell-agent/bin/run
echo much > node_modules/shell-agent/docs/a
echo '{"packages": {"": {}, "node_modules/shell-agent": {"version": "1.0"}, "node_modules/other": {"version": "3"},
  "node_modules/for-windows": {"version": "9"}}}' > package-lock.json
"""


async def test_a_pulled_package_holds_what_npm_installed_less_what_is_left_out(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    pretend(tmp_path, "npm", INSTALLS)
    source = PackageSource(npm="shell-agent", leave_out=("shell-agent/docs",))
    recipe = shell_recipe("true {instruction}").model_copy(update={"package": source})
    said: list[str] = []
    manifest = await pull_package(recipe, no_runtime, said.append)
    assert manifest.contains == {"shell-agent": "1.0", "other": "3"}
    assert said == ["agent: asking npm for shell-agent@1.0"]
    package, _ = require_package(recipe, "x")
    with tarfile.open(package.archive) as tar:
        names = tar.getnames()
        program = tar.getmember("node_modules/shell-agent/bin/run")
    assert program.mode & stat.S_IXOTH
    assert "node_modules/shell-agent/docs" not in names
    assert package.sha256 == manifest.sha256
    assert [name.startswith(".") for name in names_in(cache)] == [False]


async def test_a_package_that_is_in_the_cache_is_asked_for_again_only_after_it_was_removed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    pretend(tmp_path, "npm", INSTALLS)
    source = PackageSource(npm="shell-agent")
    recipe = shell_recipe("true {instruction}").model_copy(update={"package": source})
    manifest = await pull_package(recipe, no_runtime, lambda _: None)
    said: list[str] = []
    assert await pull_package(recipe, no_runtime, said.append) == manifest
    (name,) = names_in(cache)
    assert str(cache / name) in said.pop()
    shutil.rmtree(cache / name)
    assert (await pull_package(recipe, no_runtime, said.append)).sha256 == manifest.sha256
    assert said == ["agent: asking npm for shell-agent@1.0"]


INSTALLS_PROGRAMS = """
while [ "$1" != --prefix ]; do shift; done
mkdir -p "$2/node_modules/shell-agent" && cd "$2" && echo "$@" > node_modules/asked
for name in dynamic static; do cp /bin/true "node_modules/shell-agent/$name"; done
cp "$STATIC" node_modules/shell-agent/static && ln -s dynamic node_modules/shell-agent/link
echo '{"packages": {"node_modules/shell-agent": {"version": "1.0"}}}' > package-lock.json
"""


def without_loader(path: Path) -> bytes:
    """Write a program that names no loader."""
    program = bytearray(Path("/bin/true").read_bytes())
    start, size, count = (int.from_bytes(program[at : at + 2], "little") for at in (32, 54, 56))
    for at in range(start, start + size * count, size):
        if program[at] == 3:
            program[at] = 0
    path.write_bytes(program)
    return bytes(program)


@pytest.mark.slow
async def test_programs_for_glibc_get_the_loader_that_comes_along(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    static = without_loader(tmp_path / "static")
    monkeypatch.setenv("STATIC", str(tmp_path / "static"))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    pretend(tmp_path, "npm", INSTALLS_PROGRAMS)
    seen: dict[str, bytes] = {}

    async def add_runtime(packages: Path, archive: Path) -> None:
        with tarfile.open(packages) as tar:
            seen.update({member.name: tar.extractfile(member).read() for member in tar if member.isreg()})  # type: ignore[union-attr]
        shutil.copy(packages, archive)

    source = PackageSource(npm="shell-agent", node="22.1.0")
    recipe = shell_recipe("true {instruction}").model_copy(update={"package": source})
    try:
        await pull_package(recipe, add_runtime, lambda _: None)
    except UsageError as error:
        if "cannot be had: pip" not in str(error):
            raise
        pytest.skip(str(error))
    folder = "node_modules/shell-agent"
    assert b"/opt/tbench/agent/shared/ld.so\0" in seen[f"{folder}/dynamic"]
    assert seen[f"{folder}/static"] == static
    assert b" node-linux-" in seen["node_modules/asked"]
    assert b"@22.1.0" in seen["node_modules/asked"]


NO_SUCH_VERSION = """
echo 'npm error code ETARGET'
echo 'npm error notarget No match found for version 99'
echo 'npm error A complete log of this run can be found in: /root/.npm/_logs/x.log'
exit 1
"""


async def test_what_the_registry_lacks_is_said_in_its_clients_words(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    pretend(tmp_path, "npm", NO_SUCH_VERSION)
    with pytest.raises(
        UsageError, match=r"shell-agent@99: cannot be had: npm ended with 1: npm error notarget No match"
    ):
        await pull_package(shell_recipe("true {instruction}").at("99"), no_runtime, lambda _: None)
    assert names_in(cache) == []


async def test_a_missing_client_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="there is no npm here"):
        await pull_package(shell_recipe("true {instruction}"), no_runtime, lambda _: None)


def test_machines_with_an_engine_mount_packages_and_others_are_refused() -> None:
    package = AgentPackage("shell-agent@1.0", Path("package.tar"), "0" * 64, "amd64")
    with pytest.raises(UsageError, match="needs a container engine; leave out --engine oci:"):
        sandbox_settings(a_plan(agent="codex", engines=("oci:",)), package=package)
    assert sandbox_settings(a_plan(agent="oracle", engines=("oci:",))).package is None
    for machines in ({"engines": ("ssh://a", "ssh://b")}, {"ray": "auto"}, {}):
        assert sandbox_settings(a_plan(agent="codex", **machines), package=package).package == package


def test_the_manifest_is_json_for_people(cache: Path) -> None:
    cache_package(shell_recipe("true {instruction}"))
    (folder,) = cache.iterdir()
    assert json.loads((folder / "package.json").read_text())["name"] == "shell-agent"


def test_rules_may_allow_an_agents_commands_and_people_too(tmp_path: Path) -> None:
    recipe, rules = tmp_path / "shell.toml", tmp_path / "rules.txt"
    write_recipe(recipe, ": {instruction}")
    rules.write_text("ls\n")

    def setup(approve: str) -> AgentSetup:
        config = a_config(base_url="http://localhost:1", name=str(recipe), approve=approve)
        return AgentSetup.from_config(config.agent, config.model, config.limits)

    made = setup(f"allowlist={rules}")
    assert made.approval is not None and not made.approval.asks
    assert made.resolve_names().approval == made.approval.fingerprint
    assert (asking := setup("ask").approval) is not None and asking.asks
