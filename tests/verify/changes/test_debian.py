"""Files that are, or are not, what Debian's index has at their path."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from seen_changes import IMAGE, container

from tbench.sandbox.backend import ExecResult
from tbench.sandbox.fake import FakeSandbox
from tbench.verify.changes.debian import SUMS_OF_TREE, excused_by_debian
from tbench.verify.changes.facts import File, Seen
from tbench.verify.changes.signs import Sign

INFO = "/var/lib/dpkg/info"
LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
UPGRADED: Mapping[str, bytes | None] = {
    LIBC: b"newer",
    f"{INFO}/libc6:amd64.list": b"/lib/x86_64-linux-gnu/libc.so.6\n/usr/bin/python3.11\n/usr/bin/gawk\n",
    f"{INFO}/libc6:amd64.postinst": b"sets up",
    "/usr/bin/python3.11": b"\x7fELF newer",
    "/usr/bin/gawk": b"\x7fELF gawk",
}
INDEX = {
    "./lib/x86_64-linux-gnu/libc.so.6": b"newer",
    f".{INFO}/libc6:amd64.postinst": b"sets up",
    "./usr/bin/python3.11": b"\x7fELF newer",
    "./usr/bin/gawk": b"\x7fELF gawk",
}
NAMES = "names libc6:amd64 /usr/bin/awk\n"


async def judged(
    path: str, changed: Mapping[str, bytes | None], index: Mapping[str, bytes] = INDEX, kind: str = "tool-replaced"
) -> str:
    """The kind that a sign against a path has after a look into the index."""
    seen: Seen = container(changed, image={**IMAGE, "/usr/bin/awk": b"\x7fELF mawk"})
    told = NAMES + "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in index.items())

    async def sums(paths: set[str]) -> Mapping[str, File]:
        return {path: seen.now[path] for path in paths if path in seen.now}

    sandbox = FakeSandbox(answers=[ExecResult(0, told.encode())])
    (sign,) = await excused_by_debian(sandbox, seen, [Sign(kind, path, "differs")], sums)
    assert all(copy.removed for copy in sandbox.copies)
    return sign.kind


@pytest.mark.parametrize("path", [LIBC, f"{INFO}/libc6:amd64.postinst", "/usr/bin/python3.11", "/usr/bin/gawk"])
async def test_a_file_that_is_as_the_index_has_it_is_excused(path: str) -> None:
    assert await judged(path, UPGRADED) == "package-added"


@pytest.mark.parametrize(
    ("path", "changed", "index"),
    [
        (LIBC, {**UPGRADED, LIBC: b"other"}, INDEX),
        (LIBC, UPGRADED, {}),
        (LIBC, {path: data for path, data in UPGRADED.items() if not path.endswith(".list")}, INDEX),
        ("/usr/local/bin/python3", {**UPGRADED, "/usr/local/bin/python3": b"\x7fELF gawk"}, INDEX),
        ("/usr/bin/true", {**UPGRADED, "/usr/bin/true": None}, INDEX),
    ],
    ids=["edited", "unknown", "no record", "another program of the package", "gone"],
)
async def test_any_other_is_not(path: str, changed: Mapping[str, bytes | None], index: Mapping[str, bytes]) -> None:
    assert await judged(path, changed, index) == "tool-replaced"


@pytest.mark.parametrize(("now", "kind"), [(b"Include x", "package-added"), (b"ProxyCommand x", "tool-settings")])
async def test_settings_that_a_package_comes_with_are_excused(now: bytes, kind: str) -> None:
    settings = "/etc/ssh/ssh_config"
    changed = {**UPGRADED, settings: now, f"{INFO}/openssh-client.list": f"{settings}\n".encode()}
    index = {**INDEX, f".{settings}": b"Include x"}
    assert await judged(settings, changed, index, "tool-settings") == kind


def test_a_link_of_a_package_leads_to_what_packages_have(tmp_path: Path) -> None:
    # systemd links its settings of ssh by their whole path.
    (tmp_path / "etc").mkdir()
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr/conf").write_bytes(b"settings")
    (tmp_path / "etc/whole").symlink_to("/usr/conf")
    (tmp_path / "etc/short").symlink_to("../usr/conf")
    (tmp_path / "etc/other").symlink_to("/no/such/file")
    told = subprocess.run(["sh", "-c", SUMS_OF_TREE], cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    value = hashlib.sha256(b"settings").hexdigest()
    assert sorted(told.splitlines()) == [f"{value}  ./{path}" for path in ("etc/short", "etc/whole", "usr/conf")]


async def test_another_name_is_excused_where_the_image_links_it_or_the_package_s_installation_names_it() -> None:
    # The links themselves are the image's: what they lead to has changed.
    def led(path: str, target: str) -> Mapping[str, bytes | None]:
        return {**UPGRADED, path: UPGRADED[target]}

    assert await judged("/usr/bin/awk", led("/usr/bin/awk", "/usr/bin/gawk")) == "package-added"
    assert await judged("/usr/bin/jq", led("/usr/bin/jq", "/usr/bin/gawk")) == "tool-replaced"


@pytest.mark.parametrize(("link", "kind"), [("/usr/bin/python3", "package-added"), ("/usr/bin/jq", "tool-replaced")])
async def test_a_link_of_the_image_s_stands_for_a_variant_but_for_no_other_program(link: str, kind: str) -> None:
    seen = container(UPGRADED)
    seen = dataclasses.replace(seen, now={**seen.now, link: seen.now["/usr/bin/python3.11"]})
    told = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in INDEX.items())

    async def sums(paths: set[str]) -> Mapping[str, File]:
        return {path: seen.now[path] for path in paths}

    sandbox = FakeSandbox(answers=[ExecResult(0, told.encode())])
    sign = Sign("tool-replaced", link, "differs")
    assert [each.kind for each in await excused_by_debian(sandbox, seen, [sign], sums)] == [kind]
