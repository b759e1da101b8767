"""Prepares an extraction: its manifest, made before the first request, and the name of its directory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness.endpoint.replicas import Endpoint
from harness.model import ServedModel
from harness.protocols.base import ActionProtocol
from tbench import __version__
from tbench.datasets.reference import stored_source
from tbench.proxies.extraction.asking import entries
from tbench.proxies.extraction.records import ExtractionManifest
from tbench.tasks.sources import TaskSet


def make_manifest(
    source: str, tasks: TaskSet, seeds: Sequence[int], protocol: ActionProtocol, chat: Endpoint, served: ServedModel
) -> ExtractionManifest:
    """The manifest of an extraction that begins now; `source` is what the user named the tasks by."""
    return ExtractionManifest(
        source=stored_source(source),
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


def default_directory(model: str) -> Path:
    """The directory of an extraction for which the user named none."""
    slug = re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"
    return Path(f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}_{slug}_extract")
