"""Builds a replay dataset from recorded conversations: records, a dev split, and a manifest of the sources.

Files are written atomically, and existing ones are never overwritten.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.model_text import without_lone_surrogates
from tbench import __version__
from tbench.errors import UsageError
from tbench.files import write_json
from tbench.proxies.datasets.conversations import Candidate, Only, SourceFile, read_all
from tbench.proxies.datasets.records import Inclusion, RecordedConversation, make_records

BUILD_SCHEMA_VERSION = 1
DEFAULT_INCLUSION = Inclusion()
_MAX_PROBLEMS = 1000
"""Number of problems that the manifest lists; it counts all of them."""


@dataclass
class BuildReport:
    """The files written, and what was left out and why."""

    path: Path
    manifest_path: Path
    dev_path: Path | None = None
    records: int = 0
    sha256: str = ""
    dev_records: int = 0
    dev_sha256: str | None = None
    tasks: list[tuple[str, str]] = field(default_factory=list)
    """(task id, source group) of all conversations, including those without a usable step."""
    dev_task_ids: list[str] = field(default_factory=list)
    sources: list[SourceFile] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of turns that did not become records, by reason."""
    problems: list[str] = field(default_factory=list)
    """`FILE:LINE: reason`, one per unusable conversation."""
    filtered: list[str] = field(default_factory=list)
    """`FILE:LINE: reason`, one per trial left out by `only`."""
    notes: list[str] = field(default_factory=list)
    """`FILE:LINE: what was tolerated`."""
    rebuilt: int = 0
    """Number of replies whose text was reconstructed from recorded actions."""
    repaired: int = 0
    """Number of records in which lone surrogates were replaced by U+FFFD."""


def build(
    inputs: Sequence[Path],
    output: Path,
    *,
    only: Only = "passed",
    include: Inclusion = DEFAULT_INCLUSION,
    dev: int = 0,
    seed: int = 42,
) -> BuildReport:
    """Write a dataset to `output`, its manifest, and with `dev` > 0 a file with the records of that many tasks.

    Raises UsageError for a file that exists or cannot be written, and if there are no records.
    """
    built = _new_dataset(output, dev)
    temporary = output.with_name(f".{output.name}.writing")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_records(temporary, read_all(inputs, only, built.sources), include, built)
            if not built.records:
                raise UsageError(_no_records_message(built))
            _write_dev(temporary, built, dev, seed)
            temporary.replace(output)
        finally:
            temporary.unlink(missing_ok=True)
        write_json(built.manifest_path, _manifest(built, inputs, only, include, dev, seed))
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror or error}") from None
    return built


def select_dev_tasks(tasks: Iterable[tuple[str, str]], count: int, seed: int) -> list[str]:
    """Choose `count` task ids, spread over the source groups, by the rule of LLM-OS-Models' dev_20.

    Each group, in order of occurrence, is shuffled by one generator; then the last task of each group is taken in turn,
    with groups in sorted order.
    """
    groups: dict[str, list[str]] = {}
    for task_id, group in tasks:
        groups.setdefault(group, []).append(task_id)
    generator = random.Random(seed)
    for members in groups.values():
        generator.shuffle(members)
    chosen: list[str] = []
    while len(chosen) < count and any(groups.values()):
        for group in sorted(groups):
            if groups[group] and len(chosen) < count:
                chosen.append(groups[group].pop())
    return sorted(chosen)


def _new_dataset(output: Path, dev: int) -> BuildReport:
    built = BuildReport(output, output.with_name(f"{output.stem}.manifest.json"))
    if dev:
        built.dev_path = output.with_name(f"{output.stem}_dev_{dev}{output.suffix}")
    for path in (built.path, built.manifest_path, built.dev_path):
        if path is not None and path.exists():
            raise UsageError(
                f"{path}: already exists; give a new file with --output (existing files are not overwritten)"
            )
    return built


def _write_records(path: Path, candidates: Iterable[Candidate], include: Inclusion, built: BuildReport) -> None:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for sample_idx, each in enumerate(candidates):
            if (conversation := each.conversation) is None:
                if each.problem:
                    (built.filtered if each.is_filtered else built.problems).append(f"{each.where}: {each.problem}")
                continue
            for data in _lines(conversation, sample_idx, each.where, include, built):
                file.write(data)
                digest.update(data)
                built.records += 1
            if each.note:
                built.notes.append(f"{each.where}: {each.note}")
    built.sha256 = digest.hexdigest()


def _lines(
    conversation: RecordedConversation, sample_idx: int, where: str, include: Inclusion, built: BuildReport
) -> Iterable[bytes]:
    before = built.records
    built.tasks.append((f"task-{sample_idx:03d}", conversation.source_group))
    built.rebuilt += conversation.rebuilt
    for record in make_records(conversation, sample_idx, include, built.dropped):
        line = json.dumps(record, ensure_ascii=False)
        repaired = without_lone_surrogates(line)
        built.repaired += repaired != line
        yield repaired.encode() + b"\n"
    if conversation.cut:
        built.notes.append(f"{where}: used up to {conversation.cut}")
    if built.records == before:
        built.notes.append(f"{where}: none of its steps can be replayed")


def _write_dev(records_path: Path, built: BuildReport, dev: int, seed: int) -> None:
    if built.dev_path is None:
        return
    built.dev_task_ids = select_dev_tasks(built.tasks, dev, seed)
    chosen = {json.dumps(task_id).encode() for task_id in built.dev_task_ids}
    digest = hashlib.sha256()
    temporary = built.dev_path.with_name(f".{built.dev_path.name}.writing")
    try:
        with records_path.open("rb") as records, temporary.open("wb") as file:
            for line in records:
                # The id is the first value of every line.
                if line.removeprefix(b'{"task_id": ').partition(b",")[0] in chosen:
                    file.write(line)
                    digest.update(line)
                    built.dev_records += 1
        temporary.replace(built.dev_path)
    finally:
        temporary.unlink(missing_ok=True)
    built.dev_sha256 = digest.hexdigest()


def _no_records_message(built: BuildReport) -> str:
    reasons = [*built.problems, *built.filtered, *built.notes]
    first = f"; first: {without_lone_surrogates(reasons[0])}" if reasons else ""
    hint = "; --only all also takes trials that did not pass" if built.filtered and not built.tasks else ""
    dropped = "".join(f", {count} turns {reason}" for reason, count in sorted(built.dropped.items()))
    return (
        f"nothing to replay in {len(built.sources)} files: {len(built.problems)} conversations unusable, "
        f"{len(built.filtered)} left out by --only{dropped}{hint}{first}"
    )


def _manifest(
    built: BuildReport, inputs: Sequence[Path], only: Only, include: Inclusion, dev: int, seed: int
) -> dict[str, Any]:
    """Return the manifest: the keys of LLM-OS-Models' task_manifest.json, then additional ones."""
    return {
        "input_path": ", ".join(map(str, inputs)),
        "num_tasks": len(built.tasks),
        "num_steps": built.records,
        "prompt_mode": "cumulative_messages",
        "include_invalid_refs": include.invalid,
        "include_empty_command_refs": include.empty,
        "dev_tasks": dev,
        "dev_task_ids": built.dev_task_ids,
        "source_groups": sorted({group for _, group in built.tasks}),
        "schema_version": BUILD_SCHEMA_VERSION,
        "tbench_version": __version__,
        "only": only,
        "seed": seed,
        "dataset": {"path": built.path.name, "sha256": built.sha256},
        "dev_dataset": built.dev_path
        and {"path": built.dev_path.name, "sha256": built.dev_sha256, "num_steps": built.dev_records},
        "inputs": [{"path": str(source.path), "sha256": source.sha256} for source in built.sources],
        "dropped": dict(sorted(built.dropped.items())),
        "rebuilt_replies": built.rebuilt,
        "repaired_records": built.repaired,
        "unusable": len(built.problems),
        "left_out_by_only": len(built.filtered),
        "problems": built.problems[:_MAX_PROBLEMS],
        "notes": built.notes[:_MAX_PROBLEMS],
    }
