"""The page of a trial in a site: its head, its steps, and the script with whole texts and its recording."""

from __future__ import annotations

import base64
import gzip
import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from harness.replies import reply_notes
from harness.trajectory import Step
from reports.charts import BarPart, stacked_bar
from reports.look import Crumb, assignment, page, seconds
from reports.names import task_data, task_page, trial_data, trial_page
from reports.site.content import SiteRun
from reports.trial.section import StepTimes, TrialSection, sections_of
from reports.trial.steps import ReplyWords, cards_of, left_out_of, timeline
from reports.trial.text import cut, room_of, shown
from tbench.results import TrialResult, is_weak
from tbench.scores.summarise import status_of, time_split
from tbench.scores.summary import Status
from tbench.storage.read_run import StoredRun
from tbench.storage.stored_trial import command_of, commands_about
from tbench.text import counted

_WORDS = {Status.PASS: "passed", Status.PARTIAL: "passed in part", Status.FAIL: "failed", Status.ERROR: "no verdict"}
_TOLD_CHARS = 1200
_SEEDS_SHOWN = 11
"""Other seeds that a page links to: the nearest."""


def trial_files(run: SiteRun, stored: StoredRun) -> Iterator[tuple[str, str]]:
    """Each file of all trials of a run that have ended, with its place in the site."""
    ended = {(each.task, each.seed, each.attempt): each for each in stored.results}
    of_task: dict[str, list[TrialResult]] = {}
    for result in sorted(ended.values(), key=lambda each: (each.seed, each.attempt)):
        of_task.setdefault(result.task, []).append(result)
    for result in ended.values():
        place = (run.slug, result.task, result.seed, result.attempt)
        parts = sections_of(stored.path, result)
        yield trial_data(*place), assignment(trial_data(*place), {"sections": [_section_data(part) for part in parts]})
        yield trial_page(*place), _page(run, stored, result, of_task[result.task], parts)


def _page(
    run: SiteRun,
    stored: StoredRun,
    result: TrialResult,
    of_task: Sequence[TrialResult],
    parts: Sequence[TrialSection],
) -> str:
    """The page of a trial, with links to the last attempts at the nearest seeds and to all attempts at this one."""
    place = (run.slug, result.task, result.seed, result.attempt)
    which = f"seed {result.seed}" + (f", attempt {result.attempt}" if result.attempt > 1 else "")
    own = [each for each in of_task if each.seed == result.seed]
    last = list({each.seed: each for each in of_task}.values())
    at = next(at for at, each in enumerate(last) if each.seed == result.seed)
    near = last[max(0, min(at - _SEEDS_SHOWN // 2, len(last) - _SEEDS_SHOWN)) :][:_SEEDS_SHOWN]
    times = list(_times(result))
    status = status_of(result)
    return page(
        "trial.html.j2",
        trial_page(*place),
        crumbs=[Crumb(run.row.name, run.page), Crumb(result.task, task_page(result.task)), Crumb(which)],
        run=run,
        result=result,
        which=which,
        status=status,
        words=_WORDS[status],
        times=times,
        bar=stacked_bar(times, label="where the time went: " + ", ".join(part.words for part in times)),
        remarks=list(_remarks(result)),
        seeds=near,
        attempts=own if len(own) > 1 else (),
        before=last[at - 1] if at > 0 else None,
        after=last[at + 1] if at + 1 < len(last) else None,
        status_of=status_of,
        sections=[_shown_section(part) for part in parts],
        recorded=any(part.cast.text for part in parts),
        data=trial_data(*place),
        task_data=task_data(result.task),
        command=command_of(stored.document, result.task, result.seed) if stored.document is not None else "",
        asking=commands_about(stored.path, result) if stored.document is not None else (),
        imported=stored.imported,
    )


def _times(result: TrialResult) -> Iterator[BarPart]:
    for name, sec in time_split([result]).parts().items():
        if sec >= 0.05:
            yield BarPart(name, sec, f"{name} {seconds(sec)}")


def _remarks(result: TrialResult) -> Iterator[tuple[str, str]]:
    """What the verdict rests on, where that is not as usual, and what was seen beside it: a label and a text each."""
    integrity = result.integrity
    for signal in integrity.tamper:
        yield "weak sign of tampering" if is_weak(signal) else "sign of tampering", signal
    yield from (("remark", remark) for remark in integrity.remarks)
    yield from (("mended before the verifier", repair) for repair in integrity.repairs)
    yield from (("lay where tests or reward belong", path) for path in integrity.evidence)
    yield from ((f"reward, verified {where}", f"{reward:g}") for where, reward in integrity.rewards.items())
    if result.replies.total:
        yield from (("replies", note) for note in reply_notes([result.replies]))
    if integrity.regrades:
        yield "verified again", f"{integrity.regrades} times"
    if result.out_of_memory:
        yield "out of memory", "the kernel ended a process of its container"
    if result.human_touched:
        yield "a human", "typed during the trial"
    if result.machine is not None:
        yield "machine", result.machine
    if (host := result.host) is not None and (load := host.load_max or 0.0) > 2:
        yield "busy machine", f"load per cpu up to {load:.1f}"


def _shown_section(part: TrialSection) -> dict[str, Any]:
    """The work on a task, or on one of its steps, as the page shows it."""
    cards = list(cards_of(part.steps, part.words, part.number, types_keys=part.protocol.startswith("keystrokes")))
    missing = left_out_of(part.steps)
    return {
        "stored": part,
        "cards": cards,
        # Which steps have no card, in words, and how many cards come before those.
        "left_out": f"Steps {missing[0]} to {missing[-1]}, {counted(len(missing), 'step')}" if missing else "",
        "left_out_after": missing[0] - 1 if missing else 0,
        "strip": timeline(cards, f"the {counted(len(cards), 'step')} by their time"),
        "told": [(message.role, shown(message.content, _TOLD_CHARS)) for message in part.told],
    }


# The script with all that a trial's page does not hold itself: whole texts, recordings, and when each step was.

_TEXT_CHARS = 200_000
"""Characters of one text; longer ones lose their middle."""
_ALL_CHARS = 6_000_000
"""Characters of all texts of a trial together."""
_LEAST_CHARS = 400


def _section_data(part: TrialSection) -> dict[str, Any]:
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
