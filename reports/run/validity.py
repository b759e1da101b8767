"""Checks of whether the score of a run can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tbench.scores.summary import Flag, Summary
from tbench.storage.read_run import StoredRun
from tbench.storage.trial_notes import TrialNote
from tbench.text import counted, names_text

FLAGS_SHOWN = 50
"""Number of trials with signs of tampering, and of notes, that a page names."""
_REPEATS_SHOWN = 10


class Standing(StrEnum):
    """Result of a check."""

    GOOD = "good"
    DOUBT = "doubt"
    BAD = "bad"
    UNKNOWN = "unknown"

    @property
    def symbol(self) -> str:
        return {"good": "✓", "doubt": "!", "bad": "✗", "unknown": "·"}[self]


@dataclass(frozen=True, slots=True)
class ValidityCheck:
    """Check of one aspect of the run, and its result."""

    standing: Standing
    title: str
    text: str
    trials: tuple[tuple[str, str], ...] = ()
    """Trials that the check names, and a remark on each."""
    details: tuple[str, ...] = ()


def validity_checks(run: StoredRun, summary: Summary) -> tuple[ValidityCheck, ...]:
    """Return all checks of a run."""
    return (
        _coverage(summary),
        _tampering(summary),
        _tasks(run, summary),
        *_leaderboard(run, summary),
        *_calibration(run, summary),
        _limits(run, summary),
        _pressure(run, summary),
        *_replies(summary),
        *_humans(summary),
        *_people(run, summary),
        *_repeated_results(summary),
        *_remarks(summary),
        *_other_results(summary),
        *(ValidityCheck(Standing.DOUBT, "While reading", note) for note in run.notes),
    )


def _coverage(summary: Summary) -> ValidityCheck:
    counts = summary.counts
    if counts.scored == counts.planned:
        words = f"{counts.scored:,} of {counted(counts.planned, 'trial')} got a verdict"
        return ValidityCheck(Standing.GOOD, "Coverage", words)
    lacking = [f"{counted(counts.errors, 'error')}"] if counts.errors else []
    lacking += [f"{counts.missing:,} without a result"] if counts.missing else []
    never = [row.task for row in summary.tasks if not row.scored]
    details = (f"without any verdict: {names_text(never)}",) if never and not counts.missing else ()
    words = f"{counts.scored:,} of {counted(counts.planned, 'trial')} got a verdict; {', '.join(lacking)}"
    return ValidityCheck(Standing.DOUBT, "Coverage", words, details=details)


def _tampering(summary: Summary) -> ValidityCheck:
    counts = summary.counts
    if not summary.flags:
        return ValidityCheck(Standing.GOOD, "Tampering", "no sign in any trial")
    strong = f"signs in {counted(counts.flagged, 'trial')}" if counts.flagged else "no strong sign"
    weak = f"weak signs in {counted(counts.weakly_flagged, 'trial')}, often left by honest work"
    words = "; ".join([strong, weak] if counts.weakly_flagged else [strong])
    shown = tuple((flag.trial, _flag_text(flag)) for flag in summary.flags[:FLAGS_SHOWN])
    more = len(summary.flags) - len(shown)
    details = (f"and {counted(more, 'more trial')}",) if more else ()
    return ValidityCheck(Standing.BAD if counts.flagged else Standing.DOUBT, "Tampering", words, shown, details)


def _flag_text(flag: Flag) -> str:
    reward = "no verdict" if flag.reward is None else f"reward {flag.reward:g}"
    weak = "weak: " if flag.is_weak else ""
    return f"{reward}; {weak}{'; '.join(flag.tamper)}"


def _tasks(run: StoredRun, summary: Summary) -> ValidityCheck:
    known = len(run.task_hashes)
    hashes = f"content hashes recorded for {known} of {counted(len(summary.tasks), 'task')}"
    dataset = summary.dataset
    if dataset is None:
        standing = Standing.GOOD if known == len(summary.tasks) else Standing.UNKNOWN
        return ValidityCheck(standing, "Tasks", f"not from a published dataset; {hashes}")
    details = [hashes]
    if dataset.digest is not None:
        details.append(f"dataset digest {dataset.digest}")
    if dataset.listed_commit is not None and dataset.commit != dataset.listed_commit:
        details.append(f"commit differs from the listed {dataset.listed_commit[:12]}")
    standings = {True: Standing.GOOD, False: Standing.BAD, None: Standing.UNKNOWN}
    return ValidityCheck(standings[dataset.verified], "Tasks", dataset.words, details=tuple(details))


def _leaderboard(run: StoredRun, summary: Summary) -> Iterator[ValidityCheck]:
    if summary.broken_rules:
        words = f"does not follow the rules of the dataset's leaderboard: {'; '.join(summary.broken_rules)}"
        yield ValidityCheck(Standing.DOUBT, "Leaderboard", words)
    elif run.document is not None and summary.dataset is not None and summary.dataset.trials_per_task is not None:
        yield ValidityCheck(Standing.GOOD, "Leaderboard", "follows the rules of the dataset's leaderboard")


def _calibration(run: StoredRun, summary: Summary) -> Iterator[ValidityCheck]:
    if summary.unhealthy is not None:
        yield ValidityCheck(Standing.DOUBT, "Calibration", summary.unhealthy_line)
    elif run.document is not None and run.document.unhealthy is not None:
        yield ValidityCheck(Standing.GOOD, "Calibration", "all tasks with an oracle are healthy on this machine")


def _limits(run: StoredRun, summary: Summary) -> ValidityCheck:
    details = tuple(words for words in run.lacking_limits_and_disks if words not in summary.lacking_limits)
    wrong = [f"Overridden: {', '.join(summary.overrides)}"] if summary.overrides else []
    wrong += [f"{words}: trials may have used more than their tasks allow" for words in summary.lacking_limits]
    if wrong:
        return ValidityCheck(Standing.DOUBT, "Limits", "; ".join(wrong), details=details)
    if run.document is None:
        return ValidityCheck(Standing.UNKNOWN, "Limits", "it is not recorded which limits applied")
    return ValidityCheck(Standing.GOOD, "Limits", "timeouts, CPUs and memory as the tasks specify", details=details)


def _pressure(run: StoredRun, summary: Summary) -> ValidityCheck:
    if summary.pressure is not None:
        return ValidityCheck(Standing.DOUBT, "Machine", f"{summary.pressure.words}.")
    if all(result.host is None for result in run.results):
        return ValidityCheck(Standing.UNKNOWN, "Machine", "its load was not recorded")
    return ValidityCheck(Standing.GOOD, "Machine", "no trial failed while the machine was under pressure")


def _replies(summary: Summary) -> Iterator[ValidityCheck]:
    if notes := summary.reply_notes:
        yield ValidityCheck(Standing.DOUBT, "Replies", notes[0], details=notes[1:])
    elif summary.replies.total:
        yield ValidityCheck(Standing.GOOD, "Replies", "nothing unusual in their metadata")


def _humans(summary: Summary) -> Iterator[ValidityCheck]:
    if touched := summary.counts.human_touched:
        words = f"a human typed in {counted(touched, 'trial')} that {'counts' if touched == 1 else 'count'}"
        yield ValidityCheck(Standing.BAD, "Human input", words)


def _people(run: StoredRun, summary: Summary) -> Iterator[ValidityCheck]:
    if notes := run.trial_notes:
        words = summary.tags_line or f"{counted(len(notes), 'note')} without tags"
        named = tuple((_noted_trial(note), note.words) for note in notes[:FLAGS_SHOWN])
        details = (f"and {counted(len(notes) - len(named), 'more note')}",) if len(notes) > len(named) else ()
        yield ValidityCheck(Standing.DOUBT, "Notes", f"{words}; the score counts them like all others", named, details)


def _noted_trial(note: TrialNote) -> str:
    return note.task if note.seed is None else f"{note.task} seed {note.seed}"


def _repeated_results(summary: Summary) -> Iterator[ValidityCheck]:
    if repeated := summary.repeated:
        words = f"{counted(len(repeated), 'trial')} with more than one final result; the last one counts"
        yield ValidityCheck(Standing.DOUBT, "Repeated results", words, details=repeated[:_REPEATS_SHOWN])


def _remarks(summary: Summary) -> Iterator[ValidityCheck]:
    counts = summary.counts
    if counts.remarked:
        words = f"{counted(counts.remarked, 'trial')} with reward 0, a failed tool and no sign of a test in the output"
        yield ValidityCheck(Standing.DOUBT, "Verifier", words)
    repairs = [f"{counted(counts.repaired, 'container')} repaired before the tests"] if counts.repaired else []
    repairs += [f"{counted(counts.regraded, 'verifier')} run again"] if counts.regraded else []
    if repairs:
        yield ValidityCheck(Standing.UNKNOWN, "Repairs", ", ".join(repairs))


def _other_results(summary: Summary) -> Iterator[ValidityCheck]:
    counts = summary.counts
    if counts.other_attempts:
        words = f"{counted(counts.other_attempts, 'earlier attempt')} repeated and not counted"
        yield ValidityCheck(Standing.UNKNOWN, "Attempts", words)
    if counts.unplanned:
        words = f"{counted(counts.unplanned, 'result')} outside the plan, not counted"
        yield ValidityCheck(Standing.DOUBT, "Plan", words)
