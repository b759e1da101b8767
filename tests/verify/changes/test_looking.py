"""What was written while the tests ran."""

from __future__ import annotations

from seen_changes import container

from tbench.verify.changes.looking import _put_back

WRITTEN = frozenset({"/usr/lib/python3/dist-packages/pytest/__init__.py", "/etc/passwd", "/usr/lib/new.py"})


def test_the_images_own_files_are_not_written_by_tests_that_install_nothing() -> None:
    signs = list(_put_back(container({}), WRITTEN))
    assert [(sign.kind, sign.path) for sign in signs] == [
        ("put-back", "/usr/lib/python3/dist-packages/pytest/__init__.py")
    ]
    assert list(_put_back(container({}, script="pip install pytest\n"), WRITTEN)) == []
