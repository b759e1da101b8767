"""The head of a trial's page: which trial it was, what became of it, and where its time went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from harness.replies import reply_notes
from reports.charts.stacked_bar import BarPart, stacked_bar
from reports.look import seconds
from tbench.results import ErrorInfo, TrialResult, is_weak
from tbench.scores.summarise import status_of, time_split
from tbench.scores.summary import Status

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
