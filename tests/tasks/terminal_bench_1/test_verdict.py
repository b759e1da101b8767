"""verdict.sh reads output as the parsers of Terminal-Bench 1 do; the expectations were compared with those."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tbench.tasks.terminal_bench_1 import conversion

SCRIPT = Path(conversion.__file__).with_name("verdict.sh")
HEAD = "=== short test summary info ===\n"
PASS, FAIL, NOTHING = 0, 1, 2
SHELLS = [name for name in ("bash", "dash") if shutil.which(name)]


def judged(parser: str, output: str | bytes, folder: Path, shell: str = "bash") -> int:
    (folder / "output").write_bytes(output.encode() if isinstance(output, str) else output)
    # Without a PATH: it needs nothing but the shell.
    argv = [shutil.which(shell) or shell, str(SCRIPT), parser, str(folder / "output")]
    return subprocess.run(argv, env={"PATH": "/nowhere"}, stdout=subprocess.DEVNULL, timeout=60, check=False).returncode


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        (f"noise\n{HEAD}PASSED a.py::one\nPASSED a.py::two\n2 passed in 0.1s\n", PASS),
        (f"{HEAD}PASSED a.py::one\nFAILED a.py::two - assert 1\n", FAIL),
        (f"{HEAD}PASSED a.py::one\nERROR a.py\n", FAIL),
        (f"{HEAD}PASSED a.py::one\nERROR: file not found\n", FAIL),
        (f"{HEAD}PASSED a.py::one\nXPASS a.py::two\n", FAIL),
        (f"{HEAD}SKIPPED [1] a.py:3: why\nXFAIL a.py::two\n", PASS),
        ("PASSED a.py::one\n1 passed in 0.1s\n", FAIL),
        (HEAD, FAIL),
        (f"{HEAD}1 passed in 0.1s\n", FAIL),
        ("", FAIL),
        ("== short test summary info\nPASSED a.py::one\n", FAIL),
        ("x==== SHORT Test Summary Info ====x\nPASSED one\n", PASS),
        # A later line of the same test is the one that counts, whatever file it names.
        (f"{HEAD}FAILED a.py::one - a - b\nPASSED b.py::one - a\n", PASS),
        (f"{HEAD}FAILED a.py::one\nPASSED b.py::one\nFAILED c.py::one\n", FAIL),
        (f"{HEAD}FAILED a.py::one\nPASSED b.py::on\n", FAIL),
        (f"\x1b[36m\x1b[1m{HEAD.strip()}\x1b[0m\r\n\x1b[32mPASSED\x1b[0m a.py::\x1b[1mone\x1b[0m\r\n", PASS),
        (f"\x1b[1m{HEAD.strip()}\x1b[0m\n\x1b[31mFAILED\x1b[0m a.py::one - why\n", FAIL),
        (f"{HEAD}PASSED a.py::{'x' * 9000}\n", PASS),
        (f"{'=' * 20000}\n{HEAD}PASSED a.py::one", PASS),
        (f"{HEAD}  PASSED   a.py::one  \n", PASS),
        (f"{HEAD}PASSED a.py::*\nFAILED a.py::[ab]?*\nPASSED a.py::[ab]?*\n", PASS),
    ],
)
def test_pytests_summary(tmp_path: Path, output: str, verdict: int, shell: str) -> None:
    assert judged("pytest", output, tmp_path, shell) == verdict


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("parser", "output", "verdict"),
    [
        ("swebench", "a\nSWEBench results starts here\nPASSED\nSWEBench results ends here\nb\n", PASS),
        ("swebench", "SWEBench results starts here\nFAILED\nSWEBench results ends here\n", FAIL),
        ("swebench", "SWEBench results starts here\n\nSWEBench results ends here\n", FAIL),
        ("swebench", "SWEBench results starts here PASSED SWEBench results ends here", PASS),
        ("swebench", "SWEBench results starts here\nPASSED\n", NOTHING),
        ("swebench", "PASSED\nSWEBench results ends here\n", NOTHING),
        ("swebench", "curl: not found\n", NOTHING),
        (
            "swebench",
            "SWEBench results starts here\nPASSED\nSWEBench results ends here\nFAILED\nSWEBench results ends here",
            FAIL,
        ),
        ("sweperf", "SWE-Perf results starts here\nPASSED\nSWE-Perf results ends here\n", PASS),
        ("mlebench", "MLEBench results starts here\nALL TESTS PASSED\nMLEBench results ends here\n", PASS),
        ("mlebench", "MLEBench results starts here\nPASSED\nMLEBench results ends here\n", FAIL),
    ],
)
def test_results_between_two_lines(tmp_path: Path, parser: str, output: str, verdict: int, shell: str) -> None:
    assert judged(parser, output, tmp_path, shell) == verdict


def test_any_bytes_are_read(tmp_path: Path) -> None:
    assert judged("pytest", b"\xff\x00\n" * 1000 + HEAD.encode() + b"PASSED a.py::\xc3\n", tmp_path) == PASS
