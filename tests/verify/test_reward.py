"""Reading of rewards from a verifier's files, and errors for files without a valid one."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tbench.errors import TrialError
from tbench.verify.reward import read_metrics, read_reward, reward_remarks, rewards_of_files

RECORDED = Path(__file__).parents[2].parent / "shared" / "data" / "harbor-trials"
PYTEST_SUMMARIES = [
    "====== 4 passed in 52.26s ======",
    "=== 1 failed, 1 passed in 0.05s ===",
    "3 failed in 0.13s",
    "== 1 passed, 2 skipped, 1 xfailed, 3 warnings in 61.20s (0:01:01) ==",
    "========= 1 error in 0.40s =========",
    "2 errors in 1s",
]
OTHER_SUMMARIES = ["1..2\nok 1 first\nnot ok 2 second", "Ran 3 tests in 0.1s\n\nFAILED", "FAIL\texample.com/x 0.1s"]
NO_SUMMARIES = ["", "Collecting pytest\nDownloading pytest-8.4.1", "2 packages installed in 3.1s", "4 passed the gate"]
TOOL_FAILURES = {
    "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 3 (apt-get)": "lock",
    "E: dpkg was interrupted, you must manually run 'dpkg --configure -a'": "interrupted",
    "tar: write error: No space left on device": "disk",
    "curl: (6) Could not resolve host: astral.sh": "resolved",
    "Temporary failure resolving 'deb.debian.org'": "resolved",
    "curl: (60) SSL certificate problem: unable to get local issuer certificate": "certificate",
    "shell-init: error retrieving current directory: getcwd: cannot access parent directories": "working directory",
    "/tests/test.sh: line 8: curl: command not found": "missing",
    "/tests/test.sh: 19: uvx: not found": "missing",
    "E: Unable to locate package curl": "download",
}


def ctrf(tests: int) -> bytes:
    return json.dumps({"results": {"tool": {"name": "pytest"}, "summary": {"tests": tests, "failed": tests}}}).encode()


def failure(files: dict[str, bytes], *, calls_pytest: bool = False) -> TrialError:
    with pytest.raises(TrialError) as caught:
        read_reward(files, calls_pytest=calls_pytest)
    return caught.value


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (b"1", 1.0),
        (b"1\n", 1.0),
        (b" 0.605 \n\n", 0.605),
        (b"1.0", 1.0),
        (b"+.5", 0.5),
        (b"1.", 1.0),
        (b"1e-3", 0.001),
        (b"10E-1", 1.0),
        (b"0.3333333333333333333333333333", 1 / 3),
        (b"1e-999", 0.0),
        (b"\xef\xbb\xbf1\r\n", 1.0),
        (b"\xff\xfe0\x00.\x005\x00\r\x00\n\x00", 0.5),
        (b"\xfe\xff\x001", 1.0),
        (b"\x0b 1 \x0c\r\n", 1.0),
    ],
)
def test_reward_txt_holds_one_decimal_number(text: bytes, reward: float) -> None:
    assert read_reward({"reward.txt": text}) == reward


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        (b"", "verifier_no_reward"),
        (b" \n\t", "verifier_no_reward"),
        (b"nan", "verifier_bad_reward"),
        (b"inf", "verifier_bad_reward"),
        (b"-Infinity", "verifier_bad_reward"),
        (b"1_0", "verifier_bad_reward"),
        (b"0_1", "verifier_bad_reward"),
        ("\u0661".encode(), "verifier_bad_reward"),
        ("\uff11".encode(), "verifier_bad_reward"),
        ("\u00a01".encode(), "verifier_bad_reward"),
        (b"0x1", "verifier_bad_reward"),
        (b"0x1p0", "verifier_bad_reward"),
        (b".", "verifier_bad_reward"),
        (b"e1", "verifier_bad_reward"),
        (b"1e", "verifier_bad_reward"),
        (b"--1", "verifier_bad_reward"),
        (b"0" * 1001, "verifier_bad_reward"),
        (b"1" * 10_000_000, "verifier_bad_reward"),
        (b"1e999", "verifier_bad_reward"),
        (b"pass", "verifier_bad_reward"),
        (b"1 0", "verifier_bad_reward"),
        (b"1\n0\n", "verifier_bad_reward"),
        (b"1,5", "verifier_bad_reward"),
        (b"50%", "verifier_bad_reward"),
        (b"[1]", "verifier_bad_reward"),
        (b"\xff\xfe1", "verifier_bad_reward"),
        (b"1\x00", "verifier_bad_reward"),
    ],
)
def test_other_content_of_reward_txt_is_an_error(text: bytes, type_: str) -> None:
    assert failure({"reward.txt": text}).type == type_


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ('{"reward": 1}', 1.0),
        ('{"reward": 0.75, "speed": 3}', 0.75),
        ('{"score": 0.25}', 0.25),
        ('{"reward": true}', 1.0),
        ('{"solved": false}', 0.0),
        ('\ufeff{"reward": 0.5}', 0.5),
        ('{"reward": 5e-1}\n', 0.5),
        ('{"reward": 1, "speed": 1e300}', 1.0),
    ],
)
def test_reward_json_takes_precedence_over_reward_txt(text: str, reward: float) -> None:
    assert read_reward({"reward.json": text.encode(), "reward.txt": b"0.5"}) == reward


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("", "verifier_no_reward"),
        ("  \n", "verifier_no_reward"),
        ("{", "verifier_bad_reward"),
        ("1", "verifier_bad_reward"),
        ("[1]", "verifier_bad_reward"),
        ("{}", "verifier_bad_reward"),
        ("null", "verifier_bad_reward"),
        ('{"reward": null}', "verifier_bad_reward"),
        ('{"reward": "1"}', "verifier_bad_reward"),
        ('{"reward": [1]}', "verifier_bad_reward"),
        ('{"reward": {"x": 1}}', "verifier_bad_reward"),
        ('{"reward": NaN}', "verifier_bad_reward"),
        ('{"reward": -Infinity}', "verifier_bad_reward"),
        ('{"reward": 1e999}', "verifier_bad_reward"),
        ('{"reward": 1' + 400 * "0" + "}", "verifier_bad_reward"),
        ('{"reward": 1, "speed": NaN}', "verifier_bad_reward"),
        ('{"speed": 1, "size": 2}', "verifier_bad_reward"),
        (5000 * "[", "verifier_bad_reward"),
    ],
)
def test_other_content_of_reward_json_is_an_error_even_with_a_reward_txt(text: str, type_: str) -> None:
    assert failure({"reward.json": text.encode(), "reward.txt": b"1"}).type == type_


@pytest.mark.parametrize("text", ["2.5", "-1", "1e308", "1e400", "-0.0001", "1.000001"])
@pytest.mark.parametrize("form", ["reward.txt", "reward.json"])
def test_a_number_outside_the_range_is_an_error_with_both(text: str, form: str) -> None:
    content = text if form == "reward.txt" else f'{{"score": {text}}}'
    failed = failure({form: content.encode()})
    assert failed.type == "verifier_bad_reward"
    if text == "1e400" and form == "reward.json":
        assert "not a flat object of finite numbers" in str(failed)
        return
    assert "outside of the range from 0 to 1 ([verifier] reward_range in task.toml)" in str(failed)
    shown = f"{float(text):g}" if form == "reward.json" else repr(text)
    assert shown in str(failed)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 2.5), (-1e9, 1e9)])
def test_a_task_may_have_a_wider_range(low: float, high: float) -> None:
    for number in (low, 0.0, high):
        for files in ({"reward.txt": str(number).encode()}, {"reward.json": json.dumps({"reward": number}).encode()}):
            assert read_reward(files, reward_range=(low, high)) == number
    with pytest.raises(TrialError, match="outside of the range from"):
        read_reward({"reward.txt": str(2 * high).encode()}, reward_range=(low, high))


@pytest.mark.parametrize("files", [{"reward.txt": b"-0.0"}, {"reward.json": b'{"reward": -0}'}])
def test_a_negative_zero_is_a_zero(files: dict[str, bytes]) -> None:
    assert math.copysign(1, read_reward(files)) == 1


def test_an_integer_beyond_every_float_is_an_error() -> None:
    for digits in (400, 5000):  # Python itself parses at most 4300
        failed = failure({"reward.json": b'{"reward": 1' + digits * b"0" + b"}"})
        assert "not a flat object of finite numbers" in str(failed)


def test_without_a_reward_file_the_error_quotes_the_last_line_of_output() -> None:
    failed = failure({"stdout.txt": b"first\nTraceback: it broke\n\n"})
    assert failed.type == "verifier_no_reward"
    assert "Traceback: it broke" in str(failed)


def test_without_any_output_the_error_says_so() -> None:
    assert "printed nothing" in str(failure({}))


@pytest.mark.parametrize("output", PYTEST_SUMMARIES + OTHER_SUMMARIES)
@pytest.mark.parametrize("calls_pytest", [True, False])
def test_a_zero_with_the_summary_of_a_test_runner_is_valid(output: str, calls_pytest: bool) -> None:
    logs = {"reward.txt": b"0", "stdout.txt": output.encode()}
    assert (read_reward(logs, calls_pytest=calls_pytest), reward_remarks(logs, 0.0)) == (0.0, ())


@pytest.mark.parametrize("output", NO_SUMMARIES)
def test_a_zero_of_a_script_that_calls_pytest_is_an_error_without_a_summary(output: str) -> None:
    failed = failure({"reward.txt": b"0", "stdout.txt": output.encode()}, calls_pytest=True)
    assert failed.type == "verifier_never_ran"
    assert "no ctrf.json and no pytest summary" in str(failed)


@pytest.mark.parametrize("output", NO_SUMMARIES)
def test_a_zero_of_any_other_script_is_valid(output: str) -> None:
    logs = {"reward.txt": b"0", "stdout.txt": output.encode()}
    assert (read_reward(logs), reward_remarks(logs, 0.0)) == (0.0, ())


@pytest.mark.parametrize("output", TOOL_FAILURES)
def test_the_error_names_a_failed_tool_if_pytest_should_have_run(output: str) -> None:
    failed = failure({"reward.txt": b"0", "stdout.txt": f"begin\n{output}\n".encode()}, calls_pytest=True)
    assert failed.type == "verifier_never_ran"
    assert TOOL_FAILURES[output] in str(failed)


@pytest.mark.parametrize("output", TOOL_FAILURES)
@pytest.mark.parametrize("reward", [b"0", b"0.0", b"-0", b"0e5"])
def test_a_zero_of_any_other_script_with_a_failed_tool_has_a_remark(output: str, reward: bytes) -> None:
    logs = {"reward.txt": reward, "stdout.txt": f"begin\n{output}\n".encode()}
    assert read_reward(logs) == 0.0
    (remark,) = reward_remarks(logs, 0.0)
    assert remark.startswith("tool-failure: ")
    assert TOOL_FAILURES[output] in remark


@pytest.mark.parametrize("output", TOOL_FAILURES)
def test_a_zero_of_tests_that_ran_is_valid_whatever_failed_before(output: str) -> None:
    logs = {"reward.txt": b"0", "stdout.txt": f"{output}\n=== 1 failed in 0.1s ===\n".encode()}
    assert (read_reward(logs, calls_pytest=True), reward_remarks(logs, 0.0)) == (0.0, ())


@pytest.mark.parametrize("reward", [b"1", b"0.5", b"-1", b"-0.25", b"1e-9"])
def test_other_rewards_need_no_summary(reward: bytes) -> None:
    logs = {"reward.txt": reward, "stdout.txt": b"uvx: command not found"}
    assert read_reward(logs, calls_pytest=True, reward_range=(-1.0, 1.0)) == float(reward)
    assert reward_remarks(logs, float(reward)) == ()


@pytest.mark.parametrize("text", [b'{"reward": 0}', b'{"reward": 0.0, "speed": 3}', b'{"score": -0.0}'])
def test_a_zero_in_json_is_checked_in_the_same_way(text: bytes) -> None:
    logs = {"reward.json": text, "stdout.txt": b"uvx: command not found"}
    assert failure(logs, calls_pytest=True).type == "verifier_never_ran"
    assert read_reward(logs) == 0.0
    assert reward_remarks(logs, 0.0) == ("tool-failure: a tool of the verifier is missing",)


def test_a_ctrf_report_with_tests_shows_that_they_ran() -> None:
    logs = {"reward.txt": b"0", "ctrf.json": ctrf(3), "stdout.txt": b"curl: command not found"}
    assert (read_reward(logs, calls_pytest=True), reward_remarks(logs, 0.0)) == (0.0, ())


@pytest.mark.parametrize(
    "report",
    [
        ctrf(0),
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"results": null}',
        b'{"results": {"summary": {"tests": null}}}',
        b'{"results": {"summary": {"tests": 1e999}}}',
        5000 * b"[",
    ],
)
def test_a_ctrf_report_without_tests_shows_nothing(report: bytes) -> None:
    assert failure({"reward.txt": b"0", "ctrf.json": report}, calls_pytest=True).type == "verifier_never_ran"


@pytest.mark.parametrize("output", ["collected 0 items\n", "Ran 0 tests in 0.000s\n"])
def test_a_runner_that_found_no_test_does_not_show_that_one_ran(output: str) -> None:
    logs = {"reward.txt": b"0", "stdout.txt": output.encode()}
    assert failure(logs, calls_pytest=True).type == "verifier_never_ran"


def recorded(name: str) -> dict[str, bytes]:
    """Return a published trial's verifier files; Harbor calls the output test-stdout.txt."""
    directories = sorted(RECORDED.glob(f"{name}*/verifier"))
    if not directories:
        pytest.skip(f"no recorded trials at {RECORDED}")
    files = {path.name: path.read_bytes() for path in directories[0].iterdir()}
    return {name.replace("test-stdout.txt", "stdout.txt"): data for name, data in files.items()}


def test_a_recorded_zero_after_a_held_dpkg_lock_is_detected() -> None:
    failed = failure(recorded("10_fail_verifier_never_ran_apt"), calls_pytest=True)
    assert failed.type == "verifier_never_ran"
    assert "lock" in str(failed)


@pytest.mark.parametrize(
    ("name", "reward"),
    [("01_pass", 1.0), ("05_pass", 1.0), ("07_fail_multi_tool_calls", 0.0), ("12_fail_with_format_errors", 0.0)],
)
@pytest.mark.parametrize("with_ctrf", [True, False])
def test_recorded_verdicts_are_read_with_and_without_ctrf(name: str, reward: float, with_ctrf: bool) -> None:
    files = recorded(name)
    if not with_ctrf:
        files.pop("ctrf.json")
    assert read_reward(files, calls_pytest=True) == reward


# -- several metrics -----------------------------------------------------------------------------

SEVERAL = {"reward.json": b'{"accuracy": 0.5, "speed": 12, "clean": true}'}


def test_the_chosen_metric_counts_and_all_are_returned() -> None:
    assert read_reward(SEVERAL, metric="accuracy") == 0.5
    assert read_reward(SEVERAL, metric="clean") == 1.0
    assert read_metrics(SEVERAL) == {"accuracy": 0.5, "speed": 12.0, "clean": 1.0}
    assert read_reward({"reward.json": b'{"reward": 1, "accuracy": 0}'}, metric="accuracy") == 0.0


@pytest.mark.parametrize(
    ("files", "metric", "words"),
    [
        (SEVERAL, None, r"has no metric 'reward', but 'accuracy', 'clean', 'speed'; choose .* --metric NAME$"),
        (SEVERAL, "acuracy", r"has no metric 'acuracy', but 'accuracy', 'clean', 'speed'$"),
        ({"reward.json": b'{"reward": 1}'}, "speed", r"has no metric 'speed', but 'reward'$"),
        ({"reward.txt": b"1"}, "speed", r"reward\.txt has no metric 'speed', only 'reward'"),
        (SEVERAL, "speed", r"'speed': 12, which is outside of the range"),
    ],
)
def test_a_missing_metric_is_an_error_that_names_the_others(
    files: dict[str, bytes], metric: str | None, words: str
) -> None:
    with pytest.raises(TrialError, match=words) as caught:
        read_reward(files, metric=metric)
    assert caught.value.type == "verifier_bad_reward"


@pytest.mark.parametrize(
    ("files", "kept"),
    [
        ({"reward.txt": b"1"}, {}),
        ({"reward.json": b'{"reward": 1}'}, {}),
        ({"reward.json": b'{"score": 0.25}'}, {"score": 0.25}),
        ({"reward.json": b'{"reward": 1, "speed": 1e300}'}, {"reward": 1.0}),
        ({"reward.json": b'{"reward": {"nested": 1}}'}, {}),
        ({"reward.json": b"{"}, {}),
    ],
)
def test_metrics_are_returned_if_there_are_more_than_the_reward(
    files: dict[str, bytes], kept: dict[str, float]
) -> None:
    assert read_metrics(files) == kept


# -- encodings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "encoding"),
    [
        (b"\xef\xbb\xbf1\n", "UTF-8"),
        ("1\r\n".encode("utf-16"), "UTF-16"),
        (b"\xfe\xff" + "1".encode("utf-16-be"), "UTF-16"),
        ("1".encode("utf-32"), "UTF-32"),
    ],
)
@pytest.mark.parametrize("form", ["reward.txt", "reward.json"])
def test_a_number_after_a_byte_order_mark_counts_with_a_remark(raw: bytes, encoding: str, form: str) -> None:
    if form == "reward.json":
        raw = raw.decode(encoding).removeprefix("\ufeff").replace("1", '{"reward": 1}').encode(encoding)
        raw = raw if raw.startswith((b"\xef", b"\xff", b"\xfe")) else b"\xef\xbb\xbf" + raw
    assert read_reward({form: raw}) == 1.0
    words = f"reward-encoding: {form} is {encoding} with a byte order mark; Harbor refuses it"
    assert reward_remarks({form: raw}, 1.0) == (words,)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("1".encode("utf-16-le"), "contains zero bytes, like UTF-16 without a byte order mark"),
        (b"\xff\xfe1", "has the byte order mark of UTF-16, but is not UTF-16"),
        (b"1\xa0", "is not UTF-8"),
    ],
)
@pytest.mark.parametrize("form", ["reward.txt", "reward.json"])
def test_other_encodings_are_an_error(raw: bytes, words: str, form: str) -> None:
    failed = failure({form: raw})
    assert failed.type == "verifier_bad_reward"
    assert f"{form} " in str(failed) and words in str(failed)
    assert reward_remarks({form: raw}, 1.0) == ()


def test_each_file_is_parsed_by_its_name_and_the_one_that_counts_comes_first() -> None:
    assert rewards_of_files({"reward.txt": b"0", "reward.json": b'{"reward": 1}'}) == (1.0, 0.0)
    assert rewards_of_files({"reward.txt": b'{"reward": 1}', "reward.json": b"1"}) == ()
    assert rewards_of_files({"other.txt": b"1"}) == ()
