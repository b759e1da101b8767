"""The page of a trial in a site, and the script with its complete texts and its recording."""

from __future__ import annotations

import base64
import gzip
import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from harness.reply_stats import reply_notes
from harness.trajectory import Step
from reports.charts import BarPart, stacked_bar
from reports.page_frame import Crumb, data_script, page, seconds
from reports.page_paths import task_data, task_page, trial_data, trial_page
from reports.site.content import SiteRun
from reports.trial.page_text import cut, shorten_at_lines, text_budget
from reports.trial.section import StepTimes, TrialSection, read_sections
from reports.trial.steps import ReplyTexts, omitted_steps, step_cards, timeline
from tbench.results import TrialResult, is_weak
from tbench.scores.summarise import time_split, trial_status
from tbench.scores.summary import Status
from tbench.storage.read_run import StoredRun
from tbench.storage.stored_trial import inspection_commands, rerun_command
from tbench.text import counted

_WORDS = {Status.PASS: "passed", Status.PARTIAL: "passed in part", Status.FAIL: "failed", Status.ERROR: "no verdict"}
_PROMPT_CHARS = 1200
_SEEDS_SHOWN = 11
"""Number of nearest seeds that a page links to."""


def trial_files(run: SiteRun, stored: StoredRun) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file of all trials of a run that have ended."""
    ended = {(each.task, each.seed, each.attempt): each for each in stored.results}
    of_task: dict[str, list[TrialResult]] = {}
    for result in sorted(ended.values(), key=lambda each: (each.seed, each.attempt)):
        of_task.setdefault(result.task, []).append(result)
    for result in ended.values():
        place = (run.slug, result.task, result.seed, result.attempt)
        parts = read_sections(stored.path, result)
        yield trial_data(*place), data_script(trial_data(*place), {"sections": [_section_data(part) for part in parts]})
        yield trial_page(*place), _page(run, stored, result, of_task[result.task], parts)


def _page(
    run: SiteRun,
    stored: StoredRun,
    result: TrialResult,
    of_task: Sequence[TrialResult],
    parts: Sequence[TrialSection],
) -> str:
    """Render the page of a trial, with links to the last attempts at the nearest seeds and to all its attempts."""
    place = (run.slug, result.task, result.seed, result.attempt)
    which = f"seed {result.seed}" + (f", attempt {result.attempt}" if result.attempt > 1 else "")
    own = [each for each in of_task if each.seed == result.seed]
    last = list({each.seed: each for each in of_task}.values())
    at = next(at for at, each in enumerate(last) if each.seed == result.seed)
    near = last[max(0, min(at - _SEEDS_SHOWN // 2, len(last) - _SEEDS_SHOWN)) :][:_SEEDS_SHOWN]
    times = list(_times(result))
    status = trial_status(result)
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
        status_of=trial_status,
        sections=[_shown_section(part) for part in parts],
        recorded=any(part.cast.text for part in parts),
        data=trial_data(*place),
        task_data=task_data(result.task),
        command=rerun_command(stored.document, result.task, result.seed) if stored.document is not None else "",
        asking=inspection_commands(stored.path, result) if stored.document is not None else (),
        imported=stored.imported,
    )


def _times(result: TrialResult) -> Iterator[BarPart]:
    for name, sec in time_split([result]).parts().items():
        if sec >= 0.05:
            yield BarPart(name, sec, f"{name} {seconds(sec)}")


def _remarks(result: TrialResult) -> Iterator[tuple[str, str]]:
    """Yield remarks about the verdict and the circumstances of the trial, each with a label."""
    integrity = result.integrity
    for signal in integrity.tamper:
        yield "weak sign of tampering" if is_weak(signal) else "sign of tampering", signal
    yield from (("remark", remark) for remark in integrity.remarks)
    yield from (("repaired before the verifier ran", repair) for repair in integrity.repairs)
    yield from (("found where tests or reward belong", path) for path in integrity.evidence)
    yield from ((f"reward, verified {where}", f"{reward:g}") for where, reward in integrity.rewards.items())
    if result.replies.total:
        yield from (("replies", note) for note in reply_notes([result.replies]))
    if integrity.regrades:
        yield "verified again", f"{integrity.regrades} times"
    if result.out_of_memory:
        yield "out of memory", "the kernel killed a process in the container"
    if result.human_touched:
        yield "human input", "a human typed during the trial"
    if result.went_on:
        yield "went on after a cut", "; ".join(each.words for each in result.went_on)
    if result.machine is not None:
        yield "machine", result.machine
    if (host := result.host) is not None and (load := host.load_max or 0.0) > 2:
        yield "busy machine", f"load per CPU up to {load:.1f}"


def _shown_section(part: TrialSection) -> dict[str, Any]:
    """Return the section of a task, or of one of its steps, as the page shows it."""
    cards = list(step_cards(part.steps, part.replies, part.number, types_keys=part.protocol.startswith("keystrokes")))
    missing = omitted_steps(part.steps)
    return {
        "stored": part,
        "cards": cards,
        # The steps without a card, as text, and the number of cards before them.
        "left_out": f"Steps {missing[0]} to {missing[-1]}, {counted(len(missing), 'step')}" if missing else "",
        "left_out_after": missing[0] - 1 if missing else 0,
        "strip": timeline(cards, f"the {counted(len(cards), 'step')} by their time"),
        "prompt": [(message.role, shorten_at_lines(message.content, _PROMPT_CHARS)) for message in part.prompt],
    }


# The script with everything that the page does not contain itself: complete texts, recordings, times of steps.

_TEXT_CHARS = 200_000
"""Maximum number of characters of one text; longer ones lose their middle."""
_ALL_CHARS = 6_000_000
"""Maximum number of characters of all texts of a trial together."""
_LEAST_CHARS = 400


def _section_data(part: TrialSection) -> dict[str, Any]:
    """Return the data of a section: texts and recording packed, times as they are."""
    return {
        "name": part.name,
        "packed": _compress("\n".join(_lines(part))),
        "recorded": bool(part.cast.text),
        "times": [_data_times(each) for each in part.times],
        "remarks": [[round(at, 3), text[:200]] for at, text in part.cast.remarks[:200]],
    }


def _lines(part: TrialSection) -> Iterator[str]:
    """Yield the prompt, the steps and the events of the recording, each as a line of JSON; events are arrays.

    Each step is followed by the events recorded during it: most of their text is the same, so they compress well.
    """
    limit = _limit(part.steps)
    header, _, events = part.cast.text.partition("\n")
    # Only arrays: anything else in a recording could be mistaken for a step.
    lines = deque(line for line in events.split("\n") if line.startswith("["))
    yield _plain_json({"told": [cut(message.content, limit) for message in part.prompt], "cast": header})
    for step, reply, times in zip(part.steps, part.replies, part.times, strict=True):
        yield _plain_json(_step(step, reply, limit))
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


def _step(step: Step, reply: ReplyTexts, limit: int) -> dict[str, Any]:
    calls = "".join(f"\n{call.name}({call.arguments})" for call in step.reply.tool_calls)
    return {
        "n": step.index,
        "reasoning": cut(reply.reasoning, limit),
        "said": [cut(part.text, limit) for part in reply.parts],
        "reply": cut(step.reply.content + calls, limit),
        "actions": [cut(action, limit) for action in step.actions],
        "observation": cut(step.observation, limit),
        "exit": step.exit_code,
    }


def _limit(steps: Sequence[Step]) -> int:
    """Return the number of characters that each text may have, so that all of them fit."""
    lengths = [len(text) for step in steps for text in _all_texts(step)]
    return text_budget(lengths, _ALL_CHARS, _LEAST_CHARS, _TEXT_CHARS)


def _all_texts(step: Step) -> Iterator[str]:
    yield from (step.reply.content, step.reply.reasoning or "", step.observation, *step.actions)


def _compress(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode("ascii")


def _plain_json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
