"""Prepares an extraction: its manifest, made before the first request, and the directory that it goes into."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness.chat import ChatModel
from harness.model import ServedModel
from harness.protocols.base import ActionProtocol
from tbench import __version__
from tbench.files import is_unused
from tbench.proxies.extraction.asking import entries
from tbench.proxies.extraction.records import Directory, ExtractionManifest, check_same
from tbench.tasks.sources import BUNDLED, TaskSet


def make_manifest(
    source: str, tasks: TaskSet, seeds: Sequence[int], protocol: ActionProtocol, chat: ChatModel, served: ServedModel
) -> ExtractionManifest:
    """The manifest of an extraction that begins now; `source` is what the user named the tasks by."""
    return ExtractionManifest(
        source=source if source == BUNDLED else str(Path(source).resolve()),
        tasks=entries(tasks),
        seeds=tuple(seeds),
        protocol=protocol.name,
        prompt_hash=protocol.prompt_hash,
        sampling=chat.sampling.model_dump(mode="json"),
        rendering=chat.rendering.model_dump(mode="json"),
        model=served.id,
        base_url=chat.url,
        served=served.model_dump(),
        tbench_version=__version__,
        created_at=datetime.now(UTC).isoformat(),
    )


def open_directory(path: Path, manifest: ExtractionManifest) -> Directory:
    """A new directory, or that of the extraction that goes on. Raises UsageError, also for another extraction's."""
    if is_unused(path):
        return Directory.create(path, manifest)
    before = Directory(path).manifest()
    check_same(before, manifest, path)
    return Directory.create(path, manifest.model_copy(update={"created_at": before.created_at}))


def default_directory(model: str) -> Path:
    """The directory of an extraction for which the user named none."""
    slug = re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"
    return Path(f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}_{slug}_extract")
