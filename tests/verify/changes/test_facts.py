"""Differences between a container and its image, found by a walk through its files."""

from __future__ import annotations

from typing import Any

import pytest
from seen_changes import changes_of

from tbench.verify.changes.facts import ImageTree, Sign, WalkedFiles, look_functions, sign_lines


def test_signs_of_one_kind_are_one_line_with_the_number_of_further_paths() -> None:
    signs = [Sign("kind", f"/path/{number}", "is wrong") for number in range(100)]
    assert sign_lines([*signs, Sign("other", "/x", "is, too")]) == (
        "kind: /path/0, /path/1, /path/2 and 97 more is wrong",
        "other: /x is, too",
    )


def test_a_sign_stays_on_one_printable_line() -> None:
    (line,) = sign_lines([Sign("kind", "/a\nknown\tpackage \x1b[2J", "is wrong")])
    assert line.isprintable()


IMAGE = """FROM debian:bookworm-slim
RUN mkdir -p /app/kept /app/gone/deep && touch /app/kept/file /app/gone/deep/file /app/gone/file
VOLUME /data
WORKDIR /app
"""
CHANGES = {
    "touch new; mkdir -p a/b": {"/app/new": "added", "/app/a": "added", "/app/a/b": "added"},
    "rm -r gone": {"/app/gone": "removed"},
    "rm -r gone; mkdir gone": {
        "/app/gone": "changed", "/app/gone/deep": "removed", "/app/gone/file": "removed",
    },
    "rm -r gone; ln -s kept gone": {
        "/app/gone": "changed", "/app/gone/deep": "removed", "/app/gone/file": "removed",
    },
    "mv kept moved": {"/app/kept": "removed", "/app/moved": "added", "/app/moved/file": "added"},
    "chmod 700 kept": {"/app/kept": "changed"},
    "touch -d 2001-01-01 kept/file": {"/app/kept/file": "changed"},
    "ln kept/file linked": {"/app/kept/file": "changed", "/app/linked": "added"},
    "cp -p /bin/echo /t; tr E F </t >/bin/echo; touch -r /t /bin/echo; rm /t": {"/usr/bin/echo": "changed"},
    "touch /data/x; echo >>/etc/hosts; echo >>/etc/resolv.conf": {},
}  # fmt: skip


@pytest.mark.engine
@pytest.mark.parametrize("script", CHANGES)
async def test_every_change_is_found_whatever_its_modification_time(
    make_task: Any, start_sandbox: Any, script: str
) -> None:
    sandbox = await start_sandbox(make_task(dockerfile=IMAGE))
    before = await changes_of(sandbox)
    assert (await sandbox.shell(f"cd /app; {script}", timeout_sec=60)).exit_code == 0
    found = {path: kind for path, kind in (await changes_of(sandbox)).items() if path not in before}
    above = {"/", "/app", "/app/kept", "/usr", "/usr/bin", "/tmp", "/etc"}
    assert {path: kind for path, kind in found.items() if path not in above - CHANGES[script].keys()} == CHANGES[script]


def test_paths_below_a_mount_point_are_neither_added_nor_removed() -> None:
    walked = WalkedFiles.read(b"0/\x001/app\x002/app/later\x00m/data\x000/etc\x00")
    then = {"/", "/app", "/app/old", "/app/old/file", "/data", "/data/inner", "/etc"}
    assert walked.beyond(ImageTree(frozenset(then), ()).by_directory) == {
        "/app": "changed",
        "/app/later": "added",
        "/app/old": "removed",
    }
    assert walked.later == {"/app/later"}


def test_a_moved_directory_is_found_although_nothing_in_it_changed() -> None:
    image = ImageTree(frozenset({"/", "/app", "/app/old", "/data"}), ()).by_directory
    assert not WalkedFiles.read(b"1/\x001/app\x000/app/old\x002/app/new\x00m/data\x00").has_moved_directory(image)
    assert WalkedFiles.read(b"1/\x001/app\x000/app/moved\x00m/data\x00").has_moved_directory(image)


@pytest.mark.engine
@pytest.mark.parametrize(("into", "code"), [("/dev/null", b"0"), ("/dev/full", b"1")])
async def test_an_inspection_fails_if_its_walk_fails(
    make_task: Any, start_sandbox: Any, into: str, code: bytes
) -> None:
    sandbox = await start_sandbox(make_task(dockerfile=IMAGE))
    ended = await sandbox.shell(f"{look_functions()}\nlook '0 inf 400' >{into}; echo $?", timeout_sec=60, user="root")
    assert ended.output == code + b"\n"


@pytest.mark.engine
async def test_an_inspection_of_missing_paths_does_not_fail(make_task: Any, start_sandbox: Any) -> None:
    sandbox = await start_sandbox(make_task(dockerfile=IMAGE))
    asked = b"s\t/nowhere\nc\t/nowhere\ng\t/nowhere\nc\t/etc/hostname\n"
    script = f"{look_functions()}\nlook '' >/dev/null; echo $?"
    assert (await sandbox.shell(script, timeout_sec=60, user="root", stdin=asked)).output == b"0\n"
    script = f"{look_functions()}\nlook ''"
    found = (await sandbox.shell(script, timeout_sec=60, user="root", stdin=asked)).output
    assert b" /etc/hostname\n\0" in found and b"nowhere" not in found
