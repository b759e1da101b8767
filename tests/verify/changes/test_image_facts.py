"""Facts about an image, which are read once and cached for later runs."""

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
FILES = {"/etc/passwd": PASSWD, ODD: LINK, "/etc/resolv.conf": File(0o100644, "b" * 64, b"nameserver 127.0.0.11\n")}
ALL = set(FILES) | {"/bin/sh", "/etc/hosts", "/new"}


@dataclass
class Image(FakeSandbox):
    """A sandbox that counts how often its image is read."""

    identity: str = "sha256:1"
    contents: Mapping[str, File] = field(default_factory=lambda: FILES)

    def __post_init__(self) -> None:
        super().__init__()
        self.read_paths: list[set[str]] = []
        self.listings = 0

    def image_id(self) -> str:
        return self.identity

    def _default_answer(self, script: str) -> ExecResult:
        self.listings += 1
        return ExecResult(0, LISTING)

    async def facts(self) -> ImageFacts:
        return await image_facts(self, self.read)

    async def read(self, original: Sandbox, paths: set[str]) -> dict[str, File]:
        assert original is self
        self.read_paths.append(paths)
        await asyncio.sleep(0)
        return {path: self.contents[path] for path in paths & self.contents.keys()}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path))
    another_run()
    yield tmp_path / "images"
    another_run()


def another_run() -> None:
    module._in_memory().clear()


async def test_a_known_image_is_not_read_in_later_runs() -> None:
    first = Image()
    facts = await first.facts()
    assert (facts.tree.paths >= set(PATHS), facts.tree.search_path[0]) == (True, "/usr/bin")
    assert await facts.files(ALL, FILES) == FILES
    # Files of the engine or of the agent are not read: no image has them.
    assert (first.listings, first.read_paths) == (1, [{*FILES, "/bin/sh"}])
    another_run()
    second = Image()
    facts = await second.facts()
    assert await facts.files(ALL, FILES) == FILES
    assert (second.listings, second.read_paths) == (0, [])
    assert await facts.files({"/app"}) == {}
    assert second.read_paths == [{"/app"}]
    assert Image(identity="sha256:2").image_id() not in module._in_memory()


async def test_concurrent_trials_read_an_image_once() -> None:
    image = Image()
    found = await asyncio.gather(*(image.facts() for _ in range(8)))
    await asyncio.gather(*(each.files(ALL, FILES) for each in found))
    assert (image.listings, len(image.read_paths)) == (1, 1)


def files_of(image: Image) -> dict[str, File]:
    async def read() -> dict[str, File]:
        return await (await image.facts()).files(ALL, FILES)

    return asyncio.run(read())


async def test_files_that_the_engine_writes_are_read_again_if_they_differ() -> None:
    await (await Image().facts()).files(ALL, FILES)
    another_run()
    moved = {**FILES, "/etc/resolv.conf": File(0o100644, "c" * 64, b"nameserver 10.0.0.1\n")}
    image = Image(contents=moved)
    assert await (await image.facts()).files(ALL, moved) == moved
    assert image.read_paths == [{"/etc/resolv.conf"}]
    # Changes of the agent do not count as changes of the engine.
    assert await (await image.facts()).files(ALL, {**FILES, "/etc/passwd": LINK}) == moved


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(b"[1]"), gzip.compress(LISTING)[:-9]],
    ids=["empty", "no archive", "of something else", "cut"],
)
def test_an_image_with_a_broken_record_is_read_again(cache: Path, content: bytes) -> None:
    files_of(Image())
    for file in cache.iterdir():
        file.write_bytes(content)
    another_run()
    image = Image()
    assert files_of(image) == FILES
    assert (image.listings, len(image.read_paths)) == (1, 1)


def test_without_a_cache_directory_each_run_reads_the_image(cache: Path) -> None:
    cache.write_text("in the way")
    for _ in range(2):
        another_run()
        image = Image()
        assert files_of(image) == FILES
        assert (image.listings, len(image.read_paths)) == (1, 1)


def test_the_least_recently_used_record_is_removed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_IMAGES", 1)
    for number in range(3):
        files_of(Image(identity=f"sha256:{number}"))
        for file in cache.iterdir():
            os.utime(file, (file.stat().st_mtime - 60,) * 2)
    assert len(list(cache.iterdir())) == 1
    another_run()
    latest = Image(identity="sha256:2")
    assert files_of(latest) == FILES
    assert (latest.listings, latest.read_paths) == (0, [])


def test_an_image_without_an_identity_is_not_stored(cache: Path) -> None:
    assert files_of(Image(identity="")) == FILES
    assert not cache.exists()
