"""Changes to the system: replaced files, files that are copied, and names of servers."""

from __future__ import annotations

import pytest
from seen_changes import IMAGE, container, strong

from tbench.sandbox.backend import BackendFacts
from tbench.verify.changes.facts import NO_ORACLE, OracleSystem, Sign
from tbench.verify.changes.system import host_signs, replaced_paths
from tbench.verify.changes.work import work_of

SITE = "/usr/local/lib/python3.11/dist-packages"
PASSWD = IMAGE["/etc/passwd"]
MORE = IMAGE | dict.fromkeys(
    (
        "/usr/include", "/usr/include/stdio.h", "/usr/lib/gcc/x86_64-linux-gnu/12", "/usr/share/perl5/strict.pm",
        "/usr/lib", "/usr/lib/x86_64-linux-gnu", "/etc/nginx/nginx.conf", SITE,
    ),
    b"image's",
)  # fmt: skip


@pytest.mark.parametrize(
    "path",
    ["/usr/bin/python3", "/usr/bin/jq", "/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/python3.11/json/__init__.py",
     "/etc/profile", "/usr/local/bin/jq", "/usr/local/bin/python3", "/etc/ld.so.preload", f"{SITE}/x.pth",
     f"{SITE}/pytest", f"{SITE}/sitecustomize.py", f"{SITE}/json.py", f"{SITE}/x-1.dist-info/entry_points.txt",
     "/etc/pip.conf", "/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libc.so.6",
     "/usr/local/include/stdio.h", "/usr/local/lib/site_perl/strict.pm", "/etc/apt/apt.conf.d/99x",
     "/usr/local/bin/answers"],
)  # fmt: skip
def test_files_that_replace_or_hide_the_images_are_listed_and_not_copied(path: str) -> None:
    seen = container({path: b"other"}, image=MORE, script="answers; pip install x\n")
    assert [*replaced_paths(seen)] == [path]
    assert work_of(seen, []) == ([], [])


@pytest.mark.parametrize(
    "path",
    ["/usr/local/bin/mytool", "/usr/bin/mytool", f"{SITE}/pandas/__init__.py", f"{SITE}/pandas", "/usr/include/png.h",
     "/usr/lib/x86_64-linux-gnu/libnew.so.1", "/usr/lib/thing/data", "/usr/share/nginx/index.html",
     "/etc/nginx/nginx.conf", "/etc/nginx/conf.d/app.conf", "/etc/systemd/system/app.service", "/var/lib/app/db",
     "/var/log/app.log", "/usr/src/x.c"],
)  # fmt: skip
def test_files_that_hide_nothing_are_copied(path: str) -> None:
    seen = container({path: b"other"}, image=MORE)
    assert (replaced_paths(seen), work_of(seen, [])[0]) == ({}, [path])


@pytest.mark.parametrize(
    "path",
    ["/etc/ld.so.cache", "/var/lib/dpkg/status", "/etc/alternatives/awk", "/root/.bashrc", "/root/.jq",
     "/usr/lib/python3.11/json/__pycache__/x.pyc", "/etc/ssl/certs/x.pem", "/usr/lib/x86_64-linux-gnu/x.cmake"],
)  # fmt: skip
def test_files_of_installers_are_neither_listed_nor_copied(path: str) -> None:
    seen = container({path: b"other"}, image=MORE)
    assert (replaced_paths(seen), work_of(seen, [])) == ({}, ([], []))


def test_unchanged_or_requested_files_and_those_of_the_tests_are_not_replaced() -> None:
    assert replaced_paths(container({"/usr/bin/jq": IMAGE["/usr/bin/jq"]})) == {}
    assert replaced_paths(container({"/usr/bin/jq": b"other"}, instruction="Repair `jq` in /usr/bin/jq.")) == {}
    assert replaced_paths(container({"/usr/bin/jq": b"other"}, changed_by_tests=frozenset({"/usr/bin/jq"}))) == {}
    assert replaced_paths(container({"/usr/bin/jq": None})) == {"/usr/bin/jq": ""}


def test_a_requested_program_is_copied_even_if_the_tests_use_its_name() -> None:
    made = {"/usr/local/bin/answers": b"x"}
    assert work_of(container(made, script="answers\n", instruction="Make a program answers."), [])[0] == [*made]
    assert work_of(container({"/usr/local/bin/jq": b"x"}, instruction="Use jq."), [])[0] == []
    assert work_of(container(made, script="answers\n", instruction="Install answers."), [])[0] == []


@pytest.mark.parametrize(
    ("path", "data", "is_copied"),
    [
        ("/etc/passwd", PASSWD + b"anna:x:1000:1000::/home/anna:/bin/bash\n", True),
        ("/etc/group", b"root:x:0:\nlab:x:100:anna,boris\nanna:x:1000:\n", True),
        ("/etc/passwd", b"root:x:0:0:root:/tmp:/bin/bash\nwww:x:33:33::/:/bin/false\n", False),
        ("/etc/passwd", b"root:x:1000:0:root:/root:/bin/bash\nwww:x:33:33::/:/bin/false\n", False),
        ("/etc/passwd", b"evil:x:0:0::/:/bin/sh\n" + PASSWD, False),
        ("/etc/passwd", PASSWD + b"www:x:1:1::/:/bin/sh\n", False),
        ("/etc/nsswitch.conf", b"passwd: evil\n", False),
    ],
)
def test_accounts_are_copied_only_if_some_were_added(path: str, data: bytes, is_copied: bool) -> None:
    assert bool(work_of(container({path: data}), [])[0]) is is_copied


@pytest.mark.parametrize(
    ("hosts", "instruction", "text", "kinds"),
    [
        (b"127.0.0.1 app tests\n", "", "open('/app/x'); open('/tests/y')", set()),
        (b"127.0.0.1 localhost localhost.localdomain\n::1 localhost ip6-localhost\n", "", "get('localhost')", set()),
        (b"127.0.0.1 localhost db\n", "", "connect('db')", {"hosts"}),
        (b"127.0.0.1 localhost pypi.org\n", "", "", {"hosts"}),
        (b"127.0.0.1 db\n", "", "connect('db')", {"hosts"}),
        (b"127.0.0.1 db\n", "", "get('http://db:80/x')", {"hosts"}),
        (b"127.0.0.1 db\n", "Serve at http://db:80.", "get('http://db:80/x')", set()),
        (b"10.0.0.1 db\n", "Serve at http://db:80.", "get('http://db:80/x')", {"hosts"}),
        (b"127.0.0.1 data.org\n", "Take it from data.org.", "get('http://data.org/x')", {"hosts"}),
    ],
)
def test_requested_names_of_this_machine_are_no_sign(
    hosts: bytes, instruction: str, text: str, kinds: set[str]
) -> None:
    seen = container({"/etc/hosts": hosts}, instruction=instruction, texts=(text,))
    assert strong(host_signs(seen)) == kinds


def test_a_name_server_that_the_engine_sets_is_no_sign() -> None:
    image = {**IMAGE, "/etc/resolv.conf": b"nameserver 192.0.2.53\n"}
    now = {"/etc/resolv.conf": b"nameserver 127.0.0.11\n"}
    own = container(now, image=image, given=BackendFacts(servers=frozenset({"127.0.0.11"})))
    assert [sign.kind for sign in host_signs(container(now, image=image))] == ["hosts"]
    assert list(host_signs(own)) == []


@pytest.mark.parametrize(
    ("hosts", "kinds"),
    [
        (b"192.0.0.2\tserver\n127.0.0.1 db db-1\n", set()),
        (b"192.0.0.3 server\n192.0.0.2 server\n", {"hosts"}),
        (b"127.0.0.1 server\n", {"hosts"}),
        (b"192.0.0.2 db\n", {"hosts"}),
        (b"192.0.0.2 server pypi.org\n", {"hosts"}),
        (b"127.0.0.1 db other\n", {"hosts"}),
    ],
)
def test_only_the_exact_names_that_the_engine_sets_are_no_sign(hosts: bytes, kinds: set[str]) -> None:
    given = BackendFacts(hosts=frozenset({("192.0.0.2", "server"), ("127.0.0.1", "db"), ("127.0.0.1", "db-1")}))
    text = "ask server; ask db; ask db-1; ask other"
    assert strong(host_signs(container({"/etc/hosts": hosts}, texts=(text,), given=given))) == kinds


INSTALLED = {
    "/usr/sbin/served": b"program",
    f"{SITE}/asked": b"",
    f"{SITE}/asked/__init__.py": b"module",
    f"{SITE}/a.pth": b"import a\n",
}
ASKS = {"script": "served -t\n", "texts": ("import asked\n",)}


def copied(changed: dict[str, bytes], oracle: OracleSystem) -> set[str]:
    seen = container(changed, oracle=oracle, **ASKS)  # type: ignore[arg-type]
    return set(work_of(seen, [Sign("python-startup", f"{SITE}/a.pth", "")])[0])


def test_system_files_that_tests_look_for_are_copied_only_if_the_oracle_added_them_too() -> None:
    assert copied(INSTALLED, NO_ORACLE) == set()
    own = OracleSystem(is_own=True)
    assert copied(INSTALLED, own) == INSTALLED.keys()
    assert copied({"/usr/bin/jq": b"other"}, own) == set()
    oracle = OracleSystem(frozenset(replaced_paths(container(INSTALLED, oracle=own, **ASKS)).items()))  # type: ignore[arg-type]
    assert copied(INSTALLED, oracle) == INSTALLED.keys()
    other = {
        "/usr/local/bin/served": b"x",
        f"{SITE}/asked.py": b"x",
        f"{SITE}/a.pth": b"import b\n",
        "/usr/bin/jq": b"x",
    }
    assert copied(other, oracle) == {"/usr/local/bin/served", f"{SITE}/asked.py"}


@pytest.mark.parametrize("path", ["/usr/bin/json.py", "/usr/x86_64-linux-gnu/bin/jq", "/usr/local/bin/pytest.so"])
def test_files_beside_programs_can_hide_programs_and_their_modules(path: str) -> None:
    assert path in replaced_paths(container({path: b"x"}))
    assert work_of(container({path: b"x"}), [])[0] == []
