"""Users are found by name in files that the agent may have changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbench.errors import TrialError
from tbench.sandbox.oci.accounts import User, find_user

PASSWD = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001:,,,:/home/app:/bin/sh\nbroken line\n"
GROUP = "root:x:0:\napps:x:1001:\nstaff:x:50:app,other\n"


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    layer = tmp_path / "image"
    (layer / "etc").mkdir(parents=True)
    (layer / "etc/passwd").write_text(PASSWD)
    (layer / "etc/group").write_text(GROUP)
    return layer


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("", User(0, 0, (), "/root")),
        ("app", User(1000, 1001, (50,), "/home/app")),
        ("1000", User(1000, 1001, (50,), "/home/app")),
        ("app:staff", User(1000, 50, (), "/home/app")),
        ("0:0", User(0, 0, (), "/root")),
        ("4242", User(4242, 0, (), "/")),
    ],
)
def test_a_user_is_found_by_name_or_number(layer: Path, text: str, user: User) -> None:
    assert find_user([layer], text) == user


@pytest.mark.parametrize("text", ["nobody-of-this-name", "app:no-such-group"])
def test_an_unknown_user_is_named(layer: Path, text: str) -> None:
    with pytest.raises(TrialError, match=text.rpartition(":")[2]):
        find_user([layer], text)


def test_the_containers_own_files_come_first(layer: Path, tmp_path: Path) -> None:
    (tmp_path / "upper/etc").mkdir(parents=True)
    (tmp_path / "upper/etc/passwd").write_text("app:x:7:8::/:/bin/sh\n")
    assert find_user([tmp_path / "upper", layer], "app").uid == 7
    assert find_user([tmp_path / "nothing", layer], "app").uid == 1000


@pytest.mark.parametrize("link", ["etc", "etc/passwd"])
def test_no_link_leads_out_of_the_container(layer: Path, tmp_path: Path, link: str) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    if "/" in link:
        (upper / "etc").mkdir()
    (upper / link).symlink_to(layer / link)
    with pytest.raises(TrialError):
        find_user([upper], "app")
