"""Programs that test.sh ran and that an agent had put where neither the image nor the instruction has any."""

from __future__ import annotations

from collections.abc import Collection

from tbench.verify.changes.facts import Tests
from tbench.verify.changes.signs import Sign
from tbench.verify.report import Facts

_UNLOOKED = "in test.sh: it ran more programs from elsewhere than are looked at"


def planted_programs(facts: Facts, image_paths: Collection[str], tests: Tests) -> tuple[Sign, ...]:
    """Signs `program-planted` against what test.sh ran, though it neither brought nor made it.

    Programs in the work are the work, unless they run the tests.
    """
    work = f"{tests.workdir.rstrip('/')}/"
    found = [
        Sign("program-planted", path, "ran in test.sh, was there before it, and is neither the image's nor asked for")
        for path in facts.programs
        if path not in image_paths
        and not tests.asks_for(path)
        and (path in facts.runners or work == "/" or not path.startswith(work))
    ]
    return (*found, *([Sign("program-planted", "/tests/test.sh", _UNLOOKED)] if facts.unlooked else []))
