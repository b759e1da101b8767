"""Registries: Harbor's form and that of Terminal-Bench 1, from files and from real servers, also bad ones."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tbench.datasets.known import Piece
from tbench.datasets.reference import Named
from tbench.datasets.registry import downloaded, read_registry
from tbench.datasets.resolve import Access, find_dataset
from tbench.errors import UsageError

COMMIT = "a" * 40
URL = "https://host/repo"
Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def task(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "path": f"tasks/{name}", "git_url": URL, "git_commit_id": COMMIT, **more}


def dataset(*tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "set", "version": "1.0", "description": "d", "tasks": list(tasks), **more}


def written(directory: Path, content: Any) -> str:
    path = directory / "registry.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Starts a server that answers as told, and gives its URL."""
    servers = []

    def start(answer: Answer) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/registry.json"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def says(code: int, body: bytes, *, announced: int | None = None) -> Answer:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        request.send_header("Content-Length", str(len(body) if announced is None else announced))
        request.end_headers()
        request.wfile.write(body)

    return answer


def test_rows_of_harbor_become_pieces_by_repository_and_commit(tmp_path: Path) -> None:
    rows = [dataset(task("b"), task("a"), task("c", git_commit_id=None), metrics=[{"type": "mean"}])]
    (found,) = read_registry(written(tmp_path, rows))
    assert (found.title, found.tasks, found.description) == ("set@1.0", 3, "d")
    assert found.pieces == (
        Piece(URL, COMMIT, None, (("a", "tasks/a"), ("b", "tasks/b"))),
        Piece(URL, "HEAD", None, (("c", "tasks/c"),)),
    )


def test_rows_without_a_repository_are_directories_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = read_registry(written(tmp_path, [dataset({"name": "a", "path": "tasks/a"})]))
    assert (found.pieces, found.directories) == ((), (tmp_path / "tasks" / "a",))


def test_rows_of_terminal_bench_1_are_told_apart_by_their_url(tmp_path: Path) -> None:
    earlier = {
        "name": "core",
        "version": "0.1",
        "terminal_bench_version": ">=0.1",
        "github_url": URL,
        "dataset_path": "./tasks",
        "branch": "main",
        "commit_hash": COMMIT,
        "task_id_subset": ["x"],
    }
    found = read_registry(written(tmp_path, [earlier, {**earlier, "commit_hash": "head", "task_id_subset": None}]))
    assert [each.pieces for each in found] == [
        (Piece(URL, COMMIT, "tasks", (("x", "tasks/x"),)),),
        (Piece(URL, "main", "tasks", ()),),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("<html>", "registry.json: is no JSON (Expecting value"),
        ("", "is no JSON"),
        ('{"a": 1}', "is no registry; a registry is a list of datasets in JSON"),
        ("[" * 100_000, "registry.json: is n"),
        ([1], "row 1: "),
        ([dataset(), {"name": "x"}], "row 2: tasks: Field required; it needs name, version and tasks"),
        ([dataset(task("a", path=7))], "row 1: tasks.0.path: Input should be a valid string"),
        ([dataset(task("a", path="../../etc"))], "row 1 (set): ../../etc: no folder within the repository"),
        ([dataset(task("a", git_url="ext::sh -c x"))], "row 1 (set): ext::sh -c x: no URL of a git repository"),
        ([dataset(task("a", git_commit_id="--upload-pack=x"))], "--upload-pack=x: no commit, branch or tag"),
        ([dataset(task("a"), task("a"))], "row 1 (set): lists a 2 times"),
        ([dataset(task("a"), {"path": "b"})], "some tasks have a git_url and some have none"),
    ],
)
def test_a_registry_that_cannot_be_used_is_one_line_with_file_and_row(content: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        read_registry(written(tmp_path, content))
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_a_registry_that_is_not_there_or_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere: cannot be read: No such file"):
        read_registry(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="a registry is a file, or at an http or https URL"):
        read_registry("ftp://host/x")
    with pytest.raises(UsageError, match=r"https://host/x: is not asked with --offline"):
        read_registry("https://me:secret@host/x", offline=True)


def test_a_registry_may_be_at_a_url_whatever_proxies_there_are(
    serve: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    (found,) = read_registry(serve(says(200, json.dumps([dataset(task("a"))]).encode())))
    assert found.title == "set@1.0"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says(404, b"no"), "HTTP 404 (Not Found); check the URL"),
        (says(500, b""), "HTTP 500"),
        (says(200, b"\x1f\x8b\x00garbage"), "is no JSON"),
        (says(200, b"[1, 2", announced=900), "received 5 bytes"),
    ],
)
def test_a_server_that_gives_no_registry_is_named_with_what_it_said(
    answer: Answer, words: str, serve: Callable[[Answer], str]
) -> None:
    url = serve(answer)
    with pytest.raises(UsageError) as raised:
        read_registry(url)
    assert url in str(raised.value) and words in str(raised.value) and "\n" not in str(raised.value)


def test_what_is_no_http_and_nobody_at_all_are_named(serve: Callable[[Answer], str]) -> None:
    url = serve(lambda request: request.wfile.write(b"\0\0\0 no http \n\n") and None)
    with pytest.raises(UsageError, match="no usable answer"):
        downloaded(url)
    with pytest.raises(UsageError, match=r"cannot be reached: .*Connection refused"):
        downloaded("http://127.0.0.1:9/registry.json")


def test_a_server_that_drips_is_left_at_the_deadline(serve: Callable[[Answer], str]) -> None:
    def drip(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        for _ in range(100):
            try:
                request.wfile.write(b" ")
            except OSError:
                return
            time.sleep(0.1)

    began = time.monotonic()
    with pytest.raises(UsageError, match=r"no whole answer within 0\.5 s"):
        downloaded(serve(drip), deadline_sec=0.5)
    assert time.monotonic() - began < 5


def test_a_registry_comes_before_the_packaged_list_and_says_where_they_differ(tmp_path: Path) -> None:
    said: list[str] = []
    place = written(tmp_path, [dataset(task("a"), name="terminal-bench", version="2.1")])
    found = find_dataset(Named("terminal-bench", "2.1"), Access(place, say=said.append))
    assert (found.source, found.pieces[0].revision, found.trials_per_task) == (place, COMMIT, 5)
    assert found.listed_commit == "7131e4375048a0e408a8fb404b5f499d726b695b"
    assert said == [
        f"terminal-bench@2.1: taken as {place} has it (at {COMMIT}); tbench's own list has commit 7131e4375048"
    ]
    assert find_dataset(Named("openthoughts-tblite", None), Access(place)).source == "tbench"
    assert find_dataset(Named("terminal-bench", "2.0"), Access(place)).source == "tbench"
    assert find_dataset(Named("terminal-bench", None), Access(place)).title == "terminal-bench@2.1"
    with pytest.raises(
        UsageError, match=r"terminal-bench@5: no such version in .*registry\.json or tbench's own list; t"
    ):
        find_dataset(Named("terminal-bench", "5"), Access(place))
