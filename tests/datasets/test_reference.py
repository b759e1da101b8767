"""References to datasets: paths, names, repositories, and invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbench.datasets.reference import DatasetName, GitSource, parse_reference, stored_source, usable_url, without_login
from tbench.errors import UsageError


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("bundled", Path("bundled")),
        ("./tasks", Path("./tasks")),
        ("/srv/tasks", Path("/srv/tasks")),
        ("a/b/c", Path("a/b/c")),
        ("terminal-bench", DatasetName("terminal-bench", None)),
        ("terminal-bench@2.1", DatasetName("terminal-bench", "2.1")),
        ("org/name", DatasetName("org/name", None)),
        ("org/name@latest", DatasetName("org/name", "latest")),
        (f"org/name@sha256:{'a' * 64}", DatasetName("org/name", f"sha256:{'a' * 64}")),
        ("git+https://host/a/b", GitSource("https://host/a/b", "HEAD", None)),
        ("git+https://host/a/b.git@v1#tasks/x/", GitSource("https://host/a/b.git", "v1", "tasks/x")),
        ("git+https://host/a/b@feature/x#", GitSource("https://host/a/b", "feature/x", "")),
        ("git+ssh://git@host/a/b", GitSource("ssh://git@host/a/b", "HEAD", None)),
        ("git+ssh://git@host/a/b@main", GitSource("ssh://git@host/a/b", "main", None)),
        ("git+git@host:a/b.git@main", GitSource("git@host:a/b.git", "main", None)),
        ("git+https://me:pw@host/a/b@v2", GitSource("https://me:pw@host/a/b", "v2", None)),
    ],
)
def test_what_is_said_is_what_is_meant(
    said: str, meant: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_reference(said) == meant


def test_a_directory_that_is_there_is_a_path_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("terminal-bench@2.1", "org/name"):
        (tmp_path / name).mkdir(parents=True)
        assert parse_reference(name) == Path(name)


def test_a_local_repository_may_have_an_at_sign_in_its_path(tmp_path: Path) -> None:
    (tmp_path / "a@b" / "repo").mkdir(parents=True)
    url = f"file://{tmp_path}/a@b/repo"
    assert parse_reference(f"git+{url}") == GitSource(url, "HEAD", None)
    assert parse_reference(f"git+{url}@main") == GitSource(url, "main", None)
    assert parse_reference(f"git+{tmp_path}/a@b/repo") == GitSource(url, "HEAD", None)


@pytest.mark.parametrize(
    "said",
    [
        "git+ext::sh -c 'touch /tmp/x'",
        "git+--upload-pack=touch",
        "git+https://-oProxyCommand=x/y",
        "git+ftp://host/x",
        "git+https://host/x@--upload-pack=y",
        "git+https://host/x@a b",
        "git+https://host/x#../y",
        "git+relative/path",
    ],
)
def test_what_could_make_git_do_something_else_is_refused(said: str) -> None:
    with pytest.raises(UsageError):
        parse_reference(said)


def test_passwords_are_not_stored_and_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert stored_source("git+https://me:secret@host/a/b@v1#t") == "git+https://host/a/b@v1#t"
    assert stored_source("git+ssh://git@host/a/b") == "git+ssh://git@host/a/b"
    assert stored_source("./x") == str(tmp_path / "x")
    assert stored_source("bundled") == "bundled"
    assert stored_source("terminal-bench@2.1") == "terminal-bench@2.1"


def test_urls_of_messages_have_no_login() -> None:
    assert without_login("https://me:secret@host/x") == "https://host/x"
    assert without_login("ssh://me:secret@host/x") == "ssh://host/x"
    assert without_login("git@host:a/b") == "git@host:a/b"
    with pytest.raises(UsageError, match="registry row 3: ftp://host/x: not the URL of a git repository"):
        usable_url("ftp://me:secret@host/x", "registry row 3")
