"""The cache's lock: one process builds a directory, others wait for it, and not for ever."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tbench.datasets.cache import DatasetCache
from tbench.errors import UsageError


def test_who_holds_a_dataset_for_too_long_is_given_up_in_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    with DatasetCache(tmp_path).locked("made-up@1.0-0123", said.append):
        with pytest.raises(UsageError) as caught, DatasetCache(tmp_path, 0.2).locked("made-up@1.0-0123", said.append):
            pytest.fail("two have the lock")
        with DatasetCache(tmp_path, 0.2).locked("other@1.0-0123", said.append):
            pass
    assert said == ["made-up@1.0-0123: another process is pulling it; waiting for its end"]
    words = "made-up@1.0-0123: another process is still pulling it after 0.2 s; end it (it holds "
    assert str(caught.value).startswith(words + str(tmp_path)) and "\n" not in str(caught.value)


def test_who_waits_goes_on_when_the_other_is_done(tmp_path: Path) -> None:
    said, waits, done = list[str](), threading.Event(), threading.Event()

    def take() -> None:
        with DatasetCache(tmp_path, 30).locked("made-up", lambda line: (said.append(line), waits.set())[0]):
            done.set()

    with DatasetCache(tmp_path).locked("made-up", said.append):
        other = threading.Thread(target=take)
        other.start()
        assert waits.wait(20) and not done.is_set()
    other.join(20)
    assert done.is_set() and len(said) == 1
