"""The trials of a run as chunks of rendered pages with complete texts and recordings, and the page that shows one.

A file for each trial would mean 27,000 files after 300 nights. Trials of a run share most of their text, so they are
packed together in chunks, and the browser unpacks the chunk with the trial that it shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from harness.reply_stats import reply_notes
from harness.thoughts import ReplyTexts
from harness.trajectory import Step
from reports.charts import BarPart, stacked_bar
from reports.page_frame import Crumb, data_script, macros, packed_script, page, plain_json, seconds
from reports.page_paths import (
    relative_url,
    search_data,
    task_data,
    task_page,
    trial_data,
    trial_name,
    trial_page,
    trial_viewer,
)
from reports.search import searched_texts
from reports.site.content import SiteRun
from reports.trial.page_text import cut, shorten_at_lines, text_budget
from reports.trial.section import TrialSection, read_sections
from reports.trial.steps import omitted_steps, step_cards, timeline
from tbench.results import TrialResult, control_lines, is_control, is_weak
from tbench.scores.cost import token_price_text
from tbench.scores.summarise import time_split, trial_status
from tbench.scores.summary import Status
from tbench.storage.read_run import StoredRun
from tbench.storage.run_files import TRIALS_NAME
from tbench.storage.stored_trial import inspection_commands, rerun_commands
from tbench.storage.summaries import prices_of
from tbench.text import counted

_WORDS = {Status.PASS: "passed", Status.PARTIAL: "passed in part", Status.FAIL: "failed", Status.ERROR: "no verdict"}
_PROMPT_CHARS = 1200
_SEEDS_SHOWN = 11
"""Number of nearest seeds that a page links to."""


_CHUNK_CHARS = 1_000_000
"""Number of characters after which a chunk gets no further trial."""


def trial_files(run: SiteRun, stored: StoredRun) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file of all trials of a run that have ended."""
    index: list[list[str]] = []
    searched: list[str] = []
    for number, chunk in enumerate(_chunks(_trials(run, stored))):
        index.append([trial.name for trial in chunk])
        searched += [trial.searched for trial in chunk]
        yield trial_data(run.slug, number), packed_script(f"trials {run.slug} {number}", (each.text for each in chunk))
    yield search_data(run.slug), packed_script(f"search {run.slug}", searched)
    yield trial_data(run.slug), data_script(f"trials {run.slug}", index)
    place = trial_viewer(run.slug)
    yield place, page("trial_viewer.html.j2", place, crumbs=[Crumb(run.row.name, run.page)], run=run)


class _PackedTrial(NamedTuple):
    """Trial as lines of JSON."""

    name: str
    text: str
    """Its page and the data of its sections."""
    searched: str
    """Its texts that can be searched."""


def _chunks(trials: Iterable[_PackedTrial]) -> Iterator[list[_PackedTrial]]:
    chunk, size = list[_PackedTrial](), 0
    for each in trials:
        chunk.append(each)
        size += len(each.text)
        if size >= _CHUNK_CHARS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _trials(run: SiteRun, stored: StoredRun) -> Iterator[_PackedTrial]:
    """Yield the trials, task by task."""
    ended = {(each.task, each.seed, each.attempt): each for each in stored.results}
    of_task: dict[str, list[TrialResult]] = {}
    for result in sorted(ended.values(), key=lambda each: (each.seed, each.attempt)):
        of_task.setdefault(result.task, []).append(result)
    shown, is_kept = _ShownRun(run, stored), (stored.path / TRIALS_NAME).is_dir()
    for result in (each for found in of_task.values() for each in found):
        parts = read_sections(stored.path, result, is_kept=is_kept)
        html = shown.page(result, of_task[result.task], parts)
        data = {"html": html, "sections": [_section_data(part) for part in parts]}
        name, texts = trial_name(result.task, result.seed, result.attempt), list(searched_texts(parts))
        found = {"trial": name, "task": result.task, "status": trial_status(result), "texts": texts}
        yield _PackedTrial(name, plain_json(data), plain_json(found))


class _ShownRun:
    """Renders the trials of a run."""

    def __init__(self, run: SiteRun, stored: StoredRun) -> None:
        self._stored = stored
        self._here = trial_viewer(run.slug)
        self._rerun = rerun_commands(stored.document) if stored.document is not None else lambda task, seed: ""
        self._prices = prices_of(stored)
        self._run_href = relative_url(self._here, run.page)
        self._slug = run.slug

    def _href(self, trial: TrialResult) -> str:
        return relative_url(self._here, trial_page(self._slug, trial.task, trial.seed, trial.attempt))

    def page(self, result: TrialResult, of_task: Sequence[TrialResult], parts: Sequence[TrialSection]) -> str:
        """Render a trial, with links to the last attempts at the nearest seeds and to all its attempts."""
        which = f"seed {result.seed}" + (f", attempt {result.attempt}" if result.attempt > 1 else "")
        own = [each for each in of_task if each.seed == result.seed]
        last = list({each.seed: each for each in of_task}.values())
        at = next(at for at, each in enumerate(last) if each.seed == result.seed)
        near = last[max(0, min(at - _SEEDS_SHOWN // 2, len(last) - _SEEDS_SHOWN)) :][:_SEEDS_SHOWN]
        times = list(_times(result))
        status = trial_status(result)
        about = (note for note in self._stored.trial_notes if note.is_about(result.task, result.seed))
        notes = [("note", note.words) for note in about]
        return page(
            "trial.html.j2",
            self._here,
            parts=macros("trial_parts.html.j2"),
            task_href=relative_url(self._here, task_page(result.task)),
            run_href=self._run_href,
            result=result,
            which=which,
            status=status,
            words=_WORDS[status],
            times=times,
            bar=stacked_bar(times, label="where the time went: " + ", ".join(part.words for part in times)),
            cost=token_price_text(result, self._prices),
            remarks=[*notes, *_remarks(result)],
            seeds=[(each.seed, trial_status(each), self._href(each)) for each in near],
            attempts=[(each.attempt, trial_status(each), self._href(each)) for each in own] if len(own) > 1 else (),
            before=self._href(last[at - 1]) if at > 0 else None,
            after=self._href(last[at + 1]) if at + 1 < len(last) else None,
            sections=[_shown_section(part) for part in parts],
            name=trial_name(result.task, result.seed, result.attempt),
            task_data=task_data(result.task),
            command=self._rerun(result.task, result.seed),
            asking=_asking(self._stored, result, parts),
            imported=self._stored.imported,
        )


def _asking(stored: StoredRun, result: TrialResult, parts: Sequence[TrialSection]) -> Sequence[tuple[str, str]]:
    """Return the commands that show more of the trial, if its files still exist."""
    if stored.document is None or not any(part.is_kept for part in parts):
        return ()
    return inspection_commands(stored.path, result, has_steps=any(part.steps for part in parts))


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
    yield from (("control tests", words) for words in control_lines(integrity))
    rewards = {where: reward for where, reward in integrity.rewards.items() if not is_control(where)}
    yield from ((f"reward, verified {where}", f"{reward:g}") for where, reward in rewards.items())
    if result.replies.total:
        yield from (("replies", note) for note in reply_notes([result.replies]))
    if integrity.regrades:
        yield "verified again", counted(integrity.regrades, "time")
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
        "strip": timeline(cards, f"timeline of {counted(len(cards), 'step')}"),
        "prompt": [(message.role, shorten_at_lines(message.content, _PROMPT_CHARS)) for message in part.prompt],
    }


# Everything that the page does not contain itself: complete texts, recordings, times of steps.

_TEXT_CHARS = 200_000
"""Maximum number of characters of one text; longer ones lose their middle."""
_ALL_CHARS = 6_000_000
"""Maximum number of characters of all texts of a trial together."""
_LEAST_CHARS = 400


def _section_data(part: TrialSection) -> dict[str, Any]:
    """Return the data of a section: texts and recording as lines of JSON, and the times of its steps."""
    return {
        "name": part.name,
        "lines": "\n".join(_lines(part)),
        "recorded": bool(part.cast.text),
        "times": [
            None if each is None else [round(sec, 3) for sec in (each.begin, each.typed, each.end)]
            for each in part.times
        ],
        "remarks": [[round(at, 3), text[:200]] for at, text in part.cast.remarks[:200]],
    }


def _lines(part: TrialSection) -> Iterator[str]:
    """Yield the prompt, the steps and the events of the recording, each as a line of JSON; events are arrays.

    Each step is followed by the events recorded during it, which repeat most of its text and so compress well.
    """
    limit = _limit(part.steps)
    header, _, events = part.cast.text.partition("\n")
    # Only arrays: anything else in a recording could be mistaken for a step.
    lines = deque(line for line in events.split("\n") if line.startswith("["))
    yield plain_json({"told": [cut(message.content, limit) for message in part.prompt], "cast": header})
    for step, reply, times in zip(part.steps, part.replies, part.times, strict=True):
        yield plain_json(_step(step, reply, limit))
        while times is not None and lines and _time_of(lines[0]) <= times.end:
            yield lines.popleft()
    yield from lines


def _time_of(line: str) -> float:
    try:
        return float(line[1 : line.index(",")])
    except ValueError:
        return 0.0


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
    texts = ((each.reply.content, each.reply.reasoning or "", each.observation, *each.actions) for each in steps)
    return text_budget((len(text) for each in texts for text in each), _ALL_CHARS, _LEAST_CHARS, _TEXT_CHARS)
