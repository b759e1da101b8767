"""Reads the report of the verifier's script: the facts that a verdict and what speaks against it rest on."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass

from tbench.sandbox.archive import unpack

_SIGNALLED = 129
"""The lowest exit code of a command that a signal ended."""


@dataclass(frozen=True)
class Facts:
    """Facts that the verifier's script saw in the container."""

    exit_code: int | None = None
    timed_out: bool = False
    leftovers: int = 0
    """Number of the agent's processes, besides the terminal's own, when the verifier began."""
    began_at: str = ""
    """When test.sh began, in seconds by the container's clock; empty where that is not known."""
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
    """Reward files that are no plain files: links, pipes, directories, or files with a second name."""
    evidence: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    changed_tests: tuple[str, ...] = ()
    touched_tests: tuple[str, ...] = ()
    """Files of /tests whose status changed beside processes of the agent: they may have been other for a while."""
    new_tests: tuple[str, ...] = ()
    """Code, and settings of test runners, that came to /tests while the tests ran."""
    changed_before: frozenset[str] = frozenset()
    """Paths that changed before the tests, where tools, Python's modules and settings lie."""
    has_watcher: bool = False
    """Whether bash told what it did."""
    has_ended: bool = False
    """Whether bash told that test.sh came to its end."""
    told: tuple[str, ...] = ()
    """The traced commands of those lines of test.sh that write a reward."""
    wrote_last: bool = True
    """Whether bash ran nothing but its own commands after the last of them."""
    is_complete: bool = False
    """Whether the report came to its end, so that nobody ended the verifier's shell."""

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended test.sh, but not because its time was over."""
        return (self.exit_code or 0) >= _SIGNALLED and not self.timed_out and not self.has_ended

    @property
    def never_began(self) -> bool:
        """Whether bash did not tell that it began with test.sh, though nothing ended it."""
        return self.is_complete and not (self.has_watcher or self.forged or self.timed_out or self.out_of_memory)


NO_FACTS = Facts()


def read_report(output: bytes, limit_bytes: int) -> tuple[Facts, dict[str, bytes]]:
    """The facts and the files (below /logs, and evidence; cut at the limit) from what the script printed."""
    report, _, archive = output.partition(b"\0")
    found: dict[str, list[str]] = {}
    for line in report.decode("utf-8", "replace").split("\n"):
        kind, _, value = line.partition("\t")
        found.setdefault(kind, []).append(value)
    code = found.get("code", [""])[0]
    facts = Facts(
        exit_code=int(code) if code.isdigit() else None,
        timed_out=found.get("late", ["0"])[0] == "1",
        leftovers=_number(found.get("left")),
        began_at=began_at if re.fullmatch(r"\d+\.\d+", began_at := found.get("began_at", [""])[0]) else "",
        outlived=_number(found.get("outlived")),
        out_of_memory=len(set(found.get("killed", ()))) > 1,
        forged=tuple(found.get("forged", ())),
        memory_peak_bytes=_number(found.get("peak")),
        odd=tuple(found.get("odd", ())),
        evidence=tuple(found.get("evidence", ())),
        repairs=tuple(found.get("repair", ())),
        changed_tests=tuple(found.get("changed", ())),
        touched_tests=tuple(found.get("touched", ())),
        new_tests=tuple(found.get("new", ())),
        changed_before=frozenset(found.get("before", ())),
        has_watcher="began" in found,
        has_ended="ended" in found,
        told=tuple(found.get("told", ())),
        is_complete="end" in found,
    )
    return facts, unpack(io.BytesIO(archive), limit_bytes)


def _number(values: list[str] | None) -> int:
    return int(values[0]) if values and values[0].isdigit() else 0
