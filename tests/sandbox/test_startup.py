"""Startup from an image's configuration: entry points that count, and the image's own healthcheck."""

from __future__ import annotations

from typing import Any

import pytest

from tbench.sandbox.startup import Startup

IDLE_COMMAND = ("sh", "-c", "sleep infinity")


@pytest.mark.parametrize(
    ("entrypoint", "started"),
    [
        (None, ()),
        ([], ()),
        (["/usr/bin/tini", "-s", "--"], ()),
        (["dumb-init"], ()),
        (["tini", "--", "/serve"], ("tini", "--", "/serve", *IDLE_COMMAND)),
        (["/run"], ("/run", *IDLE_COMMAND)),
        (["/bin/sh", "-c", "serve"], ("/bin/sh", "-c", "serve", *IDLE_COMMAND)),
    ],
)
def test_an_entry_point_has_harbors_arguments_and_an_init_alone_is_none(entrypoint: Any, started: Any) -> None:
    assert Startup.from_config({"Entrypoint": entrypoint, "Cmd": ["serve"]}).entrypoint == started


@pytest.mark.parametrize("told", [None, {}, {"Test": []}, {"Test": ["NONE"]}, {"Test": ["CMD"]}])
def test_an_image_may_have_no_check(told: Any) -> None:
    assert Startup.from_config({"Healthcheck": told}).healthcheck is None


def test_a_check_is_asked_every_second_until_an_engine_would_begin_to_count() -> None:
    second = 10**9
    told = {"Test": ["CMD", "curl", "-f", "a b"], "Interval": 5 * second, "Timeout": 2 * second, "Retries": 7}
    check = Startup.from_config({"Healthcheck": told}).healthcheck
    assert check is not None
    assert (check.command, check.start_interval_sec, check.retries) == ("curl -f 'a b'", 1.0, 7)
    assert (check.interval_sec, check.timeout_sec, check.start_period_sec) == (5.0, 2.0, 5.0)
    longer = Startup.from_config({"Healthcheck": {**told, "StartPeriod": 60 * second}}).healthcheck
    assert longer is not None and longer.start_period_sec == 60.0


def test_a_check_by_a_shell_has_the_engines_defaults() -> None:
    check = Startup.from_config({"Healthcheck": {"Test": ["CMD-SHELL", "test -e /ready || exit 1"]}}).healthcheck
    assert check is not None
    assert (check.command, check.interval_sec, check.timeout_sec) == ("test -e /ready || exit 1", 30.0, 30.0)
    assert (check.retries, check.start_period_sec) == (3, 30.0)
