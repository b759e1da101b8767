"""Facts about made-up containers, for the rules about changes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from tbench.results import is_weak
from tbench.verify.changes.facts import ChangeKind, ContainerFacts, File, ImageTree, Tests, WalkedFiles, sign_lines

SEARCH_PATH = ("/usr/local/bin", "/usr/bin", "/root/.local/bin")
IMAGE: Mapping[str, bytes] = {
    "/usr/bin/bash": b"\x7fELF bash",
    "/usr/bin/python3": b"\x7fELF python",
    "/usr/bin/true": b"\x7fELF true",
    "/usr/bin/jq": b"\x7fELF jq",
    "/usr/lib/python3.11/json/__init__.py": b"json",
    "/usr/lib/python3.11/json": b"",
    "/usr/lib/python3/dist-packages/pytest": b"",
    "/usr/lib/python3/dist-packages/pytest/__init__.py": b"pytest",
    "/usr/lib/python3/dist-packages/pip": b"",
    "/usr/lib/python3/dist-packages/pip/__init__.py": b"pip",
    "/usr/lib/x86_64-linux-gnu/libc.so.6": b"\x7fELF libc",
    "/etc/passwd": b"root:x:0:0:root:/root:/bin/bash\nwww:x:33:33::/:/bin/false\n",
    "/etc/group": b"root:x:0:\nlab:x:100:\n",
    "/etc/nsswitch.conf": b"hosts: files dns\n",
    "/etc/resolv.conf": b"nameserver 127.0.0.11\n",
    "/root/.bashrc": b"# nothing\n",
}
"""Files of the image by path."""
LINK = b"a link"
SCRIPT = "python3 -m pytest -rA /tests/test_outputs.py && jq . x\n"


async def changes_of(sandbox: Any) -> dict[str, ChangeKind]:
    """Return the differences of a real container from its image."""
    now = await walk(sandbox, (await sandbox.backend_facts()).began_at)
    return now.beyond(ImageTree((await walk(await sandbox.original())).paths, ()).by_directory)


async def walk(sandbox: Any, since: float = math.inf) -> WalkedFiles:
    """Walk through a real container like an inspection."""
    lists = f"/opt/tbench/bin/changed -a {since!r} inf {0 if since == math.inf else 400} / 3>/dev/null"
    return WalkedFiles.read((await sandbox.shell(lists, timeout_sec=60, user="root")).output)


def container(
    changed: Mapping[str, bytes | None],
    *,
    script: str = SCRIPT,
    texts: tuple[str, ...] = ("import json\n",),
    instruction: str = "Write it.\n",
    image: Mapping[str, bytes] = IMAGE,
    **parts: Any,
) -> ContainerFacts:
    """Return a container with `changed` files by path; None stands for a removed file, LINK for a link."""
    changes: dict[str, ChangeKind] = {
        path: "removed" if data is None else "changed" if path in image else "added" for path, data in changed.items()
    }
    now = {**image, **{path: data for path, data in changed.items() if data is not None}}
    for path, data in changed.items():
        if data is None:
            now.pop(path, None)
    tests = Tests(script, texts, instruction, "/app", frozenset({"test_outputs.py"}))
    tree = ImageTree(frozenset(image), SEARCH_PATH)
    return ContainerFacts(changes, tree, tests, _files(now), _files(image), **parts)


def _files(contents: Mapping[str, bytes]) -> dict[str, File]:
    return {
        path: File(0o120777) if data == LINK else File(0o100755, hashlib.sha256(data).hexdigest(), data)
        for path, data in contents.items()
    }


def strong(signs: Any) -> set[str]:
    """Return the kinds of the strong signs."""
    return {sign.partition(":")[0] for sign in sign_lines(signs) if not is_weak(sign)}


def weak(signs: Any) -> set[str]:
    """Return the kinds of the weak signs."""
    return {sign.partition(":")[0] for sign in sign_lines(signs) if is_weak(sign)}
