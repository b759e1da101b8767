"""What the tests installed beside processes of the agent's, compared with what they install without them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from posixpath import dirname
from typing import Any

import pytest
from seen_changes import container, strong, weak

from tbench.errors import TrialError
from tbench.sandbox.archive import FileEntry, pack
from tbench.sandbox.backend import ExecResult
from tbench.sandbox.fake import FakeSandbox
from tbench.tasks.task import Task
from tbench.verify.changes.installed import UNCOMPARED, Late, compared, late_code, place
from tbench.verify.changes.signs import Sign
from tbench.verify.policy import verify_by
from tbench.verify.report import Facts

SITE = "/usr/local/lib/python3.11/site-packages"
MODULE = f"{SITE}/_pytest/reports.py"
COMPILED = f"{SITE}/_pytest/__pycache__/reports.cpython-311.pyc"
RECORD = f"{SITE}/pytest-8.4.1.dist-info/RECORD"
GENUINE: Mapping[str, bytes] = {MODULE: b"code", f"{SITE}/_pytest/__init__.py": b"", RECORD: b"names"}
INSTALLS = "pip install pytest\npython3 /tests/judge.py\n"
WEAK = Sign(UNCOMPARED, f"{SITE}/_pytest", "changed")

OLD = "# -*- coding: utf-8 -*-\nimport re\n"
MAIN = """if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script.pyw|.exe)?$', '', sys.argv[0])
    sys.exit(console_main())
"""


class Holding(FakeSandbox):
    """A sandbox that tells of files; `links` has targets, `written` when something was changed, in seconds."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        *,
        links: Mapping[str, str] | None = None,
        written: Mapping[str, int] | None = None,
        checked: bytes = b"",
    ) -> None:
        super().__init__()
        self.held, self.links, self.written, self.checked = dict(files), dict(links or {}), dict(written or {}), checked
        self.folders = {dirname(path) for path in self.held}
        self.changed = dict.fromkeys([*self.held, *self.links, *self.folders], "added")

    async def shell(self, script: str, **words: Any) -> ExecResult:
        if "check.py" in script:
            return ExecResult(0, self.checked)
        asked = words["stdin"].decode().splitlines()
        if "tar -chf" in script:
            return ExecResult(
                0, pack({f"/{path}": FileEntry(self.held[f"/{path}"]) for path in asked if f"/{path}" in self.held})
            )
        told, sums = "", ""
        for path in asked:
            at = f"2026-01-01 00:00:{self.written.get(path, 0):02}.500000000 +0000"
            if path in self.folders:
                told += f"41ed {at} '{path}'\n"
            elif path in self.links:
                told += f"a1ff {at} '{path}' -> '{self.links[path]}'\n"
            elif path in self.held:
                told += f"81a4 {at} '{path}'\n"
                sums += f"{hashlib.sha256(self.held[path]).hexdigest()}  {path}\n"
        return ExecResult(0, f"{told}\0{sums}".encode())


async def judged(here: Holding, there: Holding, *signs: Sign, brought: tuple[str, ...] = ()) -> Any:
    seen = container({**here.held, **dict.fromkeys(here.links, b"")}, script="pip install pytest\n")
    return await compared(here, there, Late(seen, signs or (WEAK,), frozenset(here.changed), brought))


async def test_what_is_installed_elsewhere_too_is_no_sign() -> None:
    assert await judged(Holding(GENUINE), Holding(GENUINE)) == ()


async def test_other_signs_stay() -> None:
    other = Sign("tool-replaced", "/usr/bin/jq", "is another")
    assert await judged(Holding(GENUINE), Holding(GENUINE), WEAK, other) == (other,)


@pytest.mark.parametrize(
    "here",
    [
        {**GENUINE, MODULE: b"edited"},
        {**GENUINE, f"{SITE}/_pytest/reports/__init__.py": b"edited"},
        {**GENUINE, f"{SITE}/zz.pth": b"import evil"},
        {**GENUINE, f"{SITE}/zz-1.dist-info/entry_points.txt": b"[pytest11]"},
        {**GENUINE, "/usr/local/bin/pytest": b"#!/bin/sh"},
        {**GENUINE, f"{SITE}/a\nb.pth": b"import evil"},
    ],
    ids=["edited", "comes before", "hook", "plugin", "program", "odd name"],
)
async def test_what_can_run_and_is_other_or_more_is_a_strong_sign(here: Mapping[str, bytes]) -> None:
    signs = await judged(Holding(here), Holding(GENUINE))
    assert (strong(signs), weak(signs)) == ({"changed-meanwhile"}, set())


async def test_what_cannot_run_does_not_matter() -> None:
    here = {**GENUINE, RECORD: b"others", f"{SITE}/x.dist-info/INSTALLER": b"uv", "/usr/lib/notes.txt": b"words"}
    assert await judged(Holding(here), Holding(GENUINE)) == ()


async def test_what_a_rule_speaks_of_matters_whatever_it_is() -> None:
    here = {**GENUINE, "/etc/pip.conf": b"index"}
    assert strong(await judged(Holding(here), Holding(GENUINE), Sign(UNCOMPARED, "/etc/pip.conf", "x")))


async def test_directories_that_uv_draws_by_lot_are_the_same() -> None:
    cache = "/root/.cache/uv"
    here, there = (
        Holding(
            {
                f"{cache}/archive-v0/{name}/_pytest/reports.py": b"code",
                f"{cache}/archive-v0/{name}/bin/activate.csh": each,
            },
            links={f"{cache}/wheels-v5/pypi/pytest/8.4.1": f"{cache}/archive-v0/{name}"},
        )
        for name, each in (("archive-v0/a1", b"a1"), ("archive-v0/b2", b"b2"))
    )
    assert place(f"{cache}/archive-v0/a1/x") == place(f"{cache}/archive-v0/b2/x")
    assert await judged(here, there) == ()


async def test_a_script_of_another_pip_is_the_same_program() -> None:
    new, old = (
        f"#!/usr/bin/python3\n{more}import sys\nfrom pytest import console_main\n{MAIN}".encode() for more in ("", OLD)
    )
    script = "/usr/local/bin/pytest"
    assert await judged(Holding({**GENUINE, script: new}), Holding({**GENUINE, script: old})) == ()
    evil = new.replace(b"from pytest", b"from evil")
    assert strong(await judged(Holding({**GENUINE, script: evil}), Holding({**GENUINE, script: old})))


async def test_a_link_that_leads_to_another_directory_is_a_strong_sign() -> None:
    here, there = (Holding(GENUINE, links={f"{SITE}/six": target}) for target in ("/opt/evil", "six-1"))
    assert strong(await judged(here, there))


async def test_what_was_put_back_was_written_after_the_last_record() -> None:
    there = Holding(GENUINE, written={MODULE: 1, RECORD: 2})
    assert strong(await judged(Holding(GENUINE, written={MODULE: 9, RECORD: 8}), there)) == {"changed-meanwhile"}
    assert await judged(Holding(GENUINE, written={MODULE: 8, RECORD: 9}), there) == ()
    # A directory in which something was for a while.
    assert strong(await judged(Holding(GENUINE, written={f"{SITE}/_pytest": 9, RECORD: 8}), there))
    # There it comes after the record as well.
    there = Holding(GENUINE, written={MODULE: 3, RECORD: 2})
    assert await judged(Holding(GENUINE, written={MODULE: 9, RECORD: 8}), there) == ()


@pytest.mark.parametrize(
    ("checked", "kinds"),
    [
        (b"0 1\n", (set(), set())),
        (b"0 0\n", ({"changed-meanwhile"}, set())),
        (b"", (set(), {UNCOMPARED})),
        (b"0 1\n0 0\n", (set(), set())),
        (b"0 0\n0 1\n", (set(), set())),
    ],
    ids=["its source's", "not its source's", "of another python", "the first python's", "the second python's"],
)
async def test_bytecode_is_what_the_control_s_python_makes_of_its_source(
    checked: bytes, kinds: tuple[set[str], set[str]]
) -> None:
    there = Holding(GENUINE, checked=checked)
    signs = await judged(Holding({**GENUINE, COMPILED: b"x" * 20}), there)
    assert (strong(signs), weak(signs)) == kinds
    assert there.files["/.tbench-bytecode/0.py"].data == b"code"


async def test_so_much_bytecode_as_cannot_be_read_at_once_is_read_piece_by_piece() -> None:
    many = {f"{SITE}/a/__pycache__/m{number}.cpython-312.pyc": b"x" * 20 for number in range(250)}
    there = Holding(GENUINE, checked=b"".join(b"%d 1\n" % number for number in range(100)))
    assert await judged(Holding({**GENUINE, **many}), there) == ()
    assert {name for name in there.files if name.endswith("/check.py")} == {
        f"/.tbench-bytecode{start}/check.py" for start in ("", 100, 200)
    }


async def test_bytecode_that_needs_no_source_is_a_strong_sign() -> None:
    signs = await judged(Holding({**GENUINE, f"{SITE}/evil.pyc": b"x" * 20}), Holding(GENUINE))
    assert strong(signs)


async def test_a_control_that_installed_nothing_says_nothing() -> None:
    assert await judged(Holding(GENUINE), Holding({"/etc/motd": b"x"})) is None
    # What was brought there is nothing that was installed.
    assert await judged(Holding(GENUINE), Holding(GENUINE), brought=tuple(GENUINE)) is None


async def test_a_control_that_is_lost_is_for_the_caller() -> None:
    there = Holding(GENUINE)
    there.shell = FakeSandbox(answers=[TrialError("sandbox_lost", "gone")]).shell  # type: ignore[method-assign]
    with pytest.raises(TrialError):
        await judged(Holding(GENUINE), there)


# -- what came late ------------------------------------------------------------------------------

LEFT = Facts(leftovers=1)


def test_only_what_can_run_and_came_with_tests_that_install_beside_processes_is_compared() -> None:
    seen = container(GENUINE, script="pip install pytest\n")
    assert late_code(seen, LEFT) == frozenset(GENUINE)
    assert not late_code(seen, Facts())
    assert not late_code(seen, replace(LEFT, changed_before=frozenset(GENUINE)))
    assert not late_code(container(GENUINE), LEFT)
    assert not late_code(container({"/etc/motd": b"x", "/app/words.py": b"x"}, script="pip install pytest\n"), LEFT)


# -- what becomes of a trial ---------------------------------------------------------------------


class Passing(Holding):
    """The agent's container, in which the tests pass; `control` is what can be had beside it."""

    def __init__(self, files: Mapping[str, bytes], control: FakeSandbox | Exception, left: int = 1) -> None:
        super().__init__(files)
        self.control, self.left = control, left
        self.bare: FakeSandbox | None = None

    async def shell(self, script: str, **words: Any) -> ExecResult:
        if "/tests/test.sh" in script:
            reward = pack({"/logs/verifier/reward.txt": FileEntry(b"1\n")})
            mark, report = b"0" * 36, f"code\t0\nleft\t{self.left}\nbegan\t\nended\t\n".encode()
            return ExecResult(0, b"%b\n%b%b\n%b%b end\n" % (mark, reward, mark, report, mark))
        is_compared = "xargs -0 -r" in script or "check.py" in script
        return await super().shell(script, **words) if is_compared else ExecResult(0)

    async def copy(self, paths: Any, removed: Any) -> FakeSandbox:
        if isinstance(self.control, Exception):
            raise self.control
        self.copies.append(self.control)
        return self.control

    async def anew(self) -> FakeSandbox:
        made = self.bare or FakeSandbox(logs={})
        self.copies.append(made)
        return made


EDIT = {**GENUINE, MODULE: b"edited"}


@pytest.mark.parametrize(
    ("here", "kinds"), [(GENUINE, set()), (EDIT, {"changed-meanwhile"})], ids=["installed", "edited"]
)
async def test_a_pass_beside_processes_is_flagged_for_what_was_edited_alone(
    make_task: Any, here: Mapping[str, bytes], kinds: set[str]
) -> None:
    control = Passing(GENUINE, TrialError("sandbox_lost", "none"))
    sandbox = Passing(here, control)
    verdict = await verify_by("shared", Task.read(make_task(test=INSTALLS)), sandbox)
    assert (verdict.reward, {each.partition(":")[0] for each in verdict.integrity.tamper}) == (1.0, kinds)
    assert control.removed


@pytest.mark.parametrize(
    "control",
    [TrialError("sandbox_failed", "no room"), TrialError("engine_unreachable", "gone"), FakeSandbox(logs={})],
    ids=["cannot be made", "cannot be reached", "installs nothing"],
)
async def test_a_control_that_fails_is_no_error_of_the_trial(make_task: Any, control: Any) -> None:
    verdict = await verify_by("shared", Task.read(make_task(test=INSTALLS)), Passing(EDIT, control))
    assert verdict.reward == 1.0
    assert {each.partition(":")[0] for each in verdict.integrity.tamper} <= {UNCOMPARED}


async def test_work_that_keeps_the_tests_from_being_installed_is_left_out(make_task: Any) -> None:
    sandbox = Passing(EDIT, TrialError("verifier_failed", "too much of it"))
    sandbox.bare = Passing(GENUINE, FakeSandbox())
    verdict = await verify_by("shared", Task.read(make_task(test=INSTALLS)), sandbox)
    assert {each.partition(":")[0] for each in verdict.integrity.tamper} == {"changed-meanwhile"}
    assert sandbox.bare.removed


async def test_nothing_is_made_where_no_process_is_left_or_nothing_is_installed(make_task: Any) -> None:
    for sandbox, test in ((Passing(EDIT, FakeSandbox(), left=0), INSTALLS), (Passing({}, FakeSandbox()), INSTALLS)):
        await verify_by("shared", Task.read(make_task(test=test)), sandbox)
        assert not sandbox.copies
