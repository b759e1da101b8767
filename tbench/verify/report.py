"""Reads the report of the verifier's script: the facts that a verdict and the tamper signals rest on."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

from tbench.sandbox.archive import unpack


@dataclass(frozen=True)
class Suspect:
    """A file that test.sh depends on and that changed after the container began."""

    path: str
    real: str
    """Path of the file that a link leads to; the rest is about that file."""
    is_new: bool
    """Whether the file at `real` changed, too: a new link may lead to an old file."""
    md5: str = ""
    sha256: str = ""
    known: tuple[str, ...] = ()
    """Lines of dpkg's and pip's records about such a file."""
    head: bytes = b""


@dataclass(frozen=True)
class Facts:
    """Facts that the verifier's script saw in the container."""

    exit_code: int | None = None
    timed_out: bool = False
    leftovers: int = 0
    """Number of the agent's processes, besides the terminal's own, when the verifier began."""
    forged: tuple[str, ...] = ()
    """Reasons why test.sh was not run, a sentence each."""
    evidence: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    changed_tests: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Lines of /etc/hosts about servers that verifiers download from."""
    suspects: tuple[Suspect, ...] = ()
    is_complete: bool = False
    """Whether the report came to its end, so that nobody ended the verifier's shell."""


def read_report(output: bytes, limit_bytes: int) -> tuple[Facts, dict[str, bytes]]:
    """The facts and the files (below /logs, and evidence; cut at the limit) from what the script printed."""
    report, _, archive = output.partition(b"\0")
    files = unpack(io.BytesIO(archive), limit_bytes)
    heads = {name: files.pop(name) for name in list(files) if name.startswith("suspects/")}
    found: dict[str, list[str]] = {}
    for line in report.decode("utf-8", "replace").split("\n"):
        kind, _, value = line.partition("\t")
        found.setdefault(kind, []).append(value)
    code = found.get("code", [""])[0]
    facts = Facts(
        exit_code=int(code) if code.isdigit() else None,
        timed_out=found.get("late", ["0"])[0] == "1",
        leftovers=int(found.get("left", ["0"])[0]),
        forged=tuple(found.get("forged", ())),
        evidence=tuple(found.get("evidence", ())),
        repairs=tuple(found.get("repair", ())),
        changed_tests=tuple(found.get("changed", ())),
        hosts=tuple(found.get("hosts", ())),
        suspects=tuple(_suspect(line, found.get("known", []), heads) for line in found.get("suspect", ())),
        is_complete="end" in found,
    )
    return facts, files


def _suspect(line: str, known: list[str], heads: Mapping[str, bytes]) -> Suspect:
    number, path, real, is_new, md5, sha256 = (line.split("\t") + [""] * 6)[:6]
    records = tuple(text for prefix, _, text in (entry.partition("\t") for entry in known) if prefix == number)
    return Suspect(path, real, is_new == "1", md5, sha256, records, heads.get(f"suspects/{number}", b""))
