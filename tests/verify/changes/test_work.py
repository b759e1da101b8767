"""What is brought into a fresh container."""

from __future__ import annotations

import pytest
from seen_changes import IMAGE, container

from tbench.verify.changes.facts import Sign
from tbench.verify.changes.work import without_system, work_of


def brought(*paths: str, **parts: str) -> list[str]:
    return work_of(container(dict.fromkeys(paths, b"x"), **parts), [])[0]


@pytest.mark.parametrize(
    "path",
    ["/app/x", "/srv/lab/x", "/tmp/x", "/home/anna/x", "/root/x", "/opt/x", "/etc/nginx/x",
     "/usr/local/bin/mytool", "/usr/local/share/x", "/var/www/x", "/var/lib/app/db"],
)  # fmt: skip
def test_work_is_brought(path: str) -> None:
    assert brought(path) == [path]


@pytest.mark.parametrize(
    "path",
    ["/usr/bin/jq", "/usr/lib/python3.11/json/x.py", "/root/.bashrc", "/home/anna/.profile",
     "/proc/x", "/tests/x", "/logs/verifier/x", "/solution/x", "/usr/local/bin/python3", "/etc/nsswitch.conf",
     "/var/lib/dpkg/status", "/app/__pycache__/x.pyc"],
)  # fmt: skip
def test_the_system_and_its_hooks_stay_behind(path: str) -> None:
    assert brought(path) == []


def test_what_the_instruction_names_is_work() -> None:
    assert brought("/etc/nsswitch.conf", instruction="Edit /etc/nsswitch.conf.") == ["/etc/nsswitch.conf"]


def test_what_a_sign_speaks_against_stays_behind_with_all_below_it() -> None:
    seen = container({"/app/json": b"", "/app/json/__init__.py": b"x", "/app/jsonl": b"x"})
    assert work_of(seen, [Sign("module-shadowed", "/app/json", "")]) == (["/app/jsonl"], [])
    assert work_of(seen, [Sign("git-hook-added", "/app/json", "")])[0] == [
        "/app/json",
        "/app/json/__init__.py",
        "/app/jsonl",
    ]


@pytest.mark.parametrize(
    ("instruction", "is_brought", "is_named"),
    [
        ("Write /app/ci/run.sh, which stores the reward.", True, True),
        ("Write a script `run.sh`.", True, True),
        ("Put the scripts into /app/ci", True, False),
        ("Work in /app.", False, False),
    ],
)
def test_what_was_asked_for_is_brought_whatever_its_text_says(
    instruction: str, is_brought: bool, is_named: bool
) -> None:
    seen = container({"/app/ci/run.sh": b"x"}, instruction=instruction)
    assert bool(work_of(seen, [Sign("mentions-verifier", "/app/ci/run.sh", "")])[0]) == is_brought
    assert bool(work_of(seen, [Sign("planted-pytest", "/app/ci/run.sh", "")])[0]) == is_named


def test_removed_files_are_told_apart() -> None:
    image = {**IMAGE, "/app/old": b"x"}
    assert work_of(container({"/app/old": None, "/usr/bin/jq": None}, image=image), []) == ([], ["/app/old"])


def test_a_program_that_hides_one_of_the_image_s_stays_behind_wherever_the_path_leads() -> None:
    seen = container({"/opt/venv/bin/jq": b"x", "/app/bin/mine": b"x", "/app/bin/jq": b"x", "/app/y": b"x"})
    tree = type(seen.image)(seen.image.paths, ("/opt/venv/bin", "/app/bin", *seen.image.search_path))
    seen = type(seen)(seen.changes, tree, seen.tests, seen.now, seen.then)
    assert work_of(seen, [])[0] == ["/app/bin/mine", "/app/y"]


def test_what_lies_too_deep_stays_behind() -> None:
    deep = "/app" + "/d" * 300
    assert work_of(container({deep: b"x", "/app/x": b"x"}), []) == (["/app/x"], [])


def test_what_was_added_to_the_system_comes_along_where_that_is_asked_for() -> None:
    accounts = IMAGE["/etc/passwd"] + b"a:x:9:9::/:/\n"
    seen = container({"/app/x": b"x", "/usr/local/bin/mine": b"x", "/etc/passwd": accounts})
    assert without_system(seen, work_of(seen, [])) == (["/app/x"], [])
    assert work_of(seen, [])[0] == ["/app/x", "/usr/local/bin/mine", "/etc/passwd"]
    assert work_of(container({"/app/x": b"x"}, left_out=frozenset({"/app/x"})), []) == ([], [])


def test_a_virtual_environment_of_the_image_is_the_images_wherever_it_lies() -> None:
    site = "/app/.venv/lib/python3.11/site-packages"
    image = {**IMAGE, "/app/.venv/pyvenv.cfg": b"home", "/app/.venv/bin/python": b"\x7fELF", f"{site}/old.py": b"x"}
    changed = {"/app/.venv/bin/python": b"#!", f"{site}/old.py": b"y", f"{site}/new.py": b"z", "/app/x": b"x"}
    assert work_of(container(changed, image=image), [])[0] == [f"{site}/new.py", "/app/x"]
    own = {path.replace(".venv", "own"): data for path, data in image.items() if ".venv" in path}
    assert work_of(container(own), [])[0] == [*own]
