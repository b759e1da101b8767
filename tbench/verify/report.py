"""Parses the output of verifier.sh into files and facts about the run, from which verdict and signs are derived."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tbench.sandbox.archive import unpack

_SIGNALLED = range(129, 193)
"""Exit codes of commands that were ended by a signal."""
_END = re.compile(rb"([0-9a-f-]{36}) end\n\Z")
_FOREIGN = "another process wrote into the verifier's output"


@dataclass(frozen=True)
class Facts:
    """Facts that verifier.sh observed in the container."""

    exit_code: int | None = None
    timed_out: bool = False
    leftovers: int = 0
    """Number of the agent's processes, besides the terminal's own, when the verifier began."""
    staged_at: float = math.inf
    """Time just before the tests were staged, in seconds of the machine's clock; infinite if they were not."""
    outlived: int = 0
    """Number of processes that started after the tests did and were still running after test.sh ended."""
    forged: tuple[str, ...] = ()
    """Reasons why test.sh was not run or its output is not trusted, one sentence each."""
    out_of_memory: bool = False
    """Whether the kernel killed any process of the container during the run because memory ran out."""
    memory_peak_bytes: int = 0
    """Peak memory use of the container, file caches included; 0 if unknown."""
    took_sec: float = 0.0
    """Duration of verifier.sh."""
    odd_reward_files: tuple[str, ...] = ()
    """Sentences about a reward file that is not a regular file, or has more than one hard link."""
    evidence: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    changed_tests: tuple[str, ...] = ()
    touched_tests: tuple[str, ...] = ()
    """Files in /tests that were written or got another mode while the tests ran, even if they were restored."""
    new_tests: tuple[str, ...] = ()
    """Code and test runner settings that appeared in /tests while the tests ran."""
    has_watcher: bool = False
    """Whether bash's trace was recorded."""
    has_ended: bool = False
    """Whether bash's trace shows that test.sh reached its end."""
    traced_writes: tuple[str, ...] = ()
    """Traced commands of the lines of test.sh that write a reward."""
    wrote_last: bool = False
    """Whether bash started no other program after the last traced write."""
    others_wrote_trace: bool = False
    """Whether another process (a subshell, or one posing as a subshell) wrote into bash's trace after the
    last traced write."""
    called: tuple[str, ...] = ()
    """Commands traced by bash itself that name pytest, one per line of a script, up to 20."""
    programs: tuple[str, ...] = ()
    """Programs that test.sh ran from outside its initial search path, and that existed before it; also the targets
    of their links, and the Python environments that they belong to."""
    runners: tuple[str, ...] = ()
    """Subset of `programs` that ran pytest or were read by bash itself."""
    has_unchecked_programs: bool = False
    """Whether there were more `programs` than are checked."""
    is_cut: bool = False
    """Whether a process tampered with bash's end of the trace channel, so that parts of the trace may be lost."""
    was_halted: bool = False
    """Whether the reader of bash's trace was stopped for a while and then continued."""
    is_complete: bool = False
    """Whether the report reached its end: the verifier's shell was not killed."""

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended test.sh for another reason than its time limit."""
        return self.exit_code in _SIGNALLED and not self.timed_out and not self.has_ended


NO_FACTS = Facts()


@dataclass(frozen=True)
class PartOutput:
    """Payload and report that one part of verifier.sh printed.

    A random mark frames the whole output, so that any byte added by another process shows.
    """

    payload: bytes = b""
    inspection: bytes = b""
    """Output of the container's inspection at the end of the part."""
    report: bytes = b""
    is_whole: bool = False
    has_foreign_output: bool = False
    """Whether another process wrote into the output; then all of it is ignored."""

    @classmethod
    def read(cls, output: bytes, *, inspects: bool = False) -> PartOutput:
        """Parse the output of a part, which may be cut off. `inspects`: it may contain an inspection."""
        end = _END.search(output, max(0, len(output) - 64))
        if end is None:
            return cls(has_foreign_output=b" end\n" in output)
        pieces = output[: end.start()].split(end[1] + b"\n")
        if len(pieces) not in ((3, 4) if inspects else (3,)) or pieces[0]:
            return cls(has_foreign_output=True)
        return cls(pieces[1], b"".join(pieces[2:-1]), pieces[-1], is_whole=True)

    @property
    def facts(self) -> dict[str, list[str]]:
        """Values of the report's lines, by kind."""
        found: dict[str, list[str]] = {}
        for line in self.report.decode("utf-8", "replace").split("\n"):
            kind, _, value = line.partition("\t")
            found.setdefault(kind, []).append(value)
        return found


def read_report(outputs: Sequence[PartOutput], limit_bytes: int) -> tuple[Facts, dict[str, bytes]]:
    """Return the facts of all outputs, and the files of the last one: logs and evidence, cut at the limit."""
    found: dict[str, list[str]] = {}
    for output in outputs:
        for kind, values in output.facts.items():
            found.setdefault(kind, []).extend(values)
    foreign = (_FOREIGN,) if any(output.has_foreign_output for output in outputs) else ()
    last_write = found.get("wrote_last")
    code = found.get("code", [""])[0]
    facts = Facts(
        exit_code=int(code) if code.isdigit() else None,
        timed_out=found.get("late", ["0"])[0] == "1",
        leftovers=_number(found.get("left")),
        staged_at=parse_time(found.get("staged_at", [""])[0]),
        outlived=_number(found.get("outlived")),
        out_of_memory=len(set(found.get("killed", ()))) > 1,
        forged=tuple(found.get("forged", ())) + foreign,
        memory_peak_bytes=_number(found.get("peak")),
        odd_reward_files=tuple(found.get("odd", ())),
        evidence=tuple(found.get("evidence", ())),
        repairs=tuple(found.get("repair", ())),
        changed_tests=tuple(found.get("changed", ())),
        touched_tests=tuple(found.get("touched", ())),
        new_tests=tuple(found.get("new", ())),
        has_watcher="began" in found,
        has_ended="ended" in found,
        traced_writes=tuple(found.get("told", ())) or _subshell_lines(found.get("told_by", ())),
        wrote_last=last_write is not None,
        others_wrote_trace=last_write not in (None, [""]),
        called=tuple(found.get("called", ())),
        programs=(*found.get("program", ()), *found.get("runner", ())),
        runners=tuple(found.get("runner", ())),
        has_unchecked_programs="unlooked" in found,
        is_cut="cut" in found,
        was_halted="halted" in found,
        is_complete=all(output.is_whole for output in outputs),
    )
    return facts, unpack(io.BytesIO(outputs[-1].payload), limit_bytes) if outputs else {}


def _subshell_lines(told_by: Sequence[str]) -> tuple[str, ...]:
    """Return the lines that a single subshell traced; empty if several did, as any of them may be forged."""
    traced = [line.partition(" ") for line in told_by]
    return tuple(line for _, _, line in traced) if len({process for process, _, _ in traced}) == 1 else ()


def parse_time(text: str) -> float:
    """Return the time that a report states, in seconds; infinite if it is malformed."""
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else math.inf


def _number(values: list[str] | None) -> int:
    return int(values[0]) if values and values[0].isdigit() else 0
