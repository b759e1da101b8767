"""The report on a night: Markdown for people, JSON for a webhook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tbench import exit_codes
from tbench.errors import TbenchError
from tbench.nightly.explained import news_lines
from tbench.nightly.journal import CheckpointRecord, NightRecord, Nights
from tbench.nightly.running_night import exit_code
from tbench.scores.summary import Summary, percent
from tbench.storage.summaries import read_summary
from tbench.text import visible_line

NOTIFICATION_VERSION = 1
_STATES = {
    0: "quiet",
    exit_codes.BUG: "a bug",
    exit_codes.TOO_FEW_VERDICTS: "too few verdicts",
    exit_codes.ENDPOINT_DOWN: "endpoint away",
    exit_codes.ALARM: "alarm",
}
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#])")


def headline(name: str, record: NightRecord) -> str:
    """Return the night in one line, such as `alarm: my-model, night 2026-11-23`."""
    return f"{_STATES.get(exit_code(record), 'failed')}: {name}, night {record.name}"


def as_markdown(name: str, nights: Nights, record: NightRecord) -> str:
    """Return the night as Markdown: state, a row for each run, changes, the gate's evidence, failures."""
    return "\n".join(_lines(name, nights, record)) + "\n"


def notification(name: str, record: NightRecord) -> dict[str, Any]:
    """Return the night as a JSON object for a webhook. `text` is all that Slack and similar services need."""
    evidence = [line for gate in record.gates.values() for line in news_lines(gate)]
    failed = [f"{where}{stage}: {words}" for where, stage, words in _failures(record)]
    return {
        "schema_version": NOTIFICATION_VERSION,
        "text": "\n".join([headline(name, record), *evidence, *failed]),
        "benchmark": name,
        "night": record.name,
        "exit_code": exit_code(record),
        "begun_at": record.begun_at,
        "checkpoints": [_checkpoint_json(each, record) for each in record.checkpoints],
        "proxies": record.proxies,
        "gates": record.gates,
        "failed": failed,
    }


def _checkpoint_json(each: CheckpointRecord, record: NightRecord) -> dict[str, Any]:
    run = each.stages.get("run")
    return {
        "lane": each.lane,
        "checkpoint": each.checkpoint,
        "run": each.run,
        "words": run.words if run else None,
        "comparisons": record.comparisons.get(each.run, []),
    }


def _lines(name: str, nights: Nights, record: NightRecord) -> Iterator[str]:
    yield f"## {_escaped(headline(name, record))}"
    yield ""
    if record.checkpoints:
        yield from _table(nights, record)
    else:
        yield "No new checkpoint."
    if record.proxies:
        yield from ("", *(f"- {_escaped(name)}: {_escaped(words)}" for name, words in record.proxies.items()))
    for run, lines in record.comparisons.items():
        if lines:
            yield from ("", f"**{_escaped(run)}**", "", *(f"- {_escaped(line)}" for line in lines))
    for lane, gate in record.gates.items():
        yield from ("", f"Gate of {_escaped(lane)}:", "", *(f"    {visible_line(line)}" for line in news_lines(gate)))
    if failed := list(_failures(record)):
        yield from ("", "Failed:", "", *(f"- {_escaped(f'{where}{stage}: {words}')}" for where, stage, words in failed))


def _table(nights: Nights, record: NightRecord) -> Iterator[str]:
    yield "| checkpoint | score | ± std | coverage | solved | tokens | trial hours | run |"
    yield "|---|--:|--:|--:|--:|--:|--:|---|"
    costs = []
    for each in record.checkpoints:
        found = _summary(nights.runs / each.run)
        figures = ["–"] * 6 if found is None else _figures(found)
        yield f"| {' | '.join([_escaped(each.slug), *figures, _escaped(each.run)])} |"
        costs += [f"- {_escaped(f'{each.slug}: {line}')}" for line in (found.cost_lines if found is not None else ())]
    yield from ("", *costs) if costs else ()


def _summary(run: Path) -> Summary | None:
    """Return the summary of a run; None for one that never began or is damaged, which is listed under the failures."""
    try:
        return read_summary(run, intervals=False)[1]
    except TbenchError:
        return None


def _figures(found: Summary) -> list[str]:
    score, counts = found.score, found.counts
    tokens = found.usage.prompt_tokens + found.usage.completion_tokens
    return [
        "–" if score is None else f"{percent(score.mean)} %",
        "–" if score is None or score.std is None else percent(score.std),
        f"{counts.scored}/{counts.planned}",
        str(counts.solved),
        f"{'≥ ' if found.usage.uncounted else ''}{tokens:,}" if tokens else "–",
        f"{found.time.total_sec / 3600:.2f}",
    ]


def _failures(record: NightRecord) -> Iterator[tuple[str, str, str]]:
    for each in record.checkpoints:
        for name, stage in each.stages.items():
            if stage.state == "failed":
                yield f"{each.slug} ", name, stage.words
    for name, stage in record.stages.items():
        if stage.state == "failed":
            yield "", name, stage.words


def _escaped(text: str) -> str:
    """Return the text as one line, with characters escaped that Markdown would interpret."""
    return _MARKUP.sub(r"\\\1", visible_line(text))
