"""Saves the queries and replies of a trial's model as a cassette."""

from __future__ import annotations

from pathlib import Path

from harness.errors import RequestRefused
from harness.model import HttpModel
from tbench.cassettes.cassette import Cassette, RecordedAnswer, answer_body
from tbench.errors import UsageError
from tbench.runs.replay_log import ReplayLog

CASSETTE_NAME = "cassette.jsonl"


def save_cassette(replay_log: ReplayLog, directory: Path) -> str:
    """Write a trial's cassette into its directory, and return a message about it. Raises UsageError."""
    cassette = make_cassette(replay_log)
    file = directory / CASSETTE_NAME
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        cassette.write(file)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from None
    return f"{len(cassette.exchanges)} of its model's replies saved; serve them with: tbench cassette play {file}"


def make_cassette(replay_log: ReplayLog) -> Cassette:
    """Make a cassette of a trial's queries and the replies that were followed. Raises UsageError."""
    models: dict[str, dict[str, object]] = {}
    exchanges: list[RecordedAnswer] = []
    for each, messages, reply in replay_log.exchanges():
        if each.model is None:
            why = "its first replies were received by an earlier process, and their requests are not known"
            raise UsageError(f"{why}; to record a cassette of a whole run, use tbench cassette record")
        if not isinstance(each.model, HttpModel):
            raise UsageError("its model is not queried over HTTP, so there is no cassette to record")
        try:
            path, body = each.model.request(messages, seed=each.seed, max_tokens=each.max_tokens, tools=each.tools)
        except RequestRefused as error:
            raise UsageError(str(error)) from None
        name = each.model.model or ""
        models[name] = {"id": name, "object": "model", "max_model_len": each.model.context_tokens}
        status, answer = answer_body(path, reply, name)
        exchanges.append(RecordedAnswer(path, body, status, answer))
    if not exchanges:
        raise UsageError("its model has not answered yet")
    return Cassette(list(models.values()), exchanges)
