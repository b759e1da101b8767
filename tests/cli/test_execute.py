"""What the command line does around a run."""

from __future__ import annotations

import gc

import pytest

from tbench.cli.execute import few_full_collections


def test_the_collector_is_as_before_when_the_trials_are_over() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), few_full_collections():
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[2] > before[2]
        raise KeyError
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
