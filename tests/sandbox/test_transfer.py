"""Bringing an agent's files into a copy: all of them come, whatever was in their places, or it is an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import pytest
from filled_copies import filled_copy
from seen_changes import changes_of

from tbench.errors import TrialError
from tbench.sandbox import transfer
from tbench.sandbox.docker.container import Container

pytestmark = pytest.mark.engine
BOUND_SEC = 60
AGENTS = [
    "rm -r folder; echo x >folder",
    "rm -r folder; ln -s other folder",
    "rm -r folder; ln -s nowhere folder",
    "rm file; mkdir file; echo x >file/new",
    "rm file; ln -s other file",
    "rm link; mkdir link; echo x >link/new",
    "rm link; echo x >link",
    "rm -r folder; mkfifo folder",
    "ln file linked; mkdir -p deep/er 'with space'; touch 'deep/er/ \n'",
]
IMAGE = f"""FROM debian:bookworm-slim
RUN for at in /app $(seq -f /app/at/%.0f {len(AGENTS)}); do mkdir -p $at/folder $at/other && \\
    touch $at/folder/old $at/file && ln -s $at/other $at/link || exit; done
WORKDIR /app
"""
"""What agents replace is in /app, and once more for each of AGENTS below /app/at."""
LISTS = "cd /app; find . ! -name . -exec stat -c '%F %N' {} + | sort"
NO_FILTER = f"cd /; {transfer._READ_LIST} >/dev/null; printf '\\0'; /opt/tbench/bin/busybox cpio -o -0 -H newc"


@pytest.fixture
async def sandbox(make_task: Any, start_sandbox: Any) -> AsyncIterator[Container]:
    yield await start_sandbox(make_task(dockerfile=IMAGE))


async def shell(sandbox: Any, script: str) -> str:
    ended = await sandbox.shell(script, timeout_sec=BOUND_SEC)
    assert ended.exit_code == 0, ended.output
    return str(ended.output.decode())


async def test_what_took_the_place_of_something_else_does_so_in_a_copy(sandbox: Container) -> None:
    for number, agent in enumerate(AGENTS, 1):
        await shell(sandbox, f"cd /app/at/{number}; {agent}; echo last >zz")
    changes = await changes_of(sandbox)
    copy = await filled_copy(sandbox, [path for path, kind in changes.items() if kind != "removed"], [])
    assert await shell(copy, LISTS) == await shell(sandbox, LISTS)
    assert await shell(copy, "cat /app/at/*/zz") == "last\n" * len(AGENTS)
    await copy.remove()


async def test_a_directory_comes_where_a_file_is_that_was_not_to_be_brought(sandbox: Container) -> None:
    await shell(sandbox, "rm /app/file; mkdir /app/file; echo x >/app/file/new")
    copy = await filled_copy(sandbox, ["/app/file/new"], [])
    assert await shell(copy, "cat /app/file/new") == "x\n"
    await copy.remove()


async def test_what_comes_behind_the_end_of_an_archive_is_no_error(
    sandbox: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_PACK", f"{transfer._PACK}; sleep 0.5; head -c 100000 /dev/zero; sleep 0.5; echo")
    await shell(sandbox, "echo x >/app/new")
    copy = await filled_copy(sandbox, ["/app/new"], [])
    assert await shell(copy, "cat /app/new") == "x\n"
    await copy.remove()


async def test_files_are_brought_again_where_one_vanished_while_they_were_packed(
    sandbox: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_PACK", f"{NO_FILTER} || {{ touch /app/gone; echo broken; }}")
    await shell(sandbox, "echo x >/app/new")
    copy = await filled_copy(sandbox, ["/app/gone", "/app/new"], [])
    assert await shell(copy, "cat /app/new; test -e /app/gone") == "x\n"
    await copy.remove()


@pytest.mark.parametrize(
    ("packs", "path", "why"),
    [
        (f"{NO_FILTER} || echo broken", "/app/gone", "gone: No such file"),
        (transfer._PACK, "/opt/tbench/bin/init", "Read-only file system"),
    ],
    ids=["packing", "unpacking"],
)
async def test_files_that_do_not_all_come_are_an_error(
    sandbox: Container, monkeypatch: pytest.MonkeyPatch, packs: str, path: str, why: str
) -> None:
    monkeypatch.setattr(transfer, "_PACK", packs)
    await shell(sandbox, "echo x >/app/zz; head -c 3000000 /dev/urandom >/app/large")
    with pytest.raises(TrialError, match=why) as failed:
        await filled_copy(sandbox, [path, "/app/large", "/app/zz"], [])
    assert failed.value.type == "verifier_failed"


@pytest.mark.parametrize(
    "odd",
    ['for (1 .. 20) { mkdir "b" x 255; chdir "b" x 255 }', 'mkdir "\\xff"', 'mkdir "\\xff"; mkdir "new\\nline"'],
    ids=["too deep for a path", "no UTF-8", "a line break"],
)
async def test_what_the_engine_cannot_name_hides_no_other_change(sandbox: Container, odd: str) -> None:
    makes = f"cd /app; perl -e '{odd}'; touch '/app/d\u00e9j\u00e0'"
    await shell(sandbox, f"{makes}; echo >>/etc/debian_version; rm /etc/issue; chmod 700 /srv")
    changes = await changes_of(sandbox)
    found = {
        path: kind for path, kind in changes.items() if not path.startswith(("/app/b", "/opt/tbench", "/.dockerenv"))
    }
    names = {path for path in found if path.startswith("/app/")}
    assert {path: kind for path, kind in found.items() if path.startswith(("/etc/d", "/etc/i", "/srv", "/usr"))} == {
        "/etc/debian_version": "changed", "/etc/issue": "removed", "/srv": "changed",
    }  # fmt: skip
    assert names == {"/app/d\u00e9j\u00e0"} | ({"/app/\udcff"} if "xff" in odd else set()) | (
        {"/app/new\nline"} if "new" in odd else set()
    )
    copy = await filled_copy(sandbox, [path for path in changes if path.startswith("/app/")], [])
    try:
        await shell(copy, "test -e '/app/d\u00e9j\u00e0'")
    finally:
        await copy.remove()


async def test_files_that_cannot_be_brought_are_what_the_agent_can_cause(sandbox: Container) -> None:
    await shell(sandbox, "echo x >/app/file; mkdir -p /app/new")
    with (
        patch.object(transfer, "_UNPACK", "exec /opt/tbench/bin/busybox cat >/dev/null"),
        pytest.raises(TrialError) as caught,
    ):
        await filled_copy(sandbox, ["/app/file"], [])
    assert (caught.value.type, caught.value.agent_can_cause) == ("verifier_failed", True)


async def test_both_ends_of_a_transfer_are_opened_at_the_same_time() -> None:
    both = asyncio.Barrier(2)

    async def opens(_: str, __: int) -> Any:
        await both.wait()
        raise TrialError("sandbox_lost", "gone")

    async with asyncio.timeout(5):
        with pytest.raises(TrialError, match="gone"):
            await transfer.transfer(opens, opens, ["/app/done"], [])
