"""Puts the shards of a replay together in one run directory. The shards are only read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.files import is_unused, write_atomically, write_json
from tbench.proxies.datasets.records import Record
from tbench.proxies.replay.responses import ReplayManifest
from tbench.proxies.replay.run_files import (
    MANIFEST_NAME,
    RESPONSES_NAME,
    RESULT_NAME,
    generation_seconds,
    planned,
    read_manifest,
    read_responses,
)
from tbench.proxies.replay.scoring.parser import DEFAULT_REVISION, Revision
from tbench.proxies.replay.scoring.result import write_result
from tbench.proxies.replay.scoring.score_run import dataset_of, score_directory
from tbench.text import names_shown

_MAY_DIFFER = frozenset(
    {"shard_index", "created_at", "base_urls", "served", "records", "problems", "prompt_sha256", "dataset"}
)
"""Fields of a manifest that may differ between shards; the dataset itself is compared by its sha256."""
_SERVED = ("id", "root", "parent", "max_model_len")
"""Fields of the served model that must not differ; the others are times and random names."""


def merge(
    directories: Sequence[Path],
    output: Path,
    dataset_path: Path | None = None,
    revision: Revision = DEFAULT_REVISION,
) -> dict[str, Any]:
    """Write `output` with the replies of all shards, scored; returns the result. Raises UsageError, OSError.

    Steps that a shard has no reply for are counted in the result's coverage; a shard that is missing or given twice,
    or a reply to another shard's step, is refused.
    """
    if not is_unused(output):
        raise UsageError(f"{output}: is not empty; name a new directory with --output")
    _check_distinct(directories)
    manifests = {directory: read_manifest(directory) for directory in directories}
    _check_same(manifests)
    shards = _by_index(manifests)
    first = shards[0]
    _check_steps(shards, manifests, dataset_of(first, manifests[first], dataset_path).records)
    write_json(output / MANIFEST_NAME, _merged(shards, manifests).model_dump(mode="json"))
    write_atomically(output / RESPONSES_NAME, b"".join(_lines(directory) for directory in shards))
    times = [seconds for directory in shards if (seconds := generation_seconds(directory)) is not None]
    result = score_directory(
        output,
        dataset_path,
        revision,
        gen_time_sec=max(times) if len(times) == len(shards) else None,
        merged_shards=tuple(map(str, shards)),
    )
    write_result(output / RESULT_NAME, result)
    return result


def _check_distinct(directories: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for directory in directories:
        if directory.resolve() in seen:
            raise UsageError(f"{directory}: is given twice; give each shard once")
        seen.add(directory.resolve())


def _check_same(manifests: Mapping[Path, ReplayManifest]) -> None:
    (first, ours), *others = manifests.items()
    for directory, theirs in others:
        differing = [
            f"{key} ({_short(getattr(ours, key))} there, {_short(getattr(theirs, key))} here)"
            for key in ReplayManifest.model_fields
            if key not in _MAY_DIFFER and getattr(ours, key) != getattr(theirs, key)
        ]
        differing += [
            f"served.{key} ({_short(a)} there, {_short(b)} here)"
            for key in _SERVED
            if (a := (ours.served or {}).get(key)) != (b := (theirs.served or {}).get(key))
        ]
        if differing:
            raise UsageError(f"{directory}: is not of the same run as {first}: it differs in {'; '.join(differing)}")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:40]} … {text[-15:]}"


def _by_index(manifests: Mapping[Path, ReplayManifest]) -> list[Path]:
    """The directories in the order of their shards. Raises UsageError unless each shard is there once."""
    found: dict[int, Path] = {}
    for directory, manifest in manifests.items():
        index, count = manifest.shard_index, manifest.shard_count
        if index in found:
            raise UsageError(f"{directory}: shard {index}/{count} is given twice: {found[index]} is the other one")
        found[index] = directory
    if missing := [str(index) for index in range(count) if index not in found]:
        raise UsageError(f"shard {', '.join(missing)} of {count} is missing; give the directories of all shards")
    return [found[index] for index in sorted(found)]


def _check_steps(shards: Sequence[Path], manifests: Mapping[Path, ReplayManifest], records: Sequence[Record]) -> None:
    """Check that every reply is to a step of its own shard. Raises UsageError."""
    for directory in shards:
        own = {record.key for record in planned(records, manifests[directory])}
        if foreign := [key for key in read_responses(directory / RESPONSES_NAME).by_step if key not in own]:
            raise UsageError(f"{directory}: holds replies to steps of another shard: {names_shown(foreign)}")


def _merged(shards: Sequence[Path], manifests: Mapping[Path, ReplayManifest]) -> ReplayManifest:
    ordered = [manifests[directory] for directory in shards]
    first = ordered[0]
    hashes = [manifest.prompt_sha256 for manifest in ordered]
    return first.model_copy(
        update={
            "shard_index": 0,
            "shard_count": 1,
            "base_urls": tuple(dict.fromkeys(url for manifest in ordered for url in manifest.base_urls)),
            "problems": tuple(dict.fromkeys(problem for manifest in ordered for problem in manifest.problems)),
            "records": max(manifest.records for manifest in ordered),
            "created_at": max(manifest.created_at for manifest in ordered),
            # Over all prompts where shards say so; else over what each says of its own.
            "prompt_sha256": hashes[0]
            if len(set(hashes)) == 1
            else hashlib.sha256("\n".join(hashes).encode()).hexdigest(),
        }
    )


def _lines(directory: Path) -> bytes:
    """The lines of a shard's replies as they are; a torn last line is ended, so that it stays one bad line."""
    raw = (directory / RESPONSES_NAME).read_bytes()
    return raw if not raw or raw.endswith(b"\n") else raw + b"\n"
