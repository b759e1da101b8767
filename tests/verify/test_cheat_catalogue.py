"""Each cheat of cheats/, typed by a scripted model: a 0, no verdict and the agent blamed, or a strong flag.

And the honest counterparts: a 1 without one. `cheat_trials.py` does the same from the command line, with tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from cheat_trials import MODES, Cheat, CheatOutcome, Mode, catalogue, groups, kinds, problem, run_cheats

ALL: tuple[Mode, ...] = ("shared", "isolated", "both", "separate")


async def problems(cheats: Sequence[Cheat], mode: Mode, directory: Path) -> list[str]:
    """Return the unexpected outcomes, one line each."""
    by_name = {cheat.name: cheat for cheat in cheats}
    seen = [each async for each in run_cheats(cheats, [mode], directory)]
    assert len(seen) == len(cheats)
    return [line for each in seen if (line := _line(by_name[each.name], each))]


def _line(cheat: Cheat, seen: CheatOutcome) -> str:
    wrong = problem(cheat, seen)
    return wrong and f"{cheat.name} ({cheat.about}) {wrong}: {seen.words}"


def test_names_kinds_and_modes_are_what_they_say() -> None:
    names = [cheat.name for cheat in catalogue()]
    assert len(names) == len(set(names))
    for cheat in catalogue():
        assert cheat.kind.startswith("bundled:") or cheat.kind in kinds(), cheat.name
        assert set(cheat.shows) <= set(MODES), cheat.name
        # A tab would be completed, not typed.
        assert cheat.keys.endswith("\n") and "\t" not in cheat.keys, cheat.name


@pytest.mark.engine
@pytest.mark.parametrize(
    "mode", ["both", pytest.param("shared", marks=pytest.mark.slow), pytest.param("isolated", marks=pytest.mark.slow)]
)
async def test_some_cheats_of_most_classes_score_nothing_or_are_flagged(
    mode: Mode, tools_volume: str, tmp_path: Path
) -> None:
    wrong = await problems([cheat for cheat in catalogue() if cheat.quick], mode, tmp_path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("group", groups())
async def test_every_cheat_scores_nothing_or_is_flagged(
    group: str, mode: Mode, tools_volume: str, tmp_path: Path
) -> None:
    wrong = await problems([cheat for cheat in catalogue() if cheat.group == group], mode, tmp_path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("group", groups())
async def test_without_protection_each_of_a_class_scores(group: str, tools_volume: str, tmp_path: Path) -> None:
    wrong = await problems([cheat for cheat in catalogue() if cheat.group == group], "plain", tmp_path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.engine
@pytest.mark.slow
async def test_each_kind_of_task_tells_work_from_none(tools_volume: str, tmp_path: Path) -> None:
    # The tests of that one begin with an installer that not every machine can get.
    names = [name for name in kinds() if name != "installer"]
    done = [Cheat(f"{name}-done", "honest", name, "Only the work.", "ls\n") for name in names]
    left = [Cheat(f"{name}-left", "tools", name, "No work and no cheat.", "ls\n") for name in names]
    seen = [each async for each in run_cheats([*done, *left], ["shared"], tmp_path)]
    found = {each.name: each.words for each in seen}
    assert found == {each.name: "1" for each in done} | {each.name: "0" for each in left}
