"""What is known of an image: asked once, and kept for later runs."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tbench.sandbox.backend import ExecResult, Sandbox
from tbench.sandbox.fake import FakeSandbox
from tbench.verify.changes import image_facts as module
from tbench.verify.changes.facts import File
from tbench.verify.changes.image_facts import ImageFacts, image_facts

ODD = b"/app/\xff\n".decode("utf-8", "surrogateescape").strip()
PATHS = ["/", "/bin/sh", "/etc/passwd", "/app", ODD]
LISTING = "".join(f"0{path}\0" for path in PATHS).encode("utf-8", "surrogateescape") + b"\0/usr/bin:/bin"
PASSWD, LINK = File(0o100644, "a" * 64, b"root:\xff"), File(0o120777)
LIES = {"/etc/passwd": PASSWD, ODD: LINK, "/etc/resolv.conf": File(0o100644, "b" * 64, b"nameserver 127.0.0.11\n")}
ALL = set(LIES) | {"/bin/sh", "/etc/hosts", "/new"}


@dataclass
class Image(FakeSandbox):
    """A sandbox whose image is asked, which is counted."""

    identity: str = "sha256:1"
    lies: Mapping[str, File] = field(default_factory=lambda: LIES)

    def __post_init__(self) -> None:
        super().__init__()
        self.asked: list[set[str]] = []
        self.listed = 0

    def image_id(self) -> str:
        return self.identity

    def _default_answer(self, script: str) -> ExecResult:
        self.listed += 1
        return ExecResult(0, LISTING)

    async def facts(self) -> ImageFacts:
        return await image_facts(self, self.read)

    async def read(self, original: Sandbox, paths: set[str]) -> dict[str, File]:
        assert original is self
        self.asked.append(paths)
        await asyncio.sleep(0)
        return {path: self.lies[path] for path in paths & self.lies.keys()}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path))
    another_run()
    yield tmp_path / "images"
    another_run()


def another_run() -> None:
    module._in_memory().clear()


async def test_an_image_that_is_known_is_not_asked_in_later_runs() -> None:
    first = Image()
    facts = await first.facts()
    assert (facts.tree.paths >= set(PATHS), facts.tree.search_path[0]) == (True, "/usr/bin")
    assert await facts.files(ALL, LIES) == LIES
    # Nothing is asked that no image has, be it that the engine writes it or that the agent made it.
    assert (first.listed, first.asked) == (1, [{*LIES, "/bin/sh"}])
    another_run()
    second = Image()
    facts = await second.facts()
    assert await facts.files(ALL, LIES) == LIES
    assert (second.listed, second.asked) == (0, [])
    assert await facts.files({"/app"}) == {}
    assert second.asked == [{"/app"}]
    assert Image(identity="sha256:2").image_id() not in module._in_memory()


async def test_trials_that_pass_at_once_ask_once() -> None:
    image = Image()
    found = await asyncio.gather(*(image.facts() for _ in range(8)))
    await asyncio.gather(*(each.files(ALL, LIES) for each in found))
    assert (image.listed, len(image.asked)) == (1, 1)


def ask(image: Image) -> dict[str, File]:
    async def asking() -> dict[str, File]:
        return await (await image.facts()).files(ALL, LIES)

    return asyncio.run(asking())


async def test_what_the_engine_writes_is_asked_anew_where_it_differs() -> None:
    await (await Image().facts()).files(ALL, LIES)
    another_run()
    moved = {**LIES, "/etc/resolv.conf": File(0o100644, "c" * 64, b"nameserver 10.0.0.1\n")}
    image = Image(lies=moved)
    assert await (await image.facts()).files(ALL, moved) == moved
    assert image.asked == [{"/etc/resolv.conf"}]
    # What an agent has written is no reason to believe it.
    assert await (await image.facts()).files(ALL, {**LIES, "/etc/passwd": LINK}) == moved


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(b"[1]"), gzip.compress(LISTING)[:-9]],
    ids=["empty", "no archive", "of something else", "cut"],
)
def test_broken_files_are_asked_anew(cache: Path, content: bytes) -> None:
    ask(Image())
    for file in cache.iterdir():
        file.write_bytes(content)
    another_run()
    image = Image()
    assert ask(image) == LIES
    assert (image.listed, len(image.asked)) == (1, 1)


def test_without_a_place_to_keep_it_all_is_asked(cache: Path) -> None:
    cache.write_text("in the way")
    for _ in range(2):
        another_run()
        image = Image()
        assert ask(image) == LIES
        assert (image.listed, len(image.asked)) == (1, 1)


def test_what_was_used_least_lately_makes_room(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_IMAGES", 1)
    for number in range(3):
        ask(Image(identity=f"sha256:{number}"))
        for file in cache.iterdir():
            os.utime(file, (file.stat().st_mtime - 60,) * 2)
    assert len(list(cache.iterdir())) == 1
    another_run()
    latest = Image(identity="sha256:2")
    assert ask(latest) == LIES
    assert (latest.listed, latest.asked) == (0, [])


def test_an_image_without_an_identity_is_not_kept(cache: Path) -> None:
    assert ask(Image(identity="")) == LIES
    assert not cache.exists()
