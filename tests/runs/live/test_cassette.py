"""cassette: which trials can be saved as one."""

from __future__ import annotations

import pytest

from harness.trajectory import Reply, Step
from tbench.errors import UsageError
from tbench.runs.live.cassette import make_cassette
from tbench.runs.replay_log import ReplayLog


def test_a_trial_that_went_on_after_a_cut_says_which_requests_are_not_known() -> None:
    log = ReplayLog()
    log.go_on([Step(index=1, reply=Reply(content="ls"))], None)
    with pytest.raises(UsageError, match="earlier process"):
        make_cassette(log)
    with pytest.raises(UsageError, match="not answered"):
        make_cassette(ReplayLog())
