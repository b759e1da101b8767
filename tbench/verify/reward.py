"""Reads the reward that a verifier wrote, and distinguishes a 0 from tests that never ran.

Only the reward file counts. The exit code of the script means nothing, and its output cannot change the reward, as the
agent's programs may have printed it. All code that reads a reward file uses this module.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tbench.errors import TrialError
from tbench.results import is_reward
from tbench.reward import canonical
from tbench.tasks.format import REWARD_RANGE, RewardRange
from tbench.verifier_logs import Logs, last_line, tests_ran, tool_failure

_DEFAULT_METRIC = "reward"
"""The metric that counts if a file has several and none was chosen."""
_NAMES = ("reward.json", "reward.txt")
"""Names of reward files; the first one that exists counts."""
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
"""Encodings by byte order mark; UTF-32 comes first, as its mark starts with that of UTF-16."""
_MAX_DIGITS = 1000
"""Maximum length of the number in reward.txt."""


@dataclass(frozen=True)
class _RewardFile:
    """The parsed reward file."""

    name: str
    reward: float
    """The number that counts, which may be infinite."""
    content: str
    """Description of its content, for messages."""
    encoding: str
    """Encoding if the file starts with a byte order mark, or else empty."""


def read_reward(
    logs: Logs, *, calls_pytest: bool = False, reward_range: RewardRange = REWARD_RANGE, metric: str | None = None
) -> float:
    """Return the reward in reward.json, or else in reward.txt. Raises TrialError if there is none within the range.

    reward.txt contains one decimal number. reward.json contains a flat object of finite numbers: the one named `metric`
    counts, or else `reward`, or else the only one. If the script calls pytest, a 0 counts only if tests ran.
    """
    found = _read(logs, metric)
    low, high = reward_range
    if not low <= canonical(found.reward) <= high:
        where = f"the range from {low:g} to {high:g} ([verifier] reward_range in task.toml)"
        raise TrialError("verifier_bad_reward", f"{found.content}, which is outside of {where}")
    if found.reward == 0.0 and calls_pytest and not tests_ran(logs):
        why = tool_failure(logs) or f"no ctrf.json and no pytest summary; {last_line(logs)}"
        raise TrialError("verifier_never_ran", f"the reward is 0 but no test ran: {why}")
    return found.reward


def reward_remarks(logs: Logs, reward: float, metric: str | None = None) -> tuple[str, ...]:
    """Return remarks `kind: observation` about a valid reward: a 0 that a failed tool may have caused, and a reward
    file in an encoding that Harbor refuses."""
    found = []
    if reward == 0.0 and not tests_ran(logs) and (failure := tool_failure(logs)) is not None:
        found.append(f"tool-failure: {failure}")
    with contextlib.suppress(TrialError):
        if (file := _read(logs, metric)).encoding:
            found.append(f"reward-encoding: {file.name} is {file.encoding} with a byte order mark; Harbor refuses it")
    return tuple(found)


def read_metrics(logs: Logs) -> dict[str, float]:
    """Return the numbers of reward.json by name, except too large ones; empty if `reward` is the only one."""
    try:
        metrics = _json_metrics(_text_of(logs, "reward.json")[0]) if "reward.json" in logs else {}
    except TrialError:
        return {}
    if metrics.keys() <= {_DEFAULT_METRIC}:
        return {}
    return {name: value + 0.0 for name, value in metrics.items() if is_reward(value)}


def rewards_of_files(logs: Logs, metric: str | None = None) -> tuple[float, ...]:
    """Return the rewards of all valid reward files, the one that counts first."""
    found = (_reward_or_none({name: logs[name]}, metric) for name in _NAMES if name in logs)
    return tuple(reward for reward in found if reward is not None)


def parse_reward(raw: bytes, metric: str | None = None) -> float | None:
    """Return the reward in the content of a reward file of unknown name; None if it is invalid."""
    return _reward_or_none({"reward.json" if raw.lstrip().startswith(b"{") else "reward.txt": raw}, metric)


def _reward_or_none(logs: Logs, metric: str | None) -> float | None:
    try:
        return _read(logs, metric).reward
    except TrialError:
        return None


def _read(logs: Logs, metric: str | None) -> _RewardFile:
    """Parse the reward file that counts. Raises TrialError."""
    name = next((each for each in _NAMES if each in logs), None)
    if name is None:
        raise TrialError("verifier_no_reward", f"no {' or '.join(_NAMES)}; {last_line(logs)}")
    text, encoding = _text_of(logs, name)
    if name == "reward.txt":
        return _RewardFile(name, *_text_reward(text, metric), encoding)
    return _RewardFile(name, *_json_reward(_json_metrics(text), metric), encoding)


def _text_of(logs: Logs, name: str) -> tuple[str, str]:
    """Return the text of a reward file without surrounding blanks, and its encoding if it has a byte order mark.

    PowerShell writes such marks. Raises TrialError for an empty file, and for text that is not UTF-8 and has no mark.
    """
    raw = logs[name]
    encoding = next((encoding for mark, encoding in _MARKS.items() if raw.startswith(mark)), "")
    try:
        text = raw.decode(encoding or "utf-8").removeprefix("\ufeff").strip(_BLANKS)
    except UnicodeDecodeError:
        problem = f"has the byte order mark of {encoding}, but is not {encoding}" if encoding else "is not UTF-8"
        raise TrialError("verifier_bad_reward", f"{name} {problem}: {raw[:60]!r}") from None
    if not text:
        raise TrialError("verifier_no_reward", f"{name} is empty; {last_line(logs)}")
    if "\0" in text:
        message = f"{name} contains zero bytes, like UTF-16 without a byte order mark: {raw[:60]!r}"
        raise TrialError("verifier_bad_reward", message)
    return text, encoding


def _text_reward(text: str, metric: str | None) -> tuple[float, str]:
    """Return the number in reward.txt, which may be infinite, and a description."""
    if metric not in (None, _DEFAULT_METRIC):
        raise TrialError("verifier_bad_reward", f"reward.txt has no metric {metric!r}, only {_DEFAULT_METRIC!r}")
    content = f"reward.txt holds {text[:60]!r}"
    if len(text) > _MAX_DIGITS or _DECIMAL_NUMBER.fullmatch(text) is None:
        # float() would accept more: 1_0, nan, digits of other scripts.
        raise TrialError("verifier_bad_reward", f"{content}, not one decimal number such as 0.75")
    return float(text) + 0.0, content  # turns -0.0 into 0.0


def _json_reward(metrics: Mapping[str, float], metric: str | None) -> tuple[float, str]:
    """Return the number of reward.json that counts, and a description."""
    name = metric or (_DEFAULT_METRIC if len(metrics) != 1 else next(iter(metrics)))
    if name not in metrics:
        known = ", ".join(repr(each[:60]) for each in sorted(metrics)[:_NAMES_SHOWN])
        others = f", but {known}" if metrics else ""
        choose = "; choose the one that counts with --metric NAME" if metrics and not metric else ""
        raise TrialError("verifier_bad_reward", f"reward.json has no metric {name!r}{others}{choose}")
    return metrics[name] + 0.0, f"reward.json holds {name[:60]!r}: {metrics[name]:g}"


def _json_metrics(text: str) -> dict[str, float]:
    """Parse reward.json into numbers by name. Raises TrialError."""
    try:
        rewards = json.loads(text, parse_int=float)  # infinite if too large
    except (ValueError, RecursionError):
        raise TrialError("verifier_bad_reward", "reward.json is not valid JSON") from None
    if not isinstance(rewards, dict) or not all(map(_is_finite_number, rewards.values())):
        raise TrialError("verifier_bad_reward", "reward.json is not a flat object of finite numbers")
    return {name: float(value) for name, value in rewards.items()}


def _is_finite_number(value: object) -> bool:
    # True is 1, as in Harbor.
    return isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value))
