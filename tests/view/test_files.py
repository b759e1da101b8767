"""The files that a viewer serves, and those that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbench.view.files import ServedFolder


@pytest.fixture
def folder(tmp_path: Path) -> ServedFolder:
    root = tmp_path / "pages"
    (root / "runs" / "r").mkdir(parents=True)
    (root / "index.html").write_text("all")
    (root / "runs" / "r" / "index.html").write_text("one")
    (root / "runs" / "r" / "a b.js").write_text("x")
    (root / ".hidden").write_text("no")
    (tmp_path / "secret").write_text("no")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "out").symlink_to(tmp_path)
    return ServedFolder(root)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "index.html"),
        ("/index.html", "index.html"),
        ("/runs/r/", "runs/r/index.html"),
        ("//runs//r/a%20b.js", "runs/r/a b.js"),
    ],
)
def test_a_path_is_a_file_of_the_folder(folder: ServedFolder, path: str, name: str) -> None:
    found = folder.file(path)
    assert found is not None and found.path == folder.root / name


@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/runs/../../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/runs%2fr",
        "/.hidden",
        "/link",
        "/out/secret",
        "/runs/",
        "/nothing",
        "/index.html/x",
        "/a\\b",
        "/a%00b",
        "/" + "x" * 300,
        "/" + "x" * 5000,
        "/%ff%fe",
    ],
)
def test_nothing_else_is_served(folder: ServedFolder, path: str) -> None:
    assert folder.file(path) is None


def test_a_folder_needs_its_slash(folder: ServedFolder) -> None:
    assert folder.is_folder("/runs/r")
    assert not folder.is_folder("/runs/r/") and not folder.is_folder("/index.html") and not folder.is_folder("/../x")


def test_a_file_of_unknown_type_is_not_html(folder: ServedFolder) -> None:
    (folder.root / "x.sh").write_text("")
    found, page = folder.file("/x.sh"), folder.file("/")
    assert found is not None and found.content_type == "application/octet-stream"
    assert page is not None and page.content_type.startswith("text/html")
