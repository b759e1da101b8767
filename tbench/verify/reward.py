"""Reads the reward that a verifier wrote, and tells a 0 from tests that never ran.

The reward file is the only truth: the script's exit code means nothing, and no words in its output overturn a number,
as they may be the agent's programs'.
"""

from __future__ import annotations

import codecs
import json
import math
import re

from tbench.errors import TrialError
from tbench.results import is_reward
from tbench.reward import canonical
from tbench.tasks.format import REWARD_RANGE, RewardRange
from tbench.verifier_logs import Logs, last_line, tests_ran, tool_failure

OPTION = "--metric NAME"
DEFAULT_METRIC = "reward"
"""The metric that counts where several are told and none is chosen."""
_NAMES_SHOWN = 8

_DECIMAL_NUMBER = re.compile(rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_LONGEST_NUMBER = 1000
"""Most bytes of the number in reward.txt."""


def read_reward(
    logs: Logs, *, calls_pytest: bool = False, reward_range: RewardRange = REWARD_RANGE, metric: str | None = None
) -> float:
    """The reward from reward.json (wins) or reward.txt. Raises TrialError where they hold none within the range.

    reward.txt is one decimal number. reward.json is a flat object of finite numbers; the one named `metric` counts,
    else its `reward`, else its only number. A 0 of a script that calls pytest has to come with a sign that tests ran.
    """
    if "reward.json" in logs:
        reward, shown = _json_reward(logs, metric)
    elif "reward.txt" in logs:
        reward, shown = _text_reward(logs, metric)
    else:
        raise TrialError("verifier_no_reward", f"no reward.json or reward.txt; {last_line(logs)}")
    low, high = reward_range
    if not low <= canonical(reward) <= high:
        where = f"the range from {low:g} to {high:g} ([verifier] reward_range in task.toml)"
        raise TrialError("verifier_bad_reward", f"{shown}, which is outside of {where}")
    if reward == 0.0 and calls_pytest and not tests_ran(logs):
        why = tool_failure(logs) or f"no ctrf.json and no pytest summary; {last_line(logs)}"
        raise TrialError("verifier_never_ran", f"the reward is 0 but no test ran: {why}")
    return reward


def remarks(logs: Logs, reward: float) -> tuple[str, ...]:
    """Doubts about a verdict that stands, `kind: what was seen` each: a 0 that a failed tool may have caused."""
    if reward != 0.0 or tests_ran(logs) or (failure := tool_failure(logs)) is None:
        return ()
    return (f"tool-failure: {failure}",)


def read_metrics(logs: Logs) -> dict[str, float]:
    """All numbers of a reward.json by name, but those too large to be computed with; none where it has but `reward`."""
    try:
        metrics = _json_metrics(logs) if "reward.json" in logs else {}
    except TrialError:
        return {}
    if metrics.keys() <= {DEFAULT_METRIC}:
        return {}
    return {name: value + 0.0 for name, value in metrics.items() if is_reward(value)}


def parse_reward(raw: bytes, metric: str | None = None) -> float | None:
    """The reward in the content of a reward.json or a reward.txt; None where there is none."""
    raw = _as_utf8(raw)
    logs = {"reward.json" if raw.lstrip().startswith(b"{") else "reward.txt": raw}
    try:
        value, _ = _json_reward(logs, metric) if "reward.json" in logs else _text_reward(logs, metric)
    except TrialError:
        return None
    return value


def _as_utf8(raw: bytes) -> bytes:
    """A text that begins with a byte order mark as UTF-8 without one, such as what PowerShell writes."""
    if not raw.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw
    try:
        return raw.decode(json.detect_encoding(raw)).encode()
    except UnicodeError:
        return raw


def _text_reward(logs: Logs, metric: str | None) -> tuple[float, str]:
    """The number in reward.txt, which may be infinite, and words that show it."""
    if metric not in (None, DEFAULT_METRIC):
        raise TrialError("verifier_bad_reward", f"reward.txt has no metric {metric!r}, only {DEFAULT_METRIC!r}")
    raw = _as_utf8(logs["reward.txt"]).strip()
    if not raw:
        raise TrialError("verifier_no_reward", f"reward.txt is empty; {last_line(logs)}")
    shown = f"reward.txt holds {raw[:60].decode('utf-8', 'replace')!r}"
    if len(raw) > _LONGEST_NUMBER or _DECIMAL_NUMBER.fullmatch(raw) is None:
        # More would be taken by float(): 1_0, nan, digits of other scripts.
        raise TrialError("verifier_bad_reward", f"{shown}, not one decimal number such as 0.75")
    return float(raw) + 0.0, shown  # a -0 is a 0


def _json_reward(logs: Logs, metric: str | None) -> tuple[float, str]:
    """The number of reward.json that counts, and words that show it."""
    metrics = _json_metrics(logs)
    name = metric or (DEFAULT_METRIC if len(metrics) != 1 else next(iter(metrics)))
    if name not in metrics:
        known = ", ".join(repr(each[:60]) for each in sorted(metrics)[:_NAMES_SHOWN]) or "none"
        choose = "" if metric else f", and not just one: say which counts with {OPTION}"
        raise TrialError("verifier_bad_reward", f"reward.json has no metric {name!r}, but {known}{choose}")
    return metrics[name] + 0.0, f"reward.json holds {name[:60]!r}: {metrics[name]:g}"


def _json_metrics(logs: Logs) -> dict[str, float]:
    """The numbers of reward.json by name. Raises TrialError."""
    raw = logs["reward.json"]
    if not raw.strip():
        raise TrialError("verifier_no_reward", f"reward.json is empty; {last_line(logs)}")
    try:
        rewards = json.loads(raw, parse_int=float)  # beyond every float it is infinite
    except (ValueError, RecursionError):
        raise TrialError("verifier_bad_reward", "reward.json is not valid JSON") from None
    if not isinstance(rewards, dict) or not all(map(_is_finite_number, rewards.values())):
        raise TrialError("verifier_bad_reward", "reward.json is not a flat object of finite numbers")
    return {name: float(value) for name, value in rewards.items()}


def _is_finite_number(value: object) -> bool:
    # To Harbor, too, true is 1.
    return isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value))
