"""Reads the reward that a verifier wrote, and tells a 0 from tests that never ran.

The reward file is the only truth: the script's exit code means nothing, and no words in its output overturn a number,
as they may be the agent's programs'. All that reads a reward file reads it here, by its name.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tbench.errors import TrialError
from tbench.results import is_reward
from tbench.reward import canonical
from tbench.tasks.format import REWARD_RANGE, RewardRange
from tbench.verifier_logs import Logs, last_line, tests_ran, tool_failure

OPTION = "--metric NAME"
DEFAULT_METRIC = "reward"
"""The metric that counts where several are told and none is chosen."""
_NAMES = ("reward.json", "reward.txt")
"""Names of reward files; of several the first counts."""
_NAMES_SHOWN = 8

_DECIMAL_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BLANKS = " \t\n\r\f\v"
_MARKS = {
    codecs.BOM_UTF8: "UTF-8",
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Encodings by their byte order mark; that of UTF-32 begins with that of UTF-16."""
_LONGEST_NUMBER = 1000
"""Most characters of the number in reward.txt."""


@dataclass(frozen=True)
class _RewardFile:
    """What a reward file says."""

    name: str
    reward: float
    """The number that counts, which may be infinite."""
    shown: str
    """Words that show it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The numbers of a reward.json by name."""
    encoding: str = ""
    """Its encoding, where it begins with a byte order mark."""


def read_reward(
    logs: Logs, *, calls_pytest: bool = False, reward_range: RewardRange = REWARD_RANGE, metric: str | None = None
) -> float:
    """The reward from reward.json (wins) or reward.txt. Raises TrialError where they hold none within the range.

    reward.txt is one decimal number. reward.json is a flat object of finite numbers; the one named `metric` counts,
    else its `reward`, else its only number. A 0 of a script that calls pytest has to come with a sign that tests ran.
    """
    found = _read(logs, metric)
    low, high = reward_range
    if not low <= canonical(found.reward) <= high:
        where = f"the range from {low:g} to {high:g} ([verifier] reward_range in task.toml)"
        raise TrialError("verifier_bad_reward", f"{found.shown}, which is outside of {where}")
    if found.reward == 0.0 and calls_pytest and not tests_ran(logs):
        why = tool_failure(logs) or f"no ctrf.json and no pytest summary; {last_line(logs)}"
        raise TrialError("verifier_never_ran", f"the reward is 0 but no test ran: {why}")
    return found.reward


def remarks(logs: Logs, reward: float, metric: str | None = None) -> tuple[str, ...]:
    """Doubts about a verdict that stands, `kind: what was seen` each: a 0 that a failed tool may have caused, and a
    reward in an encoding that not everybody reads."""
    found = []
    if reward == 0.0 and not tests_ran(logs) and (failure := tool_failure(logs)) is not None:
        found.append(f"tool-failure: {failure}")
    with contextlib.suppress(TrialError):
        if (file := _read(logs, metric)).encoding:
            found.append(f"reward-encoding: {file.name} is {file.encoding} with a byte order mark; Harbor refuses it")
    return tuple(found)


def read_metrics(logs: Logs) -> dict[str, float]:
    """All numbers of a reward.json by name, but those too large to be computed with; none where it has but `reward`."""
    try:
        metrics = _json_metrics(_text_of(logs, "reward.json")[0]) if "reward.json" in logs else {}
    except TrialError:
        return {}
    if metrics.keys() <= {DEFAULT_METRIC}:
        return {}
    return {name: value + 0.0 for name, value in metrics.items() if is_reward(value)}


def rewards_of_files(logs: Logs, metric: str | None = None) -> tuple[float, ...]:
    """The rewards of all reward files that hold one, the one that counts first."""
    alone = ({name: logs[name]} for name in _NAMES if name in logs)
    return tuple(value for each in alone if (value := _reward_or_none(each, metric)) is not None)


def parse_reward(raw: bytes, metric: str | None = None) -> float | None:
    """The reward in what a command writes to a reward file of unknown name; None where there is none."""
    return _reward_or_none({_NAMES[not raw.lstrip().startswith(b"{")]: raw}, metric)


def _reward_or_none(logs: Logs, metric: str | None) -> float | None:
    try:
        return _read(logs, metric).reward
    except TrialError:
        return None


def _read(logs: Logs, metric: str | None) -> _RewardFile:
    """What the reward file that counts says. Raises TrialError."""
    name = next((each for each in _NAMES if each in logs), None)
    if name is None:
        raise TrialError("verifier_no_reward", f"no {' or '.join(_NAMES)}; {last_line(logs)}")
    text, encoding = _text_of(logs, name)
    if name == "reward.txt":
        return _RewardFile(name, *_text_reward(text, metric), encoding=encoding)
    metrics = _json_metrics(text)
    return _RewardFile(name, *_json_reward(metrics, metric), metrics, encoding)


def _text_of(logs: Logs, name: str) -> tuple[str, str]:
    """The text of a reward file without blanks around it, and its encoding where it begins with a byte order mark, such
    as what PowerShell writes. Raises TrialError for an empty file and for any other encoding than UTF-8."""
    raw = logs[name]
    encoding = next((words for mark, words in _MARKS.items() if raw.startswith(mark)), "")
    try:
        text = raw.decode(encoding or "utf-8").removeprefix("\ufeff").strip(_BLANKS)
    except UnicodeDecodeError:
        words = f"begins with the byte order mark of {encoding}, but is none" if encoding else "is not UTF-8"
        raise TrialError("verifier_bad_reward", f"{name} {words}: {raw[:60]!r}") from None
    if not text:
        raise TrialError("verifier_no_reward", f"{name} is empty; {last_line(logs)}")
    if "\0" in text:
        words = f"{name} has zero bytes in it, as UTF-16 without a byte order mark has: {raw[:60]!r}"
        raise TrialError("verifier_bad_reward", words)
    return text, encoding


def _text_reward(text: str, metric: str | None) -> tuple[float, str]:
    """The number in reward.txt, which may be infinite, and words that show it."""
    if metric not in (None, DEFAULT_METRIC):
        raise TrialError("verifier_bad_reward", f"reward.txt has no metric {metric!r}, only {DEFAULT_METRIC!r}")
    shown = f"reward.txt holds {text[:60]!r}"
    if len(text) > _LONGEST_NUMBER or _DECIMAL_NUMBER.fullmatch(text) is None:
        # More would be taken by float(): 1_0, nan, digits of other scripts.
        raise TrialError("verifier_bad_reward", f"{shown}, not one decimal number such as 0.75")
    return float(text) + 0.0, shown  # a -0 is a 0


def _json_reward(metrics: Mapping[str, float], metric: str | None) -> tuple[float, str]:
    """The number of reward.json that counts, and words that show it."""
    name = metric or (DEFAULT_METRIC if len(metrics) != 1 else next(iter(metrics)))
    if name not in metrics:
        known = ", ".join(repr(each[:60]) for each in sorted(metrics)[:_NAMES_SHOWN]) or "none"
        choose = "" if metric else f", and not just one: say which counts with {OPTION}"
        raise TrialError("verifier_bad_reward", f"reward.json has no metric {name!r}, but {known}{choose}")
    return metrics[name] + 0.0, f"reward.json holds {name[:60]!r}: {metrics[name]:g}"


def _json_metrics(text: str) -> dict[str, float]:
    """The numbers of reward.json by name. Raises TrialError."""
    try:
        rewards = json.loads(text, parse_int=float)  # beyond every float it is infinite
    except (ValueError, RecursionError):
        raise TrialError("verifier_bad_reward", "reward.json is not valid JSON") from None
    if not isinstance(rewards, dict) or not all(map(_is_finite_number, rewards.values())):
        raise TrialError("verifier_bad_reward", "reward.json is not a flat object of finite numbers")
    return {name: float(value) for name, value in rewards.items()}


def _is_finite_number(value: object) -> bool:
    # To Harbor, too, true is 1.
    return isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value))
