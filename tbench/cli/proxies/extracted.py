"""From stored replies to figures: what `tbench extract --score` does, and every extraction at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import typer

from harness.protocols import UnknownProtocol, load_protocol
from tbench.errors import UsageError
from tbench.proxies.extraction.records import read_manifest, read_replies, write_result
from tbench.proxies.extraction.score import Result, Rewards, score
from tbench.proxies.extraction.syntax import BashSyntax
from tbench.rewards import make_conciseness, make_execution_relevance


def result_of(path: Path, relevance: str, conciseness: str) -> Result:
    """Score a directory, and write its result.json. Raises UsageError."""
    rewards = rewards_of(relevance, conciseness)
    manifest = read_manifest(path)
    replies, problems = read_replies(path)
    for problem in problems:
        typer.echo(f"note: left out: {problem}", err=True)
    try:
        protocol = load_protocol(manifest.protocol)
    except UnknownProtocol as error:
        raise UsageError(f"{path}: {error}") from None
    result = score(manifest, replies, protocol, BashSyntax(), rewards)
    write_result(path, result.model_dump(mode="json"))
    return result


def rewards_of(relevance: str, conciseness: str) -> Rewards:
    """The variants of that name. Raises UsageError."""
    try:
        return Rewards(make_execution_relevance(cast(Any, relevance)), make_conciseness(cast(Any, conciseness)))
    except ValueError as error:
        raise UsageError(f"--relevance, --conciseness: {error}") from None
