"""Pulling with real git from `file://` mirrors: what arrives, what goes wrong, and what counts as cached."""

from __future__ import annotations

import http.server
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from full_disk import files_end_at
from git_mirrors import Mirror, git, registry, row
from tb1_tasks import write_tb1_task

from tbench.datasets.cache import RECORD, CachedDataset, DatasetCache
from tbench.datasets.known_dataset import Access, KnownDataset, discard_message
from tbench.datasets.pull import pull
from tbench.datasets.read_tasks import read_selected
from tbench.datasets.reference import DatasetName, GitSource
from tbench.datasets.resolve import find_dataset
from tbench.errors import UsageError
from tbench.tasks.sources import ALL_TASKS, read_tasks
from tbench.tasks.task import Task

PULL = """
import sys
from pathlib import Path
from tbench.datasets.cache import DatasetCache, cache_directory
from tbench.datasets.pull import pull
from tbench.datasets.reference import parse_reference
from tbench.datasets.known_dataset import Access
from tbench.datasets.resolve import find_dataset
known = find_dataset(parse_reference(sys.argv[1]), Access())
print(pull(known, DatasetCache(cache_directory()), lambda text: print(text, flush=True)).path)
"""


def pulled(
    mirror: Mirror, cache: Path, revision: str = "main", folder: str | None = None, *, refresh: bool = False
) -> CachedDataset:
    return pull(known(mirror, revision, folder), DatasetCache(cache), discard_message, refresh=refresh)


def known(mirror: Mirror, revision: str = "main", folder: str | None = None) -> KnownDataset:
    return find_dataset(GitSource(mirror.url, revision, folder), Access())


def names(entry: CachedDataset) -> list[str]:
    return sorted(path.name for path in entry.path.iterdir() if path.name != RECORD)


def left_over(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.startswith(".lock-"))


def test_a_pull_brings_the_tasks_flat_with_their_modes_and_digests(mirror: Mirror, cache: Path) -> None:
    (mirror.work / "tasks/alpha/environment/run.sh").write_text("true\n")
    (mirror.work / "tasks/alpha/environment/run.sh").chmod(0o755)
    head = mirror.commit()
    before = os.umask(0o077)
    try:
        entry = pulled(mirror, cache)
    finally:
        os.umask(before)
    assert entry.path == cache / f"mirror-{head[:12]}"
    assert names(entry) == ["alpha", "beta", "gamma"]
    assert (entry.path / "alpha/instruction.md").read_text() == "Create the file /app/done.\n"
    modes = {
        name: stat.S_IMODE((entry.path / "alpha" / name).stat().st_mode)
        for name in ("task.toml", "instruction.md", "environment/run.sh", "environment/Dockerfile", "tests")
    }
    assert modes == {
        "task.toml": 0o444,
        "instruction.md": 0o444,
        "environment/run.sh": 0o755,
        "environment/Dockerfile": 0o644,
        "tests": 0o755,
    }
    assert entry.pieces[0].commit == head
    assert entry.hashes.keys() == entry.published.keys() == {"alpha", "beta", "gamma"}
    assert entry.hashes["beta"] == entry.published["beta"]
    assert left_over(cache) == [entry.path.name]
    assert read_tasks(str(entry.path)).names == ["alpha", "beta", "gamma"]


def test_a_folder_and_names_with_special_characters_are_taken_literally(mirror: Mirror, cache: Path) -> None:
    for name in ("a[b]", "st*r", "with space", "#hash", "!not", "back\\slash"):
        mirror.task(name, "odd/sub")
        mirror.task(name.replace("*", "a"), "elsewhere")
    mirror.commit()
    assert names(pulled(mirror, cache, folder="odd/sub")) == sorted(
        ["a[b]", "st*r", "with space", "#hash", "!not", "back\\slash"]
    )
    assert names(pulled(mirror, cache, folder="tasks/beta")) == ["beta"]


def test_tasks_at_the_root_are_found_and_other_folders_are_none(tmp_path: Path, cache: Path) -> None:
    mirror = Mirror(tmp_path, "flat")
    for name in ("one", "two", ".hidden"):
        mirror.task(name, ".")
    (mirror.work / "assets").mkdir()
    (mirror.work / "assets/picture").touch()
    (mirror.work / "link").symlink_to("one")
    mirror.commit()
    assert names(pulled(mirror, cache)) == ["one", "two"]


def test_tasks_in_folders_of_folders_are_named_by_their_path(tmp_path: Path, cache: Path) -> None:
    mirror = Mirror(tmp_path, "nested")
    for folder, name in (("optics", "lens"), ("waves", "lens"), ("waves/lens/more", "inside"), ("../.old", "lens")):
        mirror.task(name, f"tasks/physics/{folder}")
    mirror.task("sample", "examples")
    mirror.commit()
    assert names(pulled(mirror, cache)) == ["physics.optics.lens", "physics.waves.lens"]
    assert names(pulled(mirror, cache, folder="tasks/physics/optics")) == ["lens"]


def test_what_was_pulled_of_a_commit_is_not_fetched_again_and_a_branch_is(mirror: Mirror, cache: Path) -> None:
    first = pulled(mirror, cache, mirror.head)
    mirror.task("delta")
    head = mirror.commit()
    assert names(pulled(mirror, cache)) == ["alpha", "beta", "delta", "gamma"]
    shutil.rmtree(mirror.path)
    assert pulled(mirror, cache, head).path == cache / f"mirror-{head[:12]}"
    assert pulled(mirror, cache, first.pieces[0].commit).path == first.path
    with pytest.raises(UsageError, match="is not a git repository"):
        pulled(mirror, cache)


def test_offline_takes_what_was_pulled_last_and_refuses_the_rest(mirror: Mirror, cache: Path) -> None:
    store = DatasetCache(cache)
    with pytest.raises(UsageError, match=r"mirror: is not in .*--offline fetches nothing; .*tbench dataset pull git\+"):
        pull(known(mirror), store, discard_message, offline=True)
    entry = pulled(mirror, cache)
    mirror.task("delta")
    mirror.commit()
    shutil.move(mirror.path, f"{mirror.path}-gone")
    assert pull(known(mirror), store, discard_message, offline=True).path == entry.path


def test_refresh_and_offline_contradict_each_other(mirror: Mirror, cache: Path) -> None:
    with pytest.raises(UsageError, match="mirror: --refresh and --offline exclude each other"):
        pull(known(mirror), DatasetCache(cache), discard_message, refresh=True, offline=True)


def test_refresh_replaces_what_is_there(mirror: Mirror, cache: Path) -> None:
    entry = pulled(mirror, cache)
    (entry.path / "alpha/tests/test.sh").write_text("echo cheated\n")
    assert "cheated" in (pulled(mirror, cache).path / "alpha/tests/test.sh").read_text()
    assert "cheated" not in (pulled(mirror, cache, refresh=True).path / "alpha/tests/test.sh").read_text()
    assert left_over(cache) == [entry.path.name]


def test_tags_are_found_also_when_they_are_annotated_and_are_not_asked_for_twice(mirror: Mirror, cache: Path) -> None:
    git(mirror.work, "tag", "--annotate", "v1", "--message", "one")
    git(mirror.work, "push", "--quiet", str(mirror.path), "v1")
    entry = pulled(mirror, cache, "v1")
    assert entry.pieces[0].commit == mirror.head
    fixed = KnownDataset("fixed", "1", "test", (GitSource(mirror.url, "refs/tags/v1"),))
    entry = pull(fixed, DatasetCache(cache), discard_message)
    assert entry.path.name == f"fixed@1-{mirror.head[:12]}"
    shutil.rmtree(mirror.path)
    assert pull(fixed, DatasetCache(cache), discard_message).path == entry.path


def test_a_server_without_filters_gives_the_same(tmp_path: Path, cache: Path) -> None:
    mirror = Mirror(tmp_path, filters=False)
    mirror.task("alpha")
    mirror.commit()
    assert names(pulled(mirror, cache)) == ["alpha"]


def test_a_server_that_fails_at_filters_is_asked_without_one(
    mirror: Mirror, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of Hugging Face does."""
    programs, real = tmp_path / "bin", shutil.which("git")
    programs.mkdir()
    (programs / "git").write_text(
        '#!/bin/sh\ncase "$*" in *--filter*) echo "fatal: expected \'packfile\'" >&2; exit 128;; esac\n'
        f'exec {real} "$@"\n'
    )
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    assert names(pulled(mirror, cache)) == ["alpha", "beta", "gamma"]


def test_a_mirror_stands_for_a_url_by_gits_own_settings(
    mirror: Mirror, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gitconfig").write_text(f'[url "{mirror.url}"]\n\tinsteadOf = https://host.invalid/org/repo\n')
    elsewhere = GitSource("https://host.invalid/org/repo", mirror.head, None)
    entry = pull(find_dataset(elsewhere, Access()), DatasetCache(cache), discard_message)
    assert (names(entry), entry.pieces[0].url) == (["alpha", "beta", "gamma"], "https://host.invalid/org/repo")


def test_rows_of_a_registry_name_tasks_of_several_commits(mirror: Mirror, cache: Path, tmp_path: Path) -> None:
    first = mirror.head
    mirror.task("delta")
    second = mirror.commit()
    rows = row("mixed", "1", mirror, first, ["alpha"]), row("mixed", "1", mirror, second, ["delta"])
    place = registry(tmp_path / "r.json", {**rows[0], "tasks": [*rows[0]["tasks"], *rows[1]["tasks"]]})
    tasks = read_selected("mixed@1", ALL_TASKS, Access(str(place)))
    assert tasks.names == ["alpha", "delta"]
    assert tasks.origin is not None and tasks.origin.commit is None and tasks.origin.words.startswith("mixed@1: 1 of 1")
    one = read_selected(
        "one",
        ALL_TASKS,
        Access(str(registry(tmp_path / "s.json", row("one", "2", mirror, None, ["beta"])))),
    )
    assert one.origin is not None and (one.origin.commit, one.origin.path, one.origin.tasks) == (second, "tasks", 1)
    assert one.origin.digest_words == "1 of 1 task matches the published digests"


@pytest.mark.parametrize(
    ("revision", "words"),
    [
        ("f" * 40, "does not have this commit (any more)"),
        ("nowhere", "has no branch or tag nowhere; check it with git ls-remote"),
        ("abcdef1", "has no branch or tag abcdef1 (a commit needs all 40 characters)"),
    ],
)
def test_a_commit_or_branch_that_is_gone_is_named(mirror: Mirror, cache: Path, revision: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        pulled(mirror, cache, revision)
    assert words in str(raised.value) and mirror.url in str(raised.value) and "\n" not in str(raised.value)
    assert list(DatasetCache(cache).entries()) == []


def test_a_repository_without_a_main_branch_wants_one_named(mirror: Mirror, cache: Path) -> None:
    git(mirror.path, "symbolic-ref", "HEAD", "refs/heads/unborn")
    with pytest.raises(UsageError, match="has no HEAD; give a branch or a tag with @"):
        pulled(mirror, cache, "HEAD")


@pytest.mark.parametrize(
    ("folder", "words"), [("nowhere", "nowhere: no tasks found"), ("large", "large: no tasks found")]
)
def test_a_folder_without_tasks_is_named(mirror: Mirror, cache: Path, folder: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pulled(mirror, cache, folder=folder)


def test_tasks_of_terminal_bench_1_are_converted_and_those_that_cannot_be_are_named(
    mirror: Mirror, cache: Path, tmp_path: Path
) -> None:
    write_tb1_task(mirror.work / "old/first")
    write_tb1_task(mirror.work / "old/second", {"docker-compose.yaml": "services: 1\n"})
    mirror.commit()
    old = {"name": "old", "version": "1", "github_url": mirror.url, "dataset_path": "./old", "commit_hash": mirror.head}
    place = registry(tmp_path / "r.json", {**old, "terminal_bench_version": "latest"})
    for _ in range(2):
        said: list[str] = []
        found = read_selected("old@1", ALL_TASKS, Access(str(place), say=said.append))
        assert [(task.name, task.has_oracle) for task in found.tasks] == [("first", True)]
        assert "docker-compose.yaml: services: must be a table of services" in found.invalid["second"]
    assert said == []


def test_listed_tasks_that_are_gone_are_named(mirror: Mirror, cache: Path, tmp_path: Path) -> None:
    place = registry(tmp_path / "r.json", row("gone", "1", mirror, mirror.head, ["alpha", "omega"]))
    with pytest.raises(UsageError, match="has no task omega; check commit and path"):
        read_selected("gone@1", ALL_TASKS, Access(str(place)))


def test_a_pointer_of_git_lfs_never_passes_for_data(
    mirror: Mirror, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12\n"
    (mirror.work / "tasks/beta/environment/data.bin").write_text(pointer)
    mirror.commit()
    without = r"only git-lfs pointers instead of tasks/beta/environment/data\.bin; "
    with pytest.raises(UsageError, match=without + "install git-lfs"):
        pulled(mirror, cache)
    assert list(DatasetCache(cache).entries()) == []
    # A git-lfs that brings the file; the one that brings nothing is told apart.
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    lfs = programs / "git-lfs"
    lfs.write_text("#!/bin/sh\nexit 0\n")
    lfs.chmod(0o755)
    with pytest.raises(UsageError, match=without + "git-lfs did not fetch them"):
        pulled(mirror, cache)
    lfs.write_text('#!/bin/sh\n[ "$1" = version ] || echo real > tasks/beta/environment/data.bin\n')
    assert (pulled(mirror, cache).path / "beta/environment/data.bin").read_text() == "real\n"


def test_links_that_leave_a_task_cost_that_task_alone(mirror: Mirror, cache: Path) -> None:
    (mirror.work / "tasks/beta/tests/secret").symlink_to("/etc/passwd")
    (mirror.work / "tasks/evil").symlink_to("/etc")
    mirror.commit()
    entry = pulled(mirror, cache)
    assert names(entry) == ["alpha", "beta", "gamma"] and entry.hashes["beta"] is None
    tasks = read_selected(f"git+{mirror.url}@main", ALL_TASKS)
    assert [task.name for task in tasks.tasks] == ["alpha", "gamma"]
    assert "symlink leaves the task directory" in tasks.invalid["beta"]


def test_a_directory_that_is_no_whole_pull_is_not_taken_for_one(mirror: Mirror, cache: Path) -> None:
    half = cache / f"mirror-{mirror.head[:12]}"
    (half / "alpha").mkdir(parents=True)
    (half / "alpha/task.toml").touch()
    assert names(pulled(mirror, cache)) == ["alpha", "beta", "gamma"]
    (half / RECORD).write_text("{")
    assert names(pulled(mirror, cache)) == ["alpha", "beta", "gamma"]


def test_a_pull_that_is_killed_leaves_nothing_that_counts_and_the_next_one_goes_on(
    mirror: Mirror, cache: Path, tmp_path: Path
) -> None:
    """Killed again and again, at later and later moments, until one comes to its end."""
    said, kills = "", 0
    for number in range(200):
        with (tmp_path / "out").open("w+") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", PULL, f"git+{mirror.url}@{mirror.head}"],
                stdout=out,
                stderr=out,
            )
            try:
                process.wait(0.1 + number * 0.05)
            except subprocess.TimeoutExpired:
                process.kill()  # its git may live on: the next pull waits for that
                process.wait()
                kills += 1
            out.seek(0)
            said = out.read()
        if list(DatasetCache(cache).entries()):
            break
    assert kills > 0, said
    (entry,) = DatasetCache(cache).entries()
    assert names(entry) == ["alpha", "beta", "gamma"]
    assert left_over(cache) == [entry.path.name]
    assert {path.name: Task.read(path).hash for path in entry.paths} == dict(entry.published)


def test_what_was_fetched_before_the_end_is_not_fetched_again(mirror: Mirror, cache: Path) -> None:
    said: list[str] = []
    (mirror.work / "tasks/alpha/environment/data.bin").write_text(
        "version https://git-lfs.github.com/spec/v1\nsize 1\n"
    )
    mirror.commit()
    for _ in range(2):
        with pytest.raises(UsageError, match="git-lfs"):
            pull(known(mirror), DatasetCache(cache), said.append)
    assert [line for line in said if "fetching" in line] == [
        f"mirror: fetching commit {mirror.head[:12]} of {mirror.url}"
    ]


def test_what_was_fetched_stays_where_the_server_is_away_later(
    mirror: Mirror, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    away = 'case "$*" in *" checkout "*) echo "fatal: unable to access: Could not resolve host" >&2; exit 128; esac'
    (programs / "git").write_text(f'#!/bin/sh\n{away}\nexec {shutil.which("git")} "$@"\n')
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    said: list[str] = []
    for _ in range(2):
        with pytest.raises(UsageError, match="cannot be reached"):
            pull(known(mirror), DatasetCache(cache), said.append)
    (programs / "git").unlink()
    pull(known(mirror), DatasetCache(cache), said.append)
    assert sum("fetching" in line for line in said) == 1


def test_a_damaged_rest_of_an_interrupted_pull_is_thrown_away(mirror: Mirror, cache: Path) -> None:
    rest = cache / f".pulling-mirror-{mirror.head[:12]}" / "repository-0" / ".git"
    rest.mkdir(parents=True)
    (rest / "HEAD").write_text("garbage")
    (rest / "index.lock").touch()
    assert names(pulled(mirror, cache)) == ["alpha", "beta", "gamma"]


def test_two_pulls_at_once_do_the_work_once(mirror: Mirror, cache: Path) -> None:
    command = [sys.executable, "-c", PULL, f"git+{mirror.url}@{mirror.head}"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0, 0], outputs
    assert sum("fetching" in output for output in outputs) == 1, outputs
    assert {output.splitlines()[-1] for output in outputs} == {str(cache / f"mirror-{mirror.head[:12]}")}


def test_a_full_disk_in_the_middle_of_a_pull_is_said_and_leaves_nothing_that_counts(
    tmp_path: Path, cache: Path
) -> None:
    mirror = Mirror(tmp_path, "heavy")
    (mirror.task("alpha") / "environment/data").write_bytes(os.urandom(1 << 20))
    mirror.commit()
    with files_end_at(1 << 18), pytest.raises(UsageError, match=r"the disk is full.*free some space and try again"):
        pulled(mirror, cache)
    assert list(DatasetCache(cache).entries()) == []
    assert names(pulled(mirror, cache)) == ["alpha"]


def test_a_cache_that_cannot_be_made_is_named(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written: Not a directory; free some space, or set TBENCH_CACHE"):
        pull(known(mirror), DatasetCache(tmp_path / "file" / "cache"), discard_message)


def test_no_one_is_asked_for_a_password_and_none_is_shown(
    mirror: Mirror, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asks(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    asked = tmp_path / "asked"
    (tmp_path / "askpass").write_text(f"#!/bin/sh\ntouch {asked}\necho x\n")
    (tmp_path / "askpass").chmod(0o755)
    for variable in ("GIT_ASKPASS", "SSH_ASKPASS"):
        monkeypatch.setenv(variable, str(tmp_path / "askpass"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Asks)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    began = time.monotonic()
    try:
        for login in ("", "me:secret@"):
            url = f"http://{login}127.0.0.1:{server.server_address[1]}/repo"
            with pytest.raises(UsageError, match="requires a login, or is not public") as raised:
                pull(find_dataset(GitSource(url, "main", None), Access()), DatasetCache(cache), discard_message)
            assert "secret" not in str(raised.value) and "\n" not in str(raised.value)
    finally:
        server.shutdown()
        server.server_close()
    assert not asked.exists() and time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/repo", "cannot be reached"),
        ("https://host.invalid/repo", "cannot be reached"),
        ("file:///nowhere/at/all", "is not a git repository"),
        ("ssh://git@127.0.0.1:9/repo", "cannot be reached"),
    ],
)
def test_where_no_one_answers_is_reported(url: str, words: str, cache: Path) -> None:
    if url.startswith("ssh") and shutil.which("ssh") is None:
        pytest.skip("no ssh here")
    with pytest.raises(UsageError) as raised:
        pull(find_dataset(GitSource(url, "main", None), Access()), DatasetCache(cache), discard_message)
    assert words in str(raised.value) and url in str(raised.value) and "\n" not in str(raised.value)


def test_without_git_that_is_said(mirror: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match=r"git: is not installed, but needed to fetch datasets \(apt install git\)"):
        pulled(mirror, cache)


def test_names_lead_to_the_packaged_list_through_a_mirror(
    mirror: Mirror, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror has other commits than the list: what is gone is said with the URL that was meant."""
    url = "https://github.com/harbor-framework/terminal-bench-2-1"
    (tmp_path / "gitconfig").write_text(f'[url "{mirror.url}"]\n\tinsteadOf = {url}\n')
    with pytest.raises(UsageError, match=f"{url}: does not have this commit"):
        pull(find_dataset(DatasetName("terminal-bench", "2.1"), Access()), DatasetCache(cache), discard_message)


def test_a_password_is_on_no_command_line_and_in_no_file(
    mirror: Mirror, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clone a URL for which a mirror stands in; settings of the environment stay."""
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{mirror.url}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://me:secret@host.invalid/x")
    programs, lines = tmp_path / "bin", tmp_path / "lines"
    programs.mkdir()
    (programs / "git").write_text(f'#!/bin/sh\necho "$@" >> {lines}\nexec {shutil.which("git")} "$@"\n')
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    said: list[str] = []
    with_password = GitSource("https://me:secret@host.invalid/x", "main", None)
    entry = pull(find_dataset(with_password, Access()), DatasetCache(cache), said.append)
    assert names(entry) == ["alpha", "beta", "gamma"]
    files = [path.read_bytes() for path in cache.rglob("*") if path.is_file()]
    assert b"secret" not in b"".join([*files, lines.read_bytes(), *(line.encode() for line in said)])
    assert "fetch" in lines.read_text() and "host.invalid" in "".join(said)
