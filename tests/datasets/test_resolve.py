"""Registries: Harbor's form and that of Terminal-Bench 1, from files and from real servers, also bad ones."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tbench.datasets.known_dataset import Access
from tbench.datasets.read_tasks import read_selected
from tbench.datasets.reference import DatasetName, GitSource
from tbench.datasets.resolve import download, find_dataset, hub_names, known_datasets, read_registry
from tbench.errors import UsageError
from tbench.tasks.sources import ALL_TASKS, TaskChoice
from tbench.tasks.task import Task

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
        GitSource(URL, COMMIT, None, (("a", "tasks/a"), ("b", "tasks/b"))),
        GitSource(URL, "HEAD", None, (("c", "tasks/c"),)),
    )


def test_rows_without_a_repository_are_directories_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = read_registry(written(tmp_path, [dataset({"name": "a", "path": "tasks/a"})]))
    assert (found.pieces, found.directories) == ((), (tmp_path / "tasks" / "a",))


def test_rows_of_terminal_bench_1_are_distinguished_by_their_url(tmp_path: Path) -> None:
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
        (GitSource(URL, COMMIT, "tasks", (("x", "tasks/x"),)),),
        (GitSource(URL, "main", "tasks", ()),),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("<html>", "registry.json: is not valid JSON (Expecting value"),
        ("", "is not valid JSON"),
        ('{"a": 1}', "is not a registry; a registry is a list of datasets in JSON"),
        ("[" * 100_000, "registry.json: is n"),
        ([1], "row 1: "),
        ([dataset(), {"name": "x"}], "row 2: tasks: Field required; it needs name, version and tasks"),
        ([dataset(task("a", path=7))], "row 1: tasks.0.path: Input should be a valid string"),
        ([dataset(task("a", path="../../etc"))], "row 1 (set): ../../etc: not a folder in the repository"),
        ([dataset(task("a", git_url="ext::sh -c x"))], "row 1 (set): ext::sh -c x: not the URL of a git repository"),
        ([dataset(task("a", git_commit_id="--upload-pack=x"))], "--upload-pack=x: not a commit, branch or tag"),
        ([dataset(task("a"), task("a"))], "row 1 (set): lists a 2 times"),
        ([dataset(task("a"), {"path": "b"})], "only some tasks have a git_url"),
    ],
)
def test_a_registry_that_cannot_be_used_is_one_line_with_file_and_row(content: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        read_registry(written(tmp_path, content))
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_a_registry_that_is_not_there_or_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere: cannot be read: No such file"):
        read_registry(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="must be a file, or an http or https URL"):
        read_registry("ftp://host/x")
    with pytest.raises(UsageError, match=r"https://host/x: is not contacted with --offline"):
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
        (says(200, b"\x1f\x8b\x00garbage"), "is not valid JSON"),
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


def test_what_is_no_http_and_no_one_at_all_are_named(serve: Callable[[Answer], str]) -> None:
    url = serve(lambda request: request.wfile.write(b"\0\0\0 no http \n\n") and None)
    with pytest.raises(UsageError, match="no usable answer"):
        download(url)
    with pytest.raises(UsageError, match=r"cannot be reached: .*Connection refused"):
        download("http://127.0.0.1:9/registry.json")


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
    with pytest.raises(UsageError, match=r"no complete answer within 0\.5 s"):
        download(serve(drip), deadline_sec=0.5)
    assert time.monotonic() - began < 5


def test_a_registry_comes_before_the_packaged_list_and_says_where_they_differ(tmp_path: Path) -> None:
    said: list[str] = []
    place = written(tmp_path, [dataset(task("a"), name="terminal-bench", version="2.1")])
    found = find_dataset(DatasetName("terminal-bench", "2.1"), Access(place, say=said.append))
    assert (found.source, found.pieces[0].revision, found.trials_per_task) == (place, COMMIT, 5)
    assert found.listed_commit == "7131e4375048a0e408a8fb404b5f499d726b695b"
    assert said == [f"terminal-bench@2.1: using {COMMIT} from {place}; tbench's own list has commit 7131e4375048"]
    assert find_dataset(DatasetName("openthoughts-tblite", None), Access(place)).source == "tbench"
    assert find_dataset(DatasetName("terminal-bench", "2.0"), Access(place)).source == "tbench"
    assert find_dataset(DatasetName("terminal-bench", None), Access(place)).title == "terminal-bench@2.1"
    with pytest.raises(
        UsageError, match=r"terminal-bench@5: no such version in .*registry\.json or tbench's own list; t"
    ):
        find_dataset(DatasetName("terminal-bench", "5"), Access(place))


# Packages that Harbor has downloaded: found by name and digest, checked, and never fetched.

MakeTask = Any


@pytest.fixture
def harbor(tmp_path: Path) -> Path:
    """Harbor's cache, in the home directory of the test."""
    path = tmp_path / "home" / ".cache" / "harbor"
    path.mkdir(parents=True)
    return path


def package(harbor: Path, task: Path, name: str = "org/one") -> Path:
    target = harbor / "tasks" / "packages" / name / Task.read(task).hash
    shutil.copytree(task, target)
    return target


def test_a_package_has_its_name_again_and_its_digest_is_compared(harbor: Path, make_task: MakeTask) -> None:
    digest = package(harbor, make_task("one")).name
    for said in ("org/one@latest", "org/one", f"org/one@sha256:{digest}"):
        tasks = read_selected(said, ALL_TASKS)
        assert tasks.names == ["one"] and tasks.origin is not None
        assert (tasks.origin.source, tasks.origin.verified) == ("harbor", True)
        assert tasks.origin.digest_words == "1 of 1 task matches the published digests"


def test_a_package_that_was_half_extracted_is_no_package(harbor: Path, make_task: MakeTask) -> None:
    path = package(harbor, make_task("one"))
    (path / "solution" / "solve.sh").unlink()
    with pytest.raises(UsageError, match="its content does not match its digest; let Harbor download it again"):
        read_selected("org/one", ALL_TASKS)
    (path / "task.toml").unlink()
    with pytest.raises(UsageError, match=r"cannot be read: .*let Harbor download it again"):
        read_selected("org/one", ALL_TASKS)


def test_of_several_contents_one_has_to_be_named(harbor: Path, make_task: MakeTask) -> None:
    package(harbor, make_task("one"))
    other = package(harbor, make_task("one", instruction="Another.\n"))
    with pytest.raises(UsageError, match=r"org/one: .* has 2 versions; add @ and one of sha256:"):
        read_selected("org/one", ALL_TASKS)
    assert read_selected(f"org/one@sha256:{other.name}", ALL_TASKS).tasks[0].instruction == "Another.\n"


def test_a_dataset_is_read_by_its_manifest_and_a_task_that_is_not_there_is_named(
    harbor: Path, make_task: MakeTask
) -> None:
    digests = {name: package(harbor, make_task(name), f"org/{name}").name for name in ("one", "two")}
    directory = harbor / "datasets" / "org" / "set" / ("d" * 64)
    directory.mkdir(parents=True)
    rows = "".join(f'[[tasks]]\nname = "org/{name}"\ndigest = "sha256:{each}"\n' for name, each in digests.items())
    (directory / "dataset.toml").write_text(f'[dataset]\nname = "org/set"\n{rows}')
    assert read_selected("org/set", ALL_TASKS).names == ["one", "two"]
    assert read_selected("org/set", TaskChoice(["two"])).names == ["two"]
    shutil.rmtree(harbor / "tasks" / "packages" / "org" / "two")
    with pytest.raises(
        UsageError, match=r"dataset\.toml: org/two is not in Harbor's cache; .* harbor download org/two"
    ):
        read_selected("org/set", ALL_TASKS)


def test_what_harbor_does_not_have_is_not_asked_of_the_hub(harbor: Path) -> None:
    with pytest.raises(UsageError, match="fetch a package of Harbor's hub with: harbor download org/none@latest"):
        read_selected("org/none@latest", ALL_TASKS)


@pytest.mark.parametrize(
    ("version", "said"), [(None, ["dataset set@2.1: the newest version; there are also 1.0, 2.0"]), ("2.0", [])]
)
def test_a_name_without_a_version_says_which_was_chosen_and_which_others_there_are(
    tmp_path: Path, version: str | None, said: list[str]
) -> None:
    listed = [dataset(task("a"), version=each) for each in ("2.1", "1.0", "2.0")]
    heard: list[str] = []
    access = Access(written(tmp_path, [*listed, dataset(task("a"), name="other")]), say=heard.append)
    assert find_dataset(DatasetName("set", version), access).version == (version or "2.1")
    assert find_dataset(DatasetName("other", None), access).version == "1.0"
    assert heard == said


def test_names_that_are_only_on_the_hub_are_known_with_the_way_to_get_them(harbor: Path) -> None:
    listed = hub_names()
    date.fromisoformat(listed.made)
    assert len(set(listed.names)) == len(listed.names) > 100
    fetched = {name for each in known_datasets() for name in (each.name, *each.aliases)}
    assert fetched.isdisjoint(listed.names)
    name = listed.names[0]
    with pytest.raises(UsageError, match=f"only on Harbor's hub .* harbor download {name}"):
        find_dataset(DatasetName(name, None), Access())
    with pytest.raises(UsageError, match=f"did you mean .*{name}"):
        find_dataset(DatasetName(name.rpartition("/")[2], None), Access())


def test_a_dataset_of_the_hub_that_has_a_repository_is_found_by_both_names(harbor: Path) -> None:
    one, other = (find_dataset(DatasetName(name, None), Access()) for name in ("deep-swe", "datacurve/deep-swe"))
    assert one == other and one.pieces[0].is_commit
