"""The page of a trial in a site: its head, and the script with its steps and its recording."""

from __future__ import annotations

import base64
import gzip
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from harness.replies import reply_notes
from harness.trajectory import Step
from reports.charts import BarPart, stacked_bar
from reports.look import Crumb, page, seconds
from reports.names import run_page, task_data, task_page, trial_data, trial_page
from reports.site.content import Site, SiteRun
from reports.trial.section import StepTimes, TrialSection, sections_of
from reports.trial.steps import ReplyWords, StepCard, cards_of, left_out_of, timeline
from reports.trial.text import ShownText, cut, room_of, shown
from tbench.results import ErrorInfo, TrialResult, is_weak
from tbench.scores.summarise import status_of, time_split
from tbench.scores.summary import Status, Summary
from tbench.storage.read_run import StoredRun
from tbench.storage.stored_trial import command_of, commands_about
from tbench.text import counted

# The head of a trial's page: which trial it was, what became of it, and where its time went.

SYMBOLS = {Status.PASS: "✓", Status.PARTIAL: "◐", Status.FAIL: "✗", Status.ERROR: "!", Status.MISSING: "·"}
_WORDS = {Status.PASS: "passed", Status.PARTIAL: "passed in part", Status.FAIL: "failed", Status.ERROR: "no verdict"}


@dataclass(frozen=True, slots=True)
class TrialLink:
    """Another trial of the task in the same run."""

    label: str
    target: str
    status: Status
    is_here: bool

    @property
    def symbol(self) -> str:
        return SYMBOLS[self.status]


@dataclass(frozen=True, slots=True)
class IntegrityRemark:
    """Something about the verdict that a reader should know."""

    label: str
    text: str
    is_alarm: bool = False


@dataclass(frozen=True, slots=True)
class TrialHead:
    """The head of the page."""

    result: TrialResult
    which: str
    """Its seed, and its attempt where it is not the first."""
    status: Status
    symbol: str
    words: str
    error: ErrorInfo | None
    times: tuple[BarPart, ...]
    bar: Markup
    remarks: tuple[IntegrityRemark, ...]
    seeds: tuple[TrialLink, ...]
    attempts: tuple[TrialLink, ...]
    before: str | None
    """The page of the trial at the seed before."""
    after: str | None


def head_of(
    result: TrialResult,
    which: str,
    *,
    seeds: Sequence[TrialLink],
    attempts: Sequence[TrialLink],
    before: str | None,
    after: str | None,
) -> TrialHead:
    """The head of a trial's page."""
    status = status_of(result)
    parts = tuple(_times(result))
    return TrialHead(
        result=result,
        which=which,
        status=status,
        symbol=SYMBOLS[status],
        words=_WORDS[status],
        error=result.error,
        times=parts,
        bar=stacked_bar(parts, label="where the time went: " + ", ".join(part.words for part in parts)),
        remarks=tuple(_remarks(result)),
        seeds=tuple(seeds),
        attempts=tuple(attempts),
        before=before,
        after=after,
    )


def _times(result: TrialResult) -> Iterator[BarPart]:
    for name, sec in time_split([result]).parts().items():
        if sec >= 0.05:
            yield BarPart(name, sec, f"{name} {seconds(sec)}")


def _remarks(result: TrialResult) -> Iterator[IntegrityRemark]:
    """What the verdict rests on, where that is not as usual, and what was seen beside it."""
    integrity = result.integrity
    for signal in integrity.tamper:
        yield IntegrityRemark(
            "weak sign of tampering" if is_weak(signal) else "sign of tampering", signal, not is_weak(signal)
        )
    for remark in integrity.remarks:
        yield IntegrityRemark("remark", remark)
    for repair in integrity.repairs:
        yield IntegrityRemark("mended before the verifier", repair)
    for path in integrity.evidence:
        yield IntegrityRemark("lay where tests or reward belong", path)
    for where, reward in integrity.rewards.items():
        yield IntegrityRemark(f"reward, verified {where}", f"{reward:g}")
    if result.replies.total:
        for note in reply_notes([result.replies]):
            yield IntegrityRemark("replies", note)
    if integrity.regrades:
        yield IntegrityRemark("verified again", f"{integrity.regrades} times")
    if result.out_of_memory:
        yield IntegrityRemark("out of memory", "the kernel ended a process of its container")
    if result.human_touched:
        yield IntegrityRemark("a human", "typed during the trial")
    if result.machine is not None:
        yield IntegrityRemark("machine", result.machine)
    if (host := result.host) is not None and (load := host.load_max or 0.0) > 2:
        yield IntegrityRemark("busy machine", f"load per cpu up to {load:.1f}")


# The script with all that a trial's page does not hold itself: whole texts, recordings, and when each step was.

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
        "times": [_data_times(each) for each in part.times],
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


def _data_times(times: StepTimes | None) -> list[float] | None:
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


Key = tuple[str, int, int]
"""A task, a seed and an attempt."""
_TOLD_CHARS = 1200
_SEEDS_SHOWN = 11
"""Other seeds that a page links to: the nearest."""


@dataclass(frozen=True, slots=True)
class ToldMessage:
    """A message that the model was given before its first reply."""

    role: str
    text: ShownText


@dataclass(frozen=True, slots=True)
class SectionView:
    """The work on a task, or on one of its steps, as the page shows it."""

    stored: TrialSection
    prefix: str
    """What ids of this section begin with."""
    cards: tuple[StepCard, ...]
    left_out: str
    """Which steps have no card, in words."""
    left_out_after: int
    """The number of cards that come before those."""
    strip: Markup
    told: tuple[ToldMessage, ...]

    @property
    def has_recording(self) -> bool:
        return bool(self.stored.cast.text)


def trial_files(site: Site, run: SiteRun, stored: StoredRun, summary: Summary) -> Iterator[tuple[str, str]]:
    """Each file of all trials of a run that have ended, with its place in the site."""
    ended: dict[Key, TrialResult] = {(each.task, each.seed, each.attempt): each for each in stored.results}
    of_task: dict[str, list[TrialResult]] = {}
    for result in sorted(ended.values(), key=lambda each: (each.seed, each.attempt)):
        of_task.setdefault(result.task, []).append(result)
    for result in ended.values():
        yield from _files(run, stored, result, of_task[result.task])


def _files(
    run: SiteRun, stored: StoredRun, result: TrialResult, of_task: Sequence[TrialResult]
) -> Iterator[tuple[str, str]]:
    place = (run.slug, result.task, result.seed, result.attempt)
    html, data = trial_page(*place), trial_data(*place)
    parts = sections_of(stored.path, result)
    yield data, script(data, [section_data(part) for part in parts])
    views = [_section_view(part) for part in parts]
    yield (
        html,
        page(
            "trial.html.j2",
            html,
            crumbs=[
                Crumb(run.row.name, run_page(run.slug)),
                Crumb(result.task, task_page(result.task)),
                Crumb(_which(result)),
            ],
            head=_head(run, result, of_task),
            sections=views,
            recorded=any(view.has_recording for view in views),
            data=data,
            task_data=task_data(result.task),
            task_page=task_page(result.task),
            run_page=run_page(run.slug),
            command=command_of(stored.document, result.task, result.seed) if stored.document is not None else "",
            asking=commands_about(stored.path, result) if stored.document is not None else (),
            imported=stored.imported,
        ),
    )


def _which(result: TrialResult) -> str:
    again = f", attempt {result.attempt}" if result.attempt > 1 else ""
    return f"seed {result.seed}{again}"


def _head(run: SiteRun, result: TrialResult, of_task: Sequence[TrialResult]) -> TrialHead:
    """The head, with links to the last attempts at the nearest seeds and to all attempts at this one."""
    last = {each.seed: each for each in of_task}
    own = [each for each in of_task if each.seed == result.seed]
    tries = [_link(run, each, f"attempt {each.attempt}", each is result) for each in own] if len(own) > 1 else []
    at = list(last).index(result.seed)
    others = list(last.values())
    near = others[max(0, min(at - _SEEDS_SHOWN // 2, len(others) - _SEEDS_SHOWN)) :][:_SEEDS_SHOWN]
    seeds = [_link(run, each, f"seed {each.seed}", each.seed == result.seed) for each in near]
    return head_of(
        result,
        _which(result),
        seeds=seeds,
        attempts=tries,
        before=_place(run, others[at - 1]) if at > 0 else None,
        after=_place(run, others[at + 1]) if at + 1 < len(others) else None,
    )


def _place(run: SiteRun, result: TrialResult) -> str:
    return trial_page(run.slug, result.task, result.seed, result.attempt)


def _link(run: SiteRun, result: TrialResult, label: str, is_here: bool) -> TrialLink:
    return TrialLink(label, _place(run, result), status_of(result), is_here)


def _section_view(part: TrialSection) -> SectionView:
    cards = tuple(cards_of(part.steps, part.words, part.number, types_keys=part.protocol.startswith("keystrokes")))
    missing = left_out_of(part.steps)
    return SectionView(
        stored=part,
        prefix=f"step-{part.number}." if part.number is not None else "step-",
        cards=cards,
        left_out=f"Steps {missing[0]} to {missing[-1]}, {counted(len(missing), 'step')}" if missing else "",
        left_out_after=missing[0] - 1 if missing else 0,
        strip=timeline(cards, f"the {counted(len(cards), 'step')} by their time"),
        told=tuple(ToldMessage(message.role, shown(message.content, _TOLD_CHARS)) for message in part.told),
    )
