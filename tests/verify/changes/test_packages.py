"""Packages that are, or are not, what the index has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import pytest
from seen_changes import IMAGE, container

from tbench.sandbox.backend import ExecResult
from tbench.sandbox.fake import FakeSandbox
from tbench.verify.changes.facts import File, Seen
from tbench.verify.changes.packages import excused
from tbench.verify.changes.signs import Sign

SITE = "/usr/lib/python3/dist-packages"
OLD = {**IMAGE, f"{SITE}/hooked/old.py": b"x"}
FILES: Mapping[str, bytes | None] = {
    f"{SITE}/hooked.pth": b"import hooked\n",
    f"{SITE}/hooked/__init__.py": b"code",
    f"{SITE}/hooked/__pycache__/__init__.cpython-311.pyc": b"compiled",
    f"{SITE}/hooked/old.py": None,
    f"{SITE}/hooked-1.0.dist-info/RECORD": b"hooked.pth,sha256=x,1\nhooked/__init__.py,sha256=x,1\n",
}
INDEX = {"hooked.pth": b"import hooked\n", "hooked/__init__.py": b"code"}
SIGN = Sign("python-startup", f"{SITE}/hooked.pth", "runs code")
GONE = Sign("library-changed", f"{SITE}/hooked/old.py", "is not what the image has")


async def judged(changed: Mapping[str, bytes | None], index: Mapping[str, bytes], *signs: Sign) -> list[str]:
    """Kinds of the signs after a look into the index."""
    seen: Seen = container(changed, image=OLD)
    lines = [f"{hashlib.sha256(data).hexdigest()} hooked-1.0 {name}\n" for name, data in index.items()]

    async def sums(paths: set[str]) -> Mapping[str, File]:
        return {path: seen.now[path] for path in paths if path in seen.now}

    sandbox = FakeSandbox(answers=[ExecResult(0, "".join(lines).encode())])
    found = [sign.kind for sign in await excused(sandbox, seen, signs or [SIGN], sums)]
    assert all(copy.removed for copy in sandbox.copies)
    return found


async def test_a_package_that_is_as_the_index_has_it_is_excused() -> None:
    assert await judged(FILES, INDEX) == ["package-added"]
    assert await judged(FILES, INDEX, GONE) == ["package-added"]


@pytest.mark.parametrize(
    ("changed", "index"),
    [
        ({**FILES, f"{SITE}/hooked/__init__.py": b"other"}, INDEX),
        ({**FILES, f"{SITE}/hooked/more.so": b"x"}, INDEX),
        ({path: data for path, data in FILES.items() if not path.endswith("__init__.py")}, INDEX),
        (FILES, {}),
        ({path: data for path, data in FILES.items() if not path.endswith("RECORD")}, INDEX),
    ],
    ids=["edited", "more", "less", "unknown", "no record"],
)
async def test_any_other_is_not(changed: Mapping[str, bytes | None], index: Mapping[str, bytes]) -> None:
    assert await judged(changed, index) == ["python-startup"]


async def test_other_signs_are_nobody_s_excuse() -> None:
    accounts = Sign("accounts", "/etc/passwd", "is gone")
    assert await judged(FILES, INDEX, SIGN, accounts) == ["package-added", "accounts"]
    assert await judged({}, INDEX, accounts) == ["accounts"]
