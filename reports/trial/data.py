"""The script with all that a trial's page does not hold itself: whole texts, recordings, and when each step was."""

from __future__ import annotations

import base64
import gzip
import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from harness.trajectory import Step
from reports.trial.recording import StepTimes
from reports.trial.reply import ReplyWords
from reports.trial.section import TrialSection
from reports.trial.text import cut, room_of

_TEXT_CHARS = 200_000
"""Characters of one text; longer ones lose their middle."""
_ALL_CHARS = 6_000_000
"""Characters of all texts of a trial together."""
_LEAST_CHARS = 400
_ESCAPES = {code: f"\\u{code:04x}" for code in map(ord, "<>&\u2028\u2029")}


def script(key: str, sections: Sequence[dict[str, Any]]) -> str:
    """The script that puts a trial's sections into the page's one global, under the trial's own place in the site."""
    return f"window.TB=window.TB||{{}};TB[{_json(key)}]={_json({'sections': list(sections)})};\n"


def section_data(part: TrialSection) -> dict[str, Any]:
    """A section of a trial: its texts and its recording packed, the times as they are."""
    return {
        "name": part.name,
        "packed": _packed("\n".join(_lines(part))),
        "recorded": bool(part.cast.text),
        "times": [_times(each) for each in part.times],
        "remarks": [[round(at, 3), said[:200]] for at, said in part.cast.remarks[:200]],
    }


def _lines(part: TrialSection) -> Iterator[str]:
    """What the model was told, the steps, the recording: a line of JSON each, an array for each of its events.

    A step stands beside what was recorded while it went on, which is mostly the same text: packed, it costs little.
    """
    limit = _limit(part.steps)
    header, _, events = part.cast.text.partition("\n")
    # Only arrays: whatever else a recording may hold must not be taken for one of the lines between.
    lines = deque(line for line in events.split("\n") if line.startswith("["))
    yield _plain_json({"told": [cut(message.content, limit) for message in part.told], "cast": header})
    for step, words, times in zip(part.steps, part.words, part.times, strict=True):
        yield _plain_json(_step(step, words, limit))
        while times is not None and lines and _time_of(lines[0]) <= times.end:
            yield lines.popleft()
    yield from lines


def _time_of(line: str) -> float:
    try:
        return float(line[1 : line.index(",")])
    except ValueError:
        return 0.0


def _times(times: StepTimes | None) -> list[float] | None:
    return None if times is None else [round(sec, 3) for sec in (times.begin, times.typed, times.end)]


def _step(step: Step, words: ReplyWords, limit: int) -> dict[str, Any]:
    calls = "".join(f"\n{call.name}({call.arguments})" for call in step.reply.tool_calls)
    return {
        "n": step.index,
        "reasoning": cut(words.reasoning, limit),
        "said": [cut(said.text, limit) for said in words.parts],
        "reply": cut(step.reply.content + calls, limit),
        "actions": [cut(action, limit) for action in step.actions],
        "observation": cut(step.observation, limit),
        "exit": step.exit_code,
    }


def _limit(steps: Sequence[Step]) -> int:
    """The characters that each text may have, so that all of them together are not too many."""
    lengths = [len(text) for step in steps for text in _all_texts(step)]
    return room_of(lengths, _ALL_CHARS, _LEAST_CHARS, _TEXT_CHARS)


def _all_texts(step: Step) -> Iterator[str]:
    yield from (step.reply.content, step.reply.reasoning or "", step.observation, *step.actions)


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode("ascii")


def _plain_json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _json(value: Any) -> str:
    """JSON that can stand in a script wherever that stands."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPES)
