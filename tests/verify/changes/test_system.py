"""Loader, accounts, names of servers, start files, hooks of package managers."""

from __future__ import annotations

import pytest
from seen_changes import IMAGE, container, strong, weak

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
        ("/usr/share/doc/x", b"x"),
    ],
)
def test_honest_administration_is_no_sign(path: str, data: bytes) -> None:
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
    assert strong(system_signs(container(changed, script="uvx pytest\n"))) == {"cache-changed"}
    assert list(system_signs(container(changed))) == []


def test_a_link_where_a_directory_of_the_image_was_is_flagged() -> None:
    seen = container({"/usr/local/lib": b"x"})
    assert strong(system_signs(seen)) == {"system-moved"}
    as_before = dict(seen.now) | {"/usr/local/lib": File(0o040755)}
    assert list(system_signs(type(seen)(seen.changes, seen.image, seen.tests, as_before, seen.then))) == []


def test_members_of_groups_and_other_accounts_are_at_most_weak() -> None:
    shell = b"root:x:0:0:root:/root:/bin/bash\nwww:x:33:33::/srv:/bin/bash\n"
    assert weak(system_signs(container({"/etc/passwd": shell}))) == {"accounts-changed"}
