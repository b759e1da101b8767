"""Restores what an agent handed over in the verifier's own container, and looks at the tests that are there."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

from tbench.errors import TrialError
from tbench.sandbox.backend import BUSYBOX, NOT_STAGED, Sandbox, Streams
from tbench.tasks.environment import Environment
from tbench.verify.separate.handover import ArtifactEntry, HandedOver
from tbench.verify.verifier import BroughtTests, VerifierFailed

_NO_TESTS = 95
"""Exit code of restore.sh where the image lacks the tests."""
_RESTORE_SEC = 900.0
_ASIDE = "/.tbench-aside"
_SET_ASIDE = f"""{BUSYBOX} mkdir -m 700 {_ASIDE} || exit 1
number=0
while IFS= read -r path; do
    number=$((number + 1))
    if [ -e "$path" ] || [ -L "$path" ]; then {BUSYBOX} cp -a "$path" {_ASIDE}/$number || exit 1; fi
done
"""
_PUT_BACK = f"""number=0
while IFS= read -r path; do
    number=$((number + 1))
    {BUSYBOX} rm -rf "$path" || exit 1
    if [ -e {_ASIDE}/$number ] || [ -L {_ASIDE}/$number ]; then
        {BUSYBOX} mkdir -p "${{path%/*}}/" && {BUSYBOX} mv {_ASIDE}/$number "$path" || exit 1
    fi
done
{BUSYBOX} rm -rf {_ASIDE}
"""
"""What the image has at the paths on standard input, a line each, is kept, and takes its place again."""


async def restore(
    environment: Environment, sandbox: Sandbox, handed: HandedOver, without: Collection[str] = ()
) -> BroughtTests | None:
    """Put the artifacts where they were collected; returns the tests of an image that has them. Raises TrialError.

    At the paths of `without` stays what the image has there.
    """
    entries = handed.to_restore
    if not entries and not environment.brings_tests:
        return None
    if not isinstance(sandbox, Streams):
        raise TrialError("verifier_failed", "this sandbox cannot take files, so there is nothing to verify in it")
    if without:
        await _swap(sandbox, _SET_ASIDE, without)
    tests = await _restore(environment, sandbox, handed, entries)
    if without:
        await _swap(sandbox, _PUT_BACK, without)
    return tests


async def _swap(sandbox: Sandbox, script: str, paths: Collection[str]) -> None:
    listed = "".join(f"{path}\n" for path in sorted(paths) if "\n" not in path)
    ended = await sandbox.shell(
        script, timeout_sec=_RESTORE_SEC, user="root", stdin=listed.encode("utf-8", "surrogateescape")
    )
    if ended.exit_code != 0:
        raise TrialError("verifier_failed", "what turns the tests could not be left out of what was handed over")


async def _restore(
    environment: Environment, sandbox: Streams, handed: HandedOver, entries: Sequence[ArtifactEntry]
) -> BroughtTests | None:
    with handed.archive.open("rb") as archive:
        script = _script(entries, environment.brings_tests)
        ended = await sandbox.stream(script, timeout_sec=_RESTORE_SEC, user="root", source=archive)
    if ended.exit_code == _NO_TESTS:
        image = environment.settings.docker_image or f"built of {environment.folder}/"
        raise TrialError("tests_missing", f"the verifier's image ({image}) has no /tests/test.sh")
    if ended.exit_code != 0:
        why = "it took too long" if ended.timed_out else "no room, or no folder where one is needed"
        code = "" if ended.exit_code in (None, NOT_STAGED) else f" ({ended.exit_code})"
        words = f"the artifacts could not be put into the verifier's container: {why}{code}"
        # It may be what was handed over that has no place there.
        raise TrialError("verifier_failed", words) if ended.timed_out else VerifierFailed("verifier_failed", words, {})
    if not environment.brings_tests:
        return None
    others, _, script_text = ended.output.partition(b"\n")
    return BroughtTests(script_text, speak_elsewhere=others.strip() != b"0")


@cache
def _functions() -> str:
    return Path(__file__).with_name("restore.sh").read_text()


def _script(entries: Sequence[ArtifactEntry], brings_tests: bool) -> str:
    lines = [_functions()]
    for entry in entries:
        lines.append(f"{'empty' if entry.type == 'directory' else 'beside'} {shlex.quote(entry.path)}")
    if entries:
        lines.append("unpack")
    for entry in entries:
        if entry.type == "directory" and "__pycache__" not in entry.path.split("/"):
            lines.append(f"drop_caches {shlex.quote(entry.path)}")
    if brings_tests:
        lines.append("show_tests")
    return "\n".join([*lines, "exit 0"])
