"""`tbench dataset`: list, show and fetch datasets, and compare tasks with their published digests."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbench import exit_codes
from tbench.cli.common import json_option, reject_pull_with_build
from tbench.cli.parsing.commands import LazyGroup, argument, flag, option
from tbench.cli.parsing.configured import ConfiguredCommand, GivenSettings
from tbench.cli.parsing.values import NAME_TYPE, PATH_TYPE
from tbench.cli.printing import print_json, print_line, print_lines, print_progress
from tbench.config.settings import RunConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tbench.datasets.cache import CachedDataset
    from tbench.datasets.known_dataset import Access, KnownDataset
    from tbench.fleet.engines import Engines
    from tbench.tasks.task import Task

COMMANDS = {
    "list": "tbench.cli.dataset:list_datasets",
    "show": "tbench.cli.dataset:show",
    "pull": "tbench.cli.dataset:pull",
    "verify": "tbench.cli.dataset:verify",
}
_ACCESS_SETTINGS = {"tasks.registry", "tasks.offline"}
_PREFETCH_SETTINGS = {
    *("tasks.include", "tasks.exclude", "tasks.limit"),
    *("sandbox.build", "sandbox.pull", "sandbox.pull_concurrency", "sandbox.pull_timeout_sec"),
    *("sandbox.container_proxy", "sandbox.engines"),
}
"""Settings that only affect `--prefetch`: which images to fetch, and how."""
_name = argument("name", "NAME", "A dataset's NAME[@VERSION], or git+URL@REV#FOLDER.", type=str)


@click.group(cls=LazyGroup, table=COMMANDS)
def dataset() -> None:
    """List, show, fetch and verify datasets."""


@click.command("list", cls=ConfiguredCommand, configuration=RunConfig, only=_ACCESS_SETTINGS)
@flag("--all", "Also list datasets that are only on Harbor's hub.", name="everything")
@flag("--json", "Print one JSON array instead of text.", name="as_json")
def list_datasets(given: GivenSettings[RunConfig], everything: bool, as_json: bool) -> None:
    """List the known datasets."""
    from tbench.datasets.resolve import all_datasets, hub_datasets, hub_names

    rows = [_row(each) for each in (*all_datasets(_access(given)), *(hub_datasets() if everything else ()))]
    if as_json:
        print_json(rows)
        return
    if everything:
        print_line(f"source hub: only on Harbor's hub, as of {hub_names().made}", err=True)
    width = max((len(row["title"]) for row in rows), default=0)
    for row in rows:
        tasks = "" if row["tasks"] is None else f"{row['tasks']:,}"
        cached = "cached" if row["cached"] else ""
        print_line(f"{row['title']:{width}}  {tasks:>5}  {cached:6}  {row['source']:6}  {row['description']}".rstrip())


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=_ACCESS_SETTINGS)
@_name
@json_option
def show(name: str, given: GivenSettings[RunConfig], as_json: bool) -> None:
    """Show where a dataset comes from and whether it is cached."""
    row = _row(_known(name, _access(given)))
    if as_json:
        print_json(row)
        return
    for label, value in row.items():
        if value not in (None, [], ""):
            words = ", ".join(map(_piece_words, value)) if isinstance(value, list) else value
            print_line(f"{label.replace('_', ' '):16} {words}")


@click.command(
    cls=ConfiguredCommand,
    configuration=RunConfig,
    only=_ACCESS_SETTINGS | {"tasks.refresh", "sandbox.prefetch"} | _PREFETCH_SETTINGS,
)
@_name
@option("--output -o DIR", "Also copy the tasks into this new directory.", PATH_TYPE)
def pull(name: str, given: GivenSettings[RunConfig], output: Path | None) -> None:
    """Fetch a dataset into the cache and print its directory; options about tasks and images need --prefetch."""
    from tbench.datasets.cache import copy_tasks, require_new
    from tbench.datasets.digests import describe_digests

    config = _config_of_pull(given)
    if output is not None:
        require_new(output)
    entry = _pull(name, _access(given))
    print_line(describe_digests(entry), err=True)
    if output is not None:
        copy_tasks(entry, output)
    has_images = not config.sandbox.prefetch or _prefetch(name, config, entry)
    print_line(str(output or entry.path))
    if not has_images:
        raise click.exceptions.Exit(exit_codes.USAGE)


def _config_of_pull(given: GivenSettings[RunConfig]) -> RunConfig:
    """Return the configuration of a pull. Raises UsageError for options without effect unless --prefetch is given."""
    from tbench.errors import UsageError

    resolved = given.resolve()
    reject_pull_with_build(resolved)
    idle = [
        origin for path, origin in resolved.origins.items() if path in _PREFETCH_SETTINGS and origin.startswith("-")
    ]
    if idle and not resolved.config.sandbox.prefetch:
        raise UsageError(f"{', '.join(idle)}: no effect without --prefetch; add it, or leave these out")
    return resolved.config


def _prefetch(name: str, config: RunConfig, entry: CachedDataset) -> bool:
    """Pull or build the images of a dataset's chosen tasks; return whether all of them exist afterwards."""
    from tbench.cli.execute import tasks_as_configured
    from tbench.cli.interruption import run_interruptibly
    from tbench.fleet.engines import Engines
    from tbench.runs.preflight import not_runnable_tasks, refusal_words
    from tbench.tasks.sources import TaskChoice, read_paths

    chosen = config.tasks
    choice = TaskChoice(chosen.include, chosen.exclude, chosen.limit)
    tasks = tasks_as_configured(read_paths(entry.paths, choice, name), config)
    refused = not_runnable_tasks(tasks, config.agent.name)
    print_lines((refusal_words(task, error) for task, error in refused.items()), err=True)
    able = [task for task in tasks.tasks if task.name not in refused]
    with contextlib.closing(Engines.connect(config.sandbox)) as engines:
        return run_interruptibly(_get_images(engines, able, config))


async def _get_images(engines: Engines, tasks: Sequence[Task], config: RunConfig) -> bool:
    from tbench.runs.preflight import get_ready
    from tbench.runs.run import require_capabilities
    from tbench.sandbox.backend import SandboxSettings, open_backend
    from tbench.sandbox.container_proxy import container_proxy

    sandbox = config.sandbox
    settings = SandboxSettings("pull", sandbox, container_proxy=container_proxy(sandbox.container_proxy))
    backend = engines.backend(settings)
    require_capabilities(config.verify, sandbox, backend)
    async with open_backend(backend, print_progress):
        return await get_ready(backend, tasks, print_progress, offline=config.tasks.offline, prefetch=True)


@click.command(cls=ConfiguredCommand, configuration=RunConfig, only=_ACCESS_SETTINGS)
@argument("tasks", "TASKS", "A directory of tasks, or a dataset's name.", type=NAME_TYPE)
@option("--against FILE", "A dataset.toml with the digests.", PATH_TYPE)
def verify(tasks: str, given: GivenSettings[RunConfig], against: Path | None) -> None:
    """Compare tasks with their published digests; exit with 2 if one differs or is missing."""
    from tbench.datasets.digests import verify_directory, verify_entry
    from tbench.datasets.reference import parse_reference

    reference = parse_reference(tasks)
    if isinstance(reference, Path):
        found = verify_directory(reference, against)
    else:
        found = verify_entry(_pull(tasks, _access(given)), against)
    print_lines(found.lines)
    print_line(found.words)
    if found.lines:
        raise click.exceptions.Exit(exit_codes.USAGE)


def _access(given: GivenSettings[RunConfig]) -> Access:
    from tbench.datasets.known_dataset import Access

    chosen = given.resolve().config.tasks
    return Access(chosen.registry, chosen.refresh, chosen.offline, print_progress)


def _known(name: str, access: Access) -> KnownDataset:
    from tbench.datasets.reference import parse_reference
    from tbench.datasets.resolve import find_dataset
    from tbench.errors import UsageError

    reference = parse_reference(name)
    if isinstance(reference, Path):
        raise UsageError(f"{name}: is a path; give a dataset's NAME[@VERSION], or git+URL@REV#FOLDER")
    return find_dataset(reference, access)


def _pull(name: str, access: Access) -> CachedDataset:
    from tbench.datasets.cache import DatasetCache, cache_directory
    from tbench.datasets.pull import pull as pull_into
    from tbench.errors import UsageError

    known = _known(name, access)
    if known.directories:
        raise UsageError(f"{known.title}: its tasks are local already, in {known.directories[0].parent}")
    cache = DatasetCache(cache_directory())
    return pull_into(known, cache, access.say, refresh=access.refresh, offline=access.offline)


def _row(known: KnownDataset) -> dict[str, Any]:
    """Return a dataset's facts; the keys are stable."""
    from tbench.datasets.cache import DatasetCache, cache_directory

    entry = DatasetCache(cache_directory()).newest(known)
    return {
        "title": known.title,
        "name": known.name,
        "version": known.version,
        "aliases": list(known.aliases),
        "description": known.description,
        "source": known.source,
        "repositories": [
            {"url": piece.url, "revision": piece.revision, "folder": piece.folder} for piece in known.pieces
        ],
        "tasks": len(entry.hashes) if entry else known.tasks,
        "trials_per_task": known.trials_per_task,
        "cached": str(entry.path) if entry else None,
        "published_digests": len(entry.published) if entry else None,
    }


def _piece_words(piece: Any) -> str:
    """Return a repository as a user would name it, and other values as text."""
    if not isinstance(piece, dict):
        return str(piece)
    from tbench.datasets.reference import without_login

    folder = f"#{piece['folder']}" if piece["folder"] else ""
    return f"git+{without_login(piece['url'])}@{piece['revision']}{folder}"
