"""Looks at owners and modes, and then tries what each user can do."""

import grp
import os
import pwd
import stat
import subprocess
from pathlib import Path

LAB = Path("/srv/lab")

EXPECTED = {
    ".": "root root 0755",
    "reports": "root lab 2770",
    "reports/.todo": "root lab 0660",
    "reports/2023": "root lab 2770",
    "reports/2023/annual.txt": "root lab 0660",
    "reports/2024": "root lab 2770",
    "reports/2024/drafts": "root lab 2770",
    "reports/2024/drafts/-first.txt": "root lab 0660",
    "reports/2024/march results.txt": "root lab 0660",
    "inbox": "root root 1777",
    "inbox/anna.txt": "anna anna 0640",
    "inbox/chen.txt": "chen chen 0640",
    "keys": "boris boris 0700",
    "keys/deploy.key": "boris boris 0600",
    "keys/old": "boris boris 0700",
    "keys/old/deploy.key": "boris boris 0600",
    "bin": "root lab 0750",
    "bin/publish": "root lab 0750",
}
CONTENTS = {
    "reports/.todo": "todo\n",
    "reports/2023/annual.txt": "annual\n",
    "reports/2024/drafts/-first.txt": "draft\n",
    "reports/2024/march results.txt": "march\n",
    "inbox/anna.txt": "from anna\n",
    "inbox/chen.txt": "from chen\n",
    "keys/deploy.key": "k1\n",
    "keys/old/deploy.key": "k0\n",
    "bin/publish": "#!/bin/sh\necho published\n",
}


def owned(path: Path) -> str:
    """Such as "root lab 2770"."""
    found = path.lstat()
    group = grp.getgrgid(found.st_gid).gr_name
    return f"{pwd.getpwuid(found.st_uid).pw_name} {group} {stat.S_IMODE(found.st_mode):04o}"


def may(user: str, command: str) -> bool:
    """Whether a shell command succeeds for this user, with the groups that a login would give."""
    entry = pwd.getpwnam(user)
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        user=entry.pw_uid,
        group=entry.pw_gid,
        extra_groups=os.getgrouplist(user, entry.pw_gid),
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
    )
    return done.returncode == 0


def test_the_group_has_the_two_members() -> None:
    assert sorted(grp.getgrnam("lab").gr_mem) == ["anna", "boris"]
    primary = {user: grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name for user in ("anna", "boris", "chen")}
    assert primary == {user: user for user in primary}


def test_every_owner_group_and_mode_is_as_asked() -> None:
    assert {name: owned(LAB / name) for name in EXPECTED} == EXPECTED


def test_the_link_and_its_target_are_as_before_beside_an_ordered_tree() -> None:
    assert owned(LAB / "reports") == EXPECTED["reports"]
    assert os.readlink(LAB / "reports/settings") == "/etc/lab.conf"
    assert owned(Path("/etc/lab.conf")) == "root root 0644"


def test_nothing_was_added_removed_or_changed_in_an_ordered_tree() -> None:
    assert owned(LAB / "reports") == EXPECTED["reports"]
    names = {str(path.relative_to(LAB)) for path in LAB.rglob("*")}
    assert names == {*EXPECTED, "reports/settings"} - {"."}
    assert {name: (LAB / name).read_text() for name in CONTENTS} == CONTENTS


def test_members_share_the_reports_and_others_do_not_see_them() -> None:
    trial = LAB / "reports/2024/trial"
    try:
        assert may("boris", f"echo new > {trial}") and owned(trial).split()[1] == "lab"
        assert may("anna", f"echo more >> '{LAB}/reports/2024/march results.txt.copy'")
        assert not may("chen", f"ls {LAB}/reports")
    finally:
        trial.unlink(missing_ok=True)
        trial.with_name("march results.txt.copy").unlink(missing_ok=True)


def test_the_inbox_is_open_but_nobody_removes_what_is_not_theirs() -> None:
    try:
        assert may("chen", f"echo hi > {LAB}/inbox/trial")
        assert not may("anna", f"rm -f {LAB}/inbox/trial")
        assert may("chen", f"rm {LAB}/inbox/trial")
    finally:
        (LAB / "inbox/trial").unlink(missing_ok=True)


def test_keys_and_the_program_are_for_those_they_belong_to() -> None:
    assert may("boris", f"cat {LAB}/keys/deploy.key {LAB}/keys/old/deploy.key")
    assert not may("anna", f"cat {LAB}/keys/deploy.key")
    assert may("anna", f"{LAB}/bin/publish") and not may("anna", f"echo x >> {LAB}/bin/publish")
    assert not may("chen", f"{LAB}/bin/publish")
