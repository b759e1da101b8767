"""Nodes of a cluster that have one engine between them: each has a part, and all parts are no more than the engine."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.errors import UsageError
from tbench.fleet.ray.cluster import EngineSharing, divide_cpus
from tbench.sandbox.docker.engine import DaemonThreads, Engine, EngineInfo


def an_engine(identity: str = "one", cpus: int = 4, **more: Any) -> Engine:
    info = EngineInfo("host", "28", cpus, 8000.0, "overlay2", "2", identity=identity, **more)
    return Engine(cast(Any, None), DaemonThreads(), info)


def has(engine: Engine) -> tuple[int, float]:
    return engine.info.cpus, engine.info.memory_mb


@given(wanted=st.lists(st.integers(1, 40), min_size=1, max_size=8), more=st.integers(0, 60))
def test_no_one_has_more_than_is_wanted_and_nothing_is_left_while_someone_wants_it(
    wanted: list[int], more: int
) -> None:
    asked = {str(number): each for number, each in enumerate(wanted)}
    whole = len(wanted) + more
    got = divide_cpus(asked, whole)
    assert all(1 <= got[name] <= asked[name] for name in asked)
    assert sum(got.values()) == min(whole, sum(wanted))


def test_a_node_alone_has_what_ray_has_there() -> None:
    sharing = EngineSharing()
    for name, cpus, expected in (("a", 3.0, (3, 6000.0)), ("b", 64.0, (4, 8000.0)), ("c", 0.0, (4, 8000.0))):
        engine = an_engine(name)
        sharing.take(name, engine, cpus, 0)
        assert has(engine) == expected


def test_nodes_that_share_an_engine_have_a_part_each_and_more_when_one_is_gone() -> None:
    sharing, one, two = EngineSharing(), an_engine(), an_engine()
    sharing.take("one", one, 0, 0)
    assert has(one) == (4, 8000.0)
    sharing.take("two", two, 0, 0)
    assert has(one) == has(two) == (2, 4000.0)
    assert sharing.give_back("one") and not sharing.give_back("one")
    assert has(two) == (4, 8000.0)


def test_more_nodes_than_cpus_are_refused_by_the_names_of_the_others() -> None:
    sharing = EngineSharing()
    for name in ("one", "two"):
        sharing.take(name, an_engine(cpus=2), 1, 0)
    with pytest.raises(UsageError, match="has the same engine as one, two, which has no free CPU"):
        sharing.take("three", an_engine(cpus=2), 1, 0)


def test_engines_that_do_not_say_which_they_are_are_not_shared() -> None:
    sharing, one, two = EngineSharing(), an_engine(""), an_engine("")
    sharing.take("one", one, 0, 0)
    sharing.take("two", two, 0, 0)
    assert has(one) == has(two) == (4, 8000.0)


@pytest.mark.parametrize(("has_gpus", "told", "known"), [(True, 2, 2), (True, 0, 0), (False, 2, None)])
def test_gpus_are_as_many_as_ray_has_where_the_engine_can_give_them(
    has_gpus: bool, told: int, known: int | None
) -> None:
    engine = an_engine(has_gpus=has_gpus)
    EngineSharing().take("one", engine, 0, told)
    assert (engine.info.gpus, engine.info.has_gpus) == (known, has_gpus and told > 0)
