"""Loader, accounts, names of servers, start files, hooks of package managers."""

from __future__ import annotations

import dataclasses

import pytest
from seen_changes import IMAGE, container, strong, weak

from tbench.sandbox.backend import GivenNames
from tbench.verify.changes.facts import File
from tbench.verify.changes.system import system_signs

PASSWD = IMAGE["/etc/passwd"]
COMPILER = IMAGE | dict.fromkeys(
    (
        "/usr/bin/as",
        "/usr/include/stdio.h",
        "/usr/lib/gcc/x86_64-linux-gnu",
        "/usr/lib/gcc/x86_64-linux-gnu/12",
        "/usr/lib/gcc/x86_64-linux-gnu/12/include",
        "/usr/lib/jq/helper",
        "/usr/lib/other/helper",
        "/usr/lib/x86_64-linux-gnu/crt1.o",
        "/usr/lib/x86_64-linux-gnu/perl-base/strict.pm",
    ),
    b"image's",
)


@pytest.mark.parametrize(
    ("path", "data", "kind"),
    [
        ("/etc/ld.so.preload", b"/x.so\n", "preload"),
        ("/etc/ld.so.cache", b"glibc-ld.so.cache1.1\0libc.so.6\0/opt/x/libc.so.6\0", "loader"),
        ("/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libc.so.6", b"x", "loader"),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", b"other", "library-changed"),
        ("/etc/passwd", b"root:x:0:0:root:/tmp:/bin/bash\nwww:x:33:33::/:/bin/false\n", "accounts"),
        ("/etc/passwd", b"root:x:1000:0:root:/root:/bin/bash\nwww:x:33:33::/:/bin/false\n", "accounts"),
        ("/etc/passwd", b"evil:x:0:0::/:/bin/sh\n" + PASSWD, "accounts"),
        ("/etc/passwd", None, "accounts"),
        ("/etc/nsswitch.conf", b"passwd: evil\n", "accounts"),
        ("/etc/hosts", b"10.0.0.1 pypi.org\n", "hosts"),
        ("/etc/resolv.conf", b"nameserver 10.0.0.1\n", "hosts"),
        ("/etc/apt/apt.conf.d/99x", b'DPkg::Post-Invoke {"x";};\n', "package-hook"),
        ("/etc/dpkg/dpkg.cfg.d/x", b"post-invoke=x\n", "package-hook"),
        ("/etc/pip.conf", b"[global]\nindex-url = http://10.0.0.1\n", "package-hook"),
        ("/root/.local/bin/env", b'export PATH="/opt/x:$PATH"\n', "shell-startup"),
        ("/root/.bashrc", b"python3() { :; }\n", "shell-startup"),
        ("/root/.gitconfig", b"[core]\nfsmonitor = /x\n", "git-hook"),
        ("/root/.gitconfig", b"[core]\npager = x\n", "git-hook"),
        ("/root/.gitconfig", b"[alias][core]\nfsmonitor = /x\n", "git-hook"),
        ("/root/.gitconfig", b"[core]\nx = a \\\n[alias]\nfsmonitor = /x\n", "git-hook"),
        ("/root/.gitconfig", "[core]\nx = a\u2028[alias]\nfsmonitor = /x\n".encode(), "git-hook"),
        ("/root/.gitconfig", b"[include] path = /x\n", "git-hook"),
        ("/app/.git/config", b"\xef\xbb\xbf[include]\npath = /x\n", "git-hook"),
        ("/root/.bashrc", b'export PATH="/app/bin:$PATH"\n', "shell-startup"),
        ("/root/.bashrc", b"alias git='git -c x=y'\n", "shell-startup"),
        ("/root/.bashrc", b'. "$HOME/.cargo/env"\n', "shell-startup"),
        ("/root/.bashrc", b"export LD_PRELOAD=x\n", "shell-startup"),
        ("/usr/lib/x86_64-linux-gnu/gconv/gconv-modules.d/x.conf", b"x", "library-changed"),
        ("/etc/ld-musl-x86_64.path", b"/x\n", "preload"),
        ("/node_modules/chai/index.js", b"x", "library-changed"),
        ("/app/jest.config.js", b"x", "planted-config"),
        ("/usr/local/share/perl/5.36.0/Test/More.pm", b"x", "module-shadowed"),
    ],
)
def test_changes_that_decide_what_programs_do_are_flagged(path: str, data: bytes | None, kind: str) -> None:
    script, image = (
        "bash -l; pip install x; git log; npx jest\n",
        {**IMAGE, "/usr/share/perl/5.36.0/Test/More.pm": b"x"},
    )
    assert kind in strong(system_signs(container({path: data}, script=script, image=image)))


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/etc/ld.so.preload", b"\n"),
        ("/etc/ld.so.cache", b"libfoo.so\0/usr/local/lib/libfoo.so\0/lib/x86_64-linux-gnu/libc.so.6\0"),
        ("/etc/passwd", PASSWD + b"anna:x:1000:1000::/home/anna:/bin/bash\n"),
        ("/etc/group", b"root:x:0:\nlab:x:100:anna,boris\nanna:x:1000:\n"),
        ("/etc/shadow", b"root:$y$:1::::::\n"),
        ("/etc/nsswitch.conf", b"hosts: files mdns4_minimal [NOTFOUND=return] dns\n"),
        ("/etc/hosts", b"127.0.0.1 localhost\n10.0.0.2 made-up.example\n"),
        ("/etc/apt/apt.conf.d/99x", b'APT::Install-Recommends "0";\n'),
        ("/etc/pip.conf", b"[global]\nbreak-system-packages = true\n"),
        ("/root/.bashrc", b'# nothing\nexport PATH="$PATH:$HOME/go/bin"\n'),
        ("/root/.gitconfig", b"[user]\nname = x\n[init]\ndefaultBranch = main\n"),
        ("/root/.local/bin/env", b'#!/bin/sh\nexport PATH="$HOME/.local/bin:$PATH"\n'),
        ("/etc/nginx/nginx.conf", b"x"),
        ("/usr/lib/x86_64-linux-gnu/libnew.so.1", b"x"),
        ("/usr/lib32/libc.so.6", b"x"),
        ("/usr/lib/i386-linux-gnu/libc.so.6", b"x"),
        ("/usr/mips-linux-gnu/lib/gconv/UTF-16.so", b"x"),
        ("/usr/local/lib/node_modules/x/specs", b""),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", None),
        ("/root/.gitconfig", b"[core]\n\tpager = cat\n\teditor = true\n[alias]\nlg = log --external\n"),
        ("/app/.git/config", b'[remote "origin"]\n\turl = https://example.org/image-processing-filter.git\n'),
        ("/root/.bashrc", b"alias ll='ls -la'\nalias ls='ls --color=auto'\nexport EDITOR=vim\n"),
        ("/usr/share/doc/x", b"x"),
    ],
)
def test_honest_administration_is_no_sign(path: str, data: bytes | None) -> None:
    assert list(system_signs(container({path: data}, script="bash -l; pip install x; git log; apt-get update\n"))) == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/usr/share/perl5/strict.pm", "module-shadowed"),
        ("/usr/lib/gcc/x86_64-linux-gnu/12/include/stdio.h", "module-shadowed"),
        ("/usr/include/x86_64-linux-gnu/stdio.h", "module-shadowed"),
        ("/usr/include/stdio.h.gch", "library-changed"),
        ("/usr/lib/x86_64-linux-gnu/crt1.o", "library-changed"),
        ("/usr/lib/gcc/x86_64-linux-gnu/12/as", "tool-replaced"),
        ("/usr/lib/jq/helper", "library-changed"),
        ("/usr/lib/ssl/openssl.cnf", "loader"),
        ("/root/.jq", "tool-settings"),
        ("/root/.config/jq/settings", "tool-settings"),
    ],
)
def test_what_tools_take_before_their_own_is_flagged(path: str, kind: str) -> None:
    changed = {path: b"  module = /x.so\n"}
    assert kind in strong(system_signs(container(changed, script="gcc x.c; jq . x\n", image=COMPILER)))


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/usr/share/perl5/Other/strict.pm", b"x"),
        ("/usr/lib/gcc/x86_64-linux-gnu/13/include/stdio.h", b"x"),
        ("/usr/include/x86_64-linux-gnu/png/stdio.h", b"x"),
        ("/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus", b"x"),
        ("/usr/lib/other/helper", b"x"),
        ("/etc/ssl/openssl.cnf", b"[provider_sect]\ndefault = default_sect\n# .include x\n"),
        ("/etc/php/8.2/cli/conf.d/10-opcache.ini", b"zend_extension=opcache.so\n"),
        ("/root/.jq_history", b"x"),
        ("/root/.vimrc", b"x"),
    ],
)
def test_what_is_beside_them_is_not(path: str, data: bytes) -> None:
    assert list(system_signs(container({path: data}, script="gcc x.c; jq . x\n", image=COMPILER))) == []


def test_settings_that_were_asked_for_are_work() -> None:
    assert list(system_signs(container({"/root/.jq": b"x"}, instruction="Define f in ~/.jq\n"))) == []


def test_start_files_matter_where_the_tests_read_them() -> None:
    changed = {"/root/.bashrc": b"x() { :; }\n"}
    assert list(system_signs(container(changed))) == []
    assert strong(system_signs(container(changed, script=". ~/.bashrc\n"))) == {"shell-startup"}


def test_a_cache_matters_to_who_installs_from_it() -> None:
    changed = {"/root/.cache/uv/archive-v0/x/_pytest/reports.py": b"x"}
    tool = {"/root/.local/share/uv/tools/pytest/uv-receipt.toml": b"x"}
    for each in (changed, tool):
        assert strong(system_signs(container(each, script="uvx pytest\n"))) == {"cache-changed"}
        assert list(system_signs(container(each))) == []
    lock = {"/root/.local/share/uv/tools": b"", "/root/.local/share/uv/tools/.lock": b""}
    assert list(system_signs(container(lock, script="uvx pytest\n"))) == []


def test_settings_of_an_installer_are_weak_where_the_tests_use_others() -> None:
    changed: dict[str, bytes | None] = {"/root/.npmrc": b"prefix=/root/.npm-global\n"}
    assert weak(system_signs(container(changed, script="uvx pytest\n"))) == {"downloads-redirected"}
    assert strong(system_signs(container(changed, script="npm ci\n"))) == {"package-hook"}


def test_a_link_where_a_directory_of_the_image_was_is_flagged() -> None:
    seen = container({"/usr/local/lib": b"x"})
    assert strong(system_signs(seen)) == {"system-moved"}
    as_before = dict(seen.now) | {"/usr/local/lib": File(0o040755)}
    assert list(system_signs(type(seen)(seen.changes, seen.image, seen.tests, as_before, seen.then))) == []


def test_members_of_groups_and_other_accounts_are_at_most_weak() -> None:
    shell = b"root:x:0:0:root:/root:/bin/bash\nwww:x:33:33::/srv:/bin/bash\n"
    assert weak(system_signs(container({"/etc/passwd": shell}))) == {"accounts-changed"}


def test_a_directory_in_front_of_the_path_matters_where_a_used_program_lies_in_it() -> None:
    start: dict[str, bytes | None] = {"/root/.bashrc": b'. "$HOME/.cargo/env"\nexport PATH=$HOME/bin:$PATH\n'}
    start |= {"/root/.cargo/env": b'export PATH="$HOME/.cargo/bin:$PATH"\n'}
    directories = dict.fromkeys(("/root/bin", "/root/.cargo/bin"), File(0o040755))

    def found(*tools: str) -> set[str]:
        changed = start | dict.fromkeys(tools, b"x") | dict.fromkeys(directories, b"")
        seen = container(changed, script="bash -lc 'cargo test'; jq . x\n")
        return strong(system_signs(dataclasses.replace(seen, now={**seen.now, **directories})))

    assert found("/root/.cargo/bin/cargo", "/root/bin/mine") == set()
    for tool in ("/root/.cargo/bin/jq", "/root/bin/python3"):
        assert found(tool) == {"shell-startup"}


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
def test_names_of_this_machine_that_the_instruction_asks_for_are_no_sign(
    hosts: bytes, instruction: str, text: str, kinds: set[str]
) -> None:
    seen = container({"/etc/hosts": hosts}, instruction=instruction, texts=(text,))
    assert strong(system_signs(seen)) == kinds


def test_a_name_server_that_the_engine_gives_is_nobodys_choice() -> None:
    image = {**IMAGE, "/etc/resolv.conf": b"nameserver 192.0.2.53\n"}
    now = {"/etc/resolv.conf": b"nameserver 127.0.0.11\n"}
    own = container(now, image=image, given=GivenNames(servers=frozenset({"127.0.0.11"})))
    assert [sign.kind for sign in system_signs(container(now, image=image))] == ["hosts"]
    assert list(system_signs(own)) == []


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
def test_only_the_very_names_that_the_engine_gives_are_nobodys_choice(hosts: bytes, kinds: set[str]) -> None:
    given = GivenNames(hosts=frozenset({("192.0.0.2", "server"), ("127.0.0.1", "db"), ("127.0.0.1", "db-1")}))
    text = "ask server; ask db; ask db-1; ask other"
    assert strong(system_signs(container({"/etc/hosts": hosts}, texts=(text,), given=given))) == kinds
