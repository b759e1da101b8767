"""Reads what the verifier's script prints: the facts that a verdict and what speaks against it rest on, and files."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tbench.sandbox.archive import unpack

_SIGNALLED = range(129, 193)
"""Exit codes of commands that a signal ended."""
_END = re.compile(rb"([0-9a-f-]{36}) end\n\Z")
_FOREIGN = "somebody else wrote into the verifier's output"


@dataclass(frozen=True)
class Facts:
    """Facts that the verifier's script saw in the container."""

    exit_code: int | None = None
    timed_out: bool = False
    leftovers: int = 0
    """Number of the agent's processes, besides the terminal's own, when the verifier began."""
    staged_at: float = math.inf
    """When the tests were about to be put there, in seconds of the machine's clock; infinite where they were not."""
    outlived: int = 0
    """Number of processes that began after the tests did and were still there when test.sh had ended."""
    forged: tuple[str, ...] = ()
    """Reasons why test.sh was not run, a sentence each."""
    out_of_memory: bool = False
    """Whether the kernel ended processes of the container meanwhile because memory was used up, whosever."""
    memory_peak_bytes: int = 0
    """The most memory that the container has had in use, caches of files included; 0 where that is not told."""
    took_sec: float = 0.0
    """How long the verifier's script ran."""
    odd: tuple[str, ...] = ()
    """What the reward file is that counts, where it is no plain file with one name, as a sentence."""
    evidence: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    changed_tests: tuple[str, ...] = ()
    touched_tests: tuple[str, ...] = ()
    """Files of /tests that were written, or got another mode, while the tests ran, whatever they are now."""
    new_tests: tuple[str, ...] = ()
    """Code, and settings of test runners, that came to /tests while the tests ran."""
    has_watcher: bool = False
    """Whether bash told what it did."""
    has_ended: bool = False
    """Whether bash told that test.sh came to its end."""
    told: tuple[str, ...] = ()
    """The traced commands of those lines of test.sh that write a reward."""
    wrote_last: bool = False
    """Whether bash itself, after the last of them, started no other program."""
    others_spoke: bool = False
    """Whether others than bash itself, after that, wrote into its trace: a subshell, or who would be taken for one."""
    called: tuple[str, ...] = ()
    """Traced commands of bash itself that name pytest, one for each line of a script, up to 20."""
    programs: tuple[str, ...] = ()
    """Programs that test.sh ran, and that were there before it, as far as they lie elsewhere than on the search path
    that it began with; also what their links lead to, and environments of Python's that they belong to."""
    runners: tuple[str, ...] = ()
    """Those of them that ran pytest, or that bash itself read."""
    unlooked: bool = False
    """Whether there were more of them than are looked at."""
    is_cut: bool = False
    """Whether somebody changed bash's end of the channel of its trace, so that what bash says may be lost."""
    was_halted: bool = False
    """Whether somebody let go on who hears bash, who stood still until then."""
    is_complete: bool = False
    """Whether the report came to its end, so that nobody ended the verifier's shell."""

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended test.sh, but not because its time was over."""
        return self.exit_code in _SIGNALLED and not self.timed_out and not self.has_ended


NO_FACTS = Facts()


@dataclass(frozen=True)
class PartOutput:
    """What a part of the verifier's script hands over, and its report.

    It is the whole of what the part printed, between marks that were drawn for it: whoever adds a byte is seen.
    """

    handed: bytes = b""
    looked: bytes = b""
    """What a look found that was made at its end."""
    report: bytes = b""
    is_whole: bool = False
    is_foreign: bool = False
    """Whether somebody else wrote beside it; then nothing of it is believed."""

    @classmethod
    def read(cls, output: bytes, *, looks: bool = False) -> PartOutput:
        """The message in the output of a part, which may have broken off; `looks`: a look may be in it."""
        end = _END.search(output, max(0, len(output) - 64))
        if end is None:
            return cls(is_foreign=b" end\n" in output)
        pieces = output[: end.start()].split(end[1] + b"\n")
        if len(pieces) not in ((3, 4) if looks else (3,)) or pieces[0]:
            return cls(is_foreign=True)
        return cls(pieces[1], b"".join(pieces[2:-1]), pieces[-1], is_whole=True)

    @property
    def facts(self) -> dict[str, list[str]]:
        """Values of the report's lines by their kind."""
        found: dict[str, list[str]] = {}
        for line in self.report.decode("utf-8", "replace").split("\n"):
            kind, _, value = line.partition("\t")
            found.setdefault(kind, []).append(value)
        return found


def read_report(messages: Sequence[PartOutput], limit_bytes: int) -> tuple[Facts, dict[str, bytes]]:
    """The facts of all messages; the files (below /logs, and evidence; cut at the limit) that the last hands over."""
    found: dict[str, list[str]] = {}
    for message in messages:
        for kind, values in message.facts.items():
            found.setdefault(kind, []).extend(values)
    foreign = (_FOREIGN,) if any(message.is_foreign for message in messages) else ()
    last_write = found.get("wrote_last")
    code = found.get("code", [""])[0]
    facts = Facts(
        exit_code=int(code) if code.isdigit() else None,
        timed_out=found.get("late", ["0"])[0] == "1",
        leftovers=_number(found.get("left")),
        staged_at=moment(found.get("staged_at", [""])[0]),
        outlived=_number(found.get("outlived")),
        out_of_memory=len(set(found.get("killed", ()))) > 1,
        forged=tuple(found.get("forged", ())) + foreign,
        memory_peak_bytes=_number(found.get("peak")),
        odd=tuple(found.get("odd", ())),
        evidence=tuple(found.get("evidence", ())),
        repairs=tuple(found.get("repair", ())),
        changed_tests=tuple(found.get("changed", ())),
        touched_tests=tuple(found.get("touched", ())),
        new_tests=tuple(found.get("new", ())),
        has_watcher="began" in found,
        has_ended="ended" in found,
        told=tuple(found.get("told", ())) or _of_a_subshell(found.get("told_by", ())),
        wrote_last=last_write is not None,
        others_spoke=last_write not in (None, [""]),
        called=tuple(found.get("called", ())),
        programs=(*found.get("program", ()), *found.get("runner", ())),
        runners=tuple(found.get("runner", ())),
        unlooked="unlooked" in found,
        is_cut="cut" in found,
        was_halted="halted" in found,
        is_complete=all(message.is_whole for message in messages),
    )
    return facts, unpack(io.BytesIO(messages[-1].handed), limit_bytes) if messages else {}


def _of_a_subshell(told_by: Sequence[str]) -> tuple[str, ...]:
    """The lines that one other process than bash itself told; none where several did: whose are true is not known."""
    told = [line.partition(" ") for line in told_by]
    return tuple(line for _, _, line in told) if len({process for process, _, _ in told}) == 1 else ()


def moment(text: str) -> float:
    """A time in a report, in seconds; infinite where it is none."""
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else math.inf


def _number(values: list[str] | None) -> int:
    return int(values[0]) if values and values[0].isdigit() else 0
