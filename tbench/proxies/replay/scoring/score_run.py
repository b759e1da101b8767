"""Scores stored replies: those of a run directory, or of a bare file with its dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.proxies.datasets.records import Dataset, Record, read_dataset
from tbench.proxies.replay.responses import ReplayManifest
from tbench.proxies.replay.run_files import (
    MANIFEST_NAME,
    PROMPTS_NAME,
    RESPONSES_NAME,
    RESULT_NAME,
    Responses,
    generation_seconds,
    json_object,
    planned,
    read_manifest,
    read_responses,
)
from tbench.proxies.replay.scoring.parser import DEFAULT_REVISION, Revision
from tbench.proxies.replay.scoring.result import ReplySource, result_of
from tbench.proxies.replay.scoring.scored_steps import score_steps
from tbench.text import names_shown


def score_path(path: Path, dataset_path: Path | None = None, revision: Revision = DEFAULT_REVISION) -> dict[str, Any]:
    """The result document for a run directory, the replies in one, or a bare file of replies. Raises UsageError."""
    if not path.exists():
        raise UsageError(f"{path}: there is nothing; give a run of replay, its replies, or a result file")
    replies = path / RESPONSES_NAME if path.is_dir() else path
    has_manifest = replies.name == RESPONSES_NAME and (replies.parent / MANIFEST_NAME).exists()
    # A directory that lacks something is told what.
    if has_manifest or (path.is_dir() and (dataset_path is None or not replies.exists())):
        return score_directory(replies.parent, dataset_path, revision)
    if dataset_path is None:
        raise UsageError(f"{path}: has no manifest beside it; say with --dataset what it answers")
    return score_responses(replies, dataset_path, revision)


def score_directory(
    directory: Path,
    dataset_path: Path | None = None,
    revision: Revision = DEFAULT_REVISION,
    *,
    gen_time_sec: float | None = None,
    merged_shards: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The result document of a run directory; nothing is written. Raises UsageError.

    Times and merged shards that only an earlier result knows are kept.
    """
    manifest = read_manifest(directory)
    dataset = dataset_of(directory, manifest, dataset_path)
    responses = read_responses(directory / RESPONSES_NAME)
    records = planned(dataset.records, manifest)
    before = json_object(directory / RESULT_NAME)
    source = ReplySource(
        dataset,
        records,
        responses.by_step,
        manifest,
        problems=(*responses.problems, *_foreign_replies(directory / RESPONSES_NAME, responses, records)),
        prompt_report=json_object(directory / PROMPTS_NAME),
        gen_time_sec=generation_seconds(directory) if gen_time_sec is None else gen_time_sec,
        merged_shards=merged_shards or tuple(map(str, before.get("merged_shards") or ())),
    )
    return result_of(score_steps(source.records, source.replies, revision), source)


def score_responses(path: Path, dataset_path: Path, revision: Revision = DEFAULT_REVISION) -> dict[str, Any]:
    """The result document of a file of replies without a manifest, over the whole dataset. Raises UsageError."""
    dataset, responses = read_dataset(dataset_path), read_responses(path)
    source = ReplySource(
        dataset,
        dataset.records,
        responses.by_step,
        name=path.stem if path.stem != "responses" else path.resolve().parent.name,
        problems=(*responses.problems, *_foreign_replies(path, responses, dataset.records)),
    )
    return result_of(score_steps(source.records, source.replies, revision), source)


def _foreign_replies(path: Path, responses: Responses, records: Sequence[Record]) -> tuple[str, ...]:
    """One problem per reply to a step that is not to be scored. Raises UsageError where all replies are such."""
    known = {record.key for record in records}
    unknown = [key for key in responses.by_step if key not in known]
    if unknown and len(unknown) == len(responses.by_step):
        raise UsageError(f"{path}: none of its steps ({names_shown(unknown, 1)}) is of this dataset; give its own")
    return tuple(f"{path}: step {key}: is not among the steps to score" for key in unknown)


def dataset_of(directory: Path, manifest: ReplayManifest, given: Path | None) -> Dataset:
    """The dataset that a run was made with, at its old place or at `given`. Raises UsageError, also for another one."""
    path = given or Path(manifest.dataset)
    if given is None and not path.is_absolute() and not path.exists():
        path = directory / path
    try:
        dataset = read_dataset(path)
    except UsageError as error:
        if given is not None:
            raise
        raise UsageError(f"{error} (the run's manifest names it); if it has moved, say where with --dataset") from None
    if dataset.sha256 != manifest.dataset_sha256:
        raise UsageError(
            f"{path}: is not the dataset of this run: its sha256 is {dataset.sha256[:12]}, "
            f"the run's {manifest.dataset_sha256[:12]}; give the file it was made with (--dataset)"
        )
    return dataset
