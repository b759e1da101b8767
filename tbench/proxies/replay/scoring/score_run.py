"""Scores stored replies: of a run, of merged shards, or of a bare file with its dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.files import is_unused, read_object_or_none, write_atomically, write_json
from tbench.proxies.datasets.records import Dataset, Record, read_dataset
from tbench.proxies.replay.directory import (
    MANIFEST_NAME,
    PROMPTS_NAME,
    RESPONSES_NAME,
    RESULT_NAME,
    ReplayManifest,
    Responses,
    generation_seconds,
    planned_records,
    read_manifest,
    read_responses,
)
from tbench.proxies.replay.scoring.metric import score_steps
from tbench.proxies.replay.scoring.parser import DEFAULT_REVISION, Revision
from tbench.proxies.replay.scoring.result import ReplySource, make_result, write_result
from tbench.text import names_text


def score_path(path: Path, dataset_path: Path | None = None, revision: Revision = DEFAULT_REVISION) -> dict[str, Any]:
    """Score a run directory, its file of replies, or a bare file of replies. Raises UsageError."""
    if not path.exists():
        raise UsageError(f"{path}: does not exist; give a replay run, its replies, or a result file")
    replies = path / RESPONSES_NAME if path.is_dir() else path
    has_manifest = replies.name == RESPONSES_NAME and (replies.parent / MANIFEST_NAME).exists()
    # For an incomplete directory, score_directory reports what is missing.
    if has_manifest or (path.is_dir() and (dataset_path is None or not replies.exists())):
        return score_directory(replies.parent, dataset_path, revision)
    if dataset_path is None:
        raise UsageError(f"{path}: has no manifest next to it; give its dataset with --dataset")
    return score_responses(replies, dataset_path, revision)


def score_directory(
    directory: Path,
    dataset_path: Path | None = None,
    revision: Revision = DEFAULT_REVISION,
    *,
    gen_time_sec: float | None = None,
    merged_shards: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Score a run directory, without writing anything. Raises UsageError.

    Times and merged shards that are known only from an earlier result are kept.
    """
    manifest = read_manifest(directory)
    dataset = read_run_dataset(directory, manifest, dataset_path)
    responses = read_responses(directory / RESPONSES_NAME)
    records = planned_records(dataset.records, manifest)
    before = read_object_or_none(directory / RESULT_NAME) or {}
    source = ReplySource(
        dataset,
        records,
        responses.by_step,
        manifest,
        problems=(*responses.problems, *_foreign_replies(directory / RESPONSES_NAME, responses, records)),
        prompt_report=read_object_or_none(directory / PROMPTS_NAME) or {},
        gen_time_sec=generation_seconds(directory) if gen_time_sec is None else gen_time_sec,
        merged_shards=merged_shards or tuple(map(str, before.get("merged_shards") or ())),
    )
    return make_result(score_steps(source.records, source.replies, revision), source)


def score_responses(path: Path, dataset_path: Path, revision: Revision = DEFAULT_REVISION) -> dict[str, Any]:
    """Score a file of replies without a manifest over the whole dataset. Raises UsageError."""
    dataset, responses = read_dataset(dataset_path), read_responses(path)
    source = ReplySource(
        dataset,
        dataset.records,
        responses.by_step,
        name=path.stem if path.stem != "responses" else path.resolve().parent.name,
        problems=(*responses.problems, *_foreign_replies(path, responses, dataset.records)),
    )
    return make_result(score_steps(source.records, source.replies, revision), source)


def _foreign_replies(path: Path, responses: Responses, records: Sequence[Record]) -> tuple[str, ...]:
    """Return a problem for each reply to an unknown step. Raises UsageError if all steps are unknown."""
    known = {record.key for record in records}
    unknown = [key for key in responses.by_step if key not in known]
    if unknown and len(unknown) == len(responses.by_step):
        raise UsageError(
            f"{path}: none of its steps ({names_text(unknown, 1)}) is in this dataset; give the dataset of the run"
        )
    return tuple(f"{path}: step {key}: is not one of the steps to score" for key in unknown)


def read_run_dataset(directory: Path, manifest: ReplayManifest, given: Path | None) -> Dataset:
    """Read the dataset of a run, from its recorded path or from `given`. Raises UsageError, also if it differs."""
    path = given or Path(manifest.dataset)
    if given is None and not path.is_absolute() and not path.exists():
        path = directory / path
    try:
        dataset = read_dataset(path)
    except UsageError as error:
        if given is not None:
            raise
        raise UsageError(
            f"{error} (path from the run's manifest); if it has moved, give its path with --dataset"
        ) from None
    if dataset.sha256 != manifest.dataset_sha256:
        raise UsageError(
            f"{path}: is not the dataset of this run: its sha256 is {dataset.sha256[:12]}, "
            f"the run's {manifest.dataset_sha256[:12]}; give the original file with --dataset"
        )
    return dataset


_MAY_DIFFER = frozenset(
    {"shard_index", "created_at", "base_urls", "served", "records", "problems", "prompt_sha256", "dataset"}
)
"""Fields of a manifest that may differ between shards; datasets are compared by sha256."""
_SERVED_FIELDS = ("id", "root", "parent", "max_model_len")
"""Fields of the served model that must be equal; the others are times and random names."""


def merge(
    directories: Sequence[Path],
    output: Path,
    dataset_path: Path | None = None,
    revision: Revision = DEFAULT_REVISION,
) -> dict[str, Any]:
    """Write the replies of all shards to `output` and score them; return the result. Raises UsageError, OSError.

    Steps without a reply lower the result's coverage; missing and duplicate shards, and replies to another shard's
    steps, are errors.
    """
    if not is_unused(output):
        raise UsageError(f"{output}: is not empty; give a new directory with --output")
    resolved = [directory.resolve() for directory in directories]
    for at, directory in enumerate(directories):
        if resolved[at] in resolved[:at]:
            raise UsageError(f"{directory}: is given twice; give each shard once")
    manifests = {directory: read_manifest(directory) for directory in directories}
    _check_same(manifests)
    shards = _by_index(manifests)
    first = shards[0]
    _check_steps(shards, manifests, read_run_dataset(first, manifests[first], dataset_path).records)
    write_json(output / MANIFEST_NAME, _merge_manifests(shards, manifests).model_dump(mode="json"))
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
            for key in _SERVED_FIELDS
            if (a := (ours.served or {}).get(key)) != (b := (theirs.served or {}).get(key))
        ]
        if differing:
            raise UsageError(f"{directory}: is not of the same run as {first}: different {'; '.join(differing)}")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:40]} … {text[-15:]}"


def _by_index(manifests: Mapping[Path, ReplayManifest]) -> list[Path]:
    """Return the directories in order of shards. Raises UsageError unless each shard is given once."""
    found: dict[int, Path] = {}
    for directory, manifest in manifests.items():
        index, count = manifest.shard_index, manifest.shard_count
        if index in found:
            raise UsageError(f"{directory}: shard {index}/{count} is given twice, also as {found[index]}")
        found[index] = directory
    if missing := [str(index) for index in range(count) if index not in found]:
        raise UsageError(f"shard {', '.join(missing)} of {count} is missing; give the directories of all shards")
    return [found[index] for index in sorted(found)]


def _check_steps(shards: Sequence[Path], manifests: Mapping[Path, ReplayManifest], records: Sequence[Record]) -> None:
    """Check that every reply is to a step of its own shard. Raises UsageError."""
    for directory in shards:
        own = {record.key for record in planned_records(records, manifests[directory])}
        if foreign := [key for key in read_responses(directory / RESPONSES_NAME).by_step if key not in own]:
            raise UsageError(f"{directory}: contains replies to steps of another shard: {names_text(foreign)}")


def _merge_manifests(shards: Sequence[Path], manifests: Mapping[Path, ReplayManifest]) -> ReplayManifest:
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
            # Equal if every shard hashes all prompts; else combined from the shards' hashes.
            "prompt_sha256": hashes[0]
            if len(set(hashes)) == 1
            else hashlib.sha256("\n".join(hashes).encode()).hexdigest(),
        }
    )


def _lines(directory: Path) -> bytes:
    """Read a shard's lines; an incomplete last line gets a newline, so that it stays a separate bad line."""
    raw = (directory / RESPONSES_NAME).read_bytes()
    return raw if not raw or raw.endswith(b"\n") else raw + b"\n"
