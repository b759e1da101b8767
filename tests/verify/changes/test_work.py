"""Selection of the changes that are copied into a fresh container."""

from __future__ import annotations

import pytest
from seen_changes import IMAGE, container

from tbench.verify.changes.facts import Sign
from tbench.verify.changes.work import without_system, work_of


def copied(*paths: str, **parts: str) -> list[str]:
    return work_of(container(dict.fromkeys(paths, b"x"), **parts), [])[0]


@pytest.mark.parametrize(
    "path",
    ["/app/x", "/srv/lab/x", "/tmp/x", "/home/anna/x", "/root/x", "/opt/x", "/etc/nginx/x",
     "/usr/local/bin/mytool", "/usr/local/share/x", "/var/www/x", "/var/lib/app/db", "/logs/artifacts/x"],
)  # fmt: skip
def test_work_is_copied(path: str) -> None:
    assert copied(path) == [path]


@pytest.mark.parametrize(
    "path",
    ["/usr/bin/jq", "/usr/lib/python3.11/json/x.py", "/root/.bashrc", "/home/anna/.profile",
     "/proc/x", "/tests/x", "/logs/verifier/x", "/logs/agent/x", "/solution/x", "/usr/local/bin/python3",
     "/etc/nsswitch.conf", "/var/lib/dpkg/status", "/app/__pycache__/x.pyc"],
)  # fmt: skip
def test_the_system_and_its_hooks_are_not_copied(path: str) -> None:
    assert copied(path) == []


def test_files_that_the_instruction_names_are_work() -> None:
    assert copied("/etc/nsswitch.conf", instruction="Edit /etc/nsswitch.conf.") == ["/etc/nsswitch.conf"]


@pytest.mark.parametrize("home", ["~", "$HOME", "${HOME}"])
def test_files_that_the_instruction_names_in_a_home_are_work(home: str) -> None:
    assert copied("/root/.ssh/id_rsa", instruction=f"Put a key into `{home}/.ssh/id_rsa`.") == ["/root/.ssh/id_rsa"]
    assert copied("/root/.ssh/config", instruction=f"Put a key into `{home}/.ssh/id_rsa`.") == []


def test_a_path_with_a_sign_and_everything_below_it_is_not_copied() -> None:
    seen = container({"/app/json": b"", "/app/json/__init__.py": b"x", "/app/jsonl": b"x"})
    assert work_of(seen, [Sign("module-shadowed", "/app/json", "")]) == (["/app/jsonl"], [])
    assert work_of(seen, [Sign("hosts", "/app/json", "")])[0] == [
        "/app/json",
        "/app/json/__init__.py",
        "/app/jsonl",
    ]


@pytest.mark.parametrize(
    ("instruction", "is_named"),
    [
        ("Write /app/ci/run.sh, which stores the reward.", True),
        ("Write a script `run.sh`.", True),
        ("Put the scripts into /app/ci", False),
        ("Work in /app.", False),
    ],
)
def test_files_with_signs_are_copied_only_if_the_instruction_names_them(instruction: str, is_named: bool) -> None:
    seen = container({"/app/ci/run.sh": b"x"}, instruction=instruction)
    assert bool(work_of(seen, [Sign("planted-pytest", "/app/ci/run.sh", "")])[0]) == is_named


def test_removed_files_are_returned_separately() -> None:
    image = {**IMAGE, "/app/old": b"x"}
    assert work_of(container({"/app/old": None, "/usr/bin/jq": None}, image=image), []) == ([], ["/app/old"])


def test_a_program_that_hides_one_of_the_image_is_not_copied_wherever_the_search_path_leads() -> None:
    seen = container({"/opt/venv/bin/jq": b"x", "/app/bin/mine": b"x", "/app/bin/jq": b"x", "/app/y": b"x"})
    tree = type(seen.image)(seen.image.paths, ("/opt/venv/bin", "/app/bin", *seen.image.search_path))
    seen = type(seen)(seen.changes, tree, seen.tests, seen.now, seen.then)
    assert work_of(seen, [])[0] == ["/app/bin/mine", "/app/y"]


def test_paths_that_are_nested_too_deeply_are_not_copied() -> None:
    deep = "/app" + "/d" * 300
    assert work_of(container({deep: b"x", "/app/x": b"x"}), []) == (["/app/x"], [])


def test_additions_to_the_system_are_copied_unless_excluded() -> None:
    accounts = IMAGE["/etc/passwd"] + b"a:x:9:9::/:/\n"
    seen = container({"/app/x": b"x", "/usr/local/bin/mine": b"x", "/etc/passwd": accounts})
    assert without_system(seen, work_of(seen, [])) == (["/app/x"], [])
    assert work_of(seen, [])[0] == ["/app/x", "/usr/local/bin/mine", "/etc/passwd"]
    assert work_of(container({"/app/x": b"x"}, left_out=frozenset({"/app/x"})), []) == ([], [])


def test_a_virtual_environment_of_the_image_belongs_to_it_in_any_directory() -> None:
    site = "/app/.venv/lib/python3.11/site-packages"
    image = {**IMAGE, "/app/.venv/pyvenv.cfg": b"home", "/app/.venv/bin/python": b"\x7fELF", f"{site}/old.py": b"x"}
    changed = {"/app/.venv/bin/python": b"#!", f"{site}/old.py": b"y", f"{site}/new.py": b"z", "/app/x": b"x"}
    assert work_of(container(changed, image=image), [])[0] == [f"{site}/new.py", "/app/x"]
    own = {path.replace(".venv", "own"): data for path, data in image.items() if ".venv" in path}
    assert work_of(container(own), [])[0] == [*own]
