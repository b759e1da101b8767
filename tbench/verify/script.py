"""The script around a task's verifier, verifier.sh, and the variables that tell it what to do."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from tbench.sandbox.archive import FileEntry
from tbench.verify.changes.walk import look_functions, walk_of_look
from tbench.verify.report import moment

Part = Literal["whole", "prepare", "run", "collect"]
"""Part of the script: `whole` prepares and runs the tests, for root. For another user root runs `prepare`, and the user
`run`. When they have ended, root runs `collect`."""
_MEND_SEC = 200.0
"""Time limit of mending."""


@dataclass(frozen=True)
class VerifierScript:
    """One run of verifier.sh. Units: seconds."""

    stage: str
    """Path of a new directory in the container, where the tests arrive."""
    tests: Mapping[str, FileEntry] | None
    """Entries of the tests by path, all below the directory `tests` of `stage`; None where the image has them."""
    workdir: str
    timeout_sec: float
    reward_lines: Sequence[int] = ()
    """Numbers of the lines of test.sh that write a reward."""
    again: bool = False
    """Whether a verifier ran there before, so that the files at /tests and /logs/verifier are our own."""
    uses_apt: bool = False
    kept: Sequence[str] = ("verifier", "agent", "artifacts")
    """Folders of /logs that come out of the container."""
    look_since: float | None = None
    """Where a pass is looked at: when the container began, in seconds of its machine's clock."""

    @property
    def limit_sec(self) -> float:
        """Time limit of all parts together, mending included."""
        return self.timeout_sec + 60.0 + (_MEND_SEC if self.again or self.uses_apt else 0.0)

    @property
    def text(self) -> str:
        """Text of the script for busybox's shell: the same for every task and every part."""
        return _script_text()

    def environment(self, part: Part, known: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """Variables that the script reads. `collect` needs the facts that are `known` of the parts before."""
        values = {
            "PART": part,
            "STAGE": self.stage,
            "DIGEST": _digest(self.tests, self.stage)
            if self.tests is not None and part in ("whole", "prepare")
            else "",
            "BROUGHT": "1" if self.tests is None else "",
            "KEPT": "\n".join(self.kept),
            "LINES": f" {' '.join(map(str, self.reward_lines))} ",
            "WORKDIR": self.workdir,
            "LIMIT_SEC": str(max(1, round(self.timeout_sec))),
            "AGAIN": "1" if self.again else "",
            "USES_APT": "1" if self.uses_apt else "",
            "BEGAN_AT": known.get("began_at", ""),
            "TICKS": known.get("ticks", ""),
            "LOOK": "",
        }
        if self.look_since is not None:
            values["LOOK"] = walk_of_look(self.look_since, moment(known.get("staged_at", "")))
        return {f"TBENCH_VERIFIER_{name}": value for name, value in values.items()}


@cache
def _script_text() -> str:
    return look_functions() + Path(__file__).with_name("verifier.sh").read_text()


def _digest(tests: Mapping[str, FileEntry], stage: str) -> str:
    """sha256 of the sorted sums that the files below /tests have when they are those that were sent."""
    lines = b"\n".join(
        hashlib.sha256(entry.data).hexdigest().encode() + b"  " + os.fsencode(path.removeprefix(stage))
        for path, entry in tests.items()
        if entry.data is not None
    )
    # A name may have line breaks in it, and is then sorted in pieces there.
    return hashlib.sha256(b"\n".join(sorted(lines.split(b"\n")))).hexdigest()
