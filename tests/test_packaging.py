"""The package as others get it: its metadata, and the oldest versions of its dependencies."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def metadata(folder: Path, remote: str | None) -> Message:
    """Metadata of a wheel built from an sdist of a checkout with this remote."""
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md", "Makefile"):
        shutil.copy(ROOT / name, checkout)
    for name in ("tbench", "harness", "reports", "tasks", "images"):
        (checkout / name).mkdir()
        (checkout / name / "__init__.py").touch()
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    if remote is not None:
        subprocess.run(["git", "-C", str(checkout), "remote", "add", "origin", remote], check=True)
    hatchling = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run([*hatchling, "--target", "sdist"], cwd=checkout, check=True, capture_output=True)
    subprocess.run(["tar", "-xzf", str(next(folder.glob("*.tar.gz"))), "-C", str(folder)], check=True)
    subprocess.run(
        [*hatchling, "--target", "wheel"], cwd=next(folder.glob("tbench-*/")), check=True, capture_output=True
    )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        return message_from_bytes(wheel.read(name))


def readme_of(said: Message) -> str:
    payload = said.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload.decode()


def test_the_metadata_names_the_repository_and_no_token_and_links_of_the_readme_lead_there(tmp_path: Path) -> None:
    said = metadata(tmp_path, "https://me:secret@git.example.com/someone/tbench.git")
    urls = dict(each.split(", ") for each in said.get_all("Project-URL", []))
    assert urls["Repository"] == "https://git.example.com/someone/tbench"
    assert urls["Issues"] == "https://git.example.com/someone/tbench/issues"
    readme = readme_of(said)
    assert "secret" not in said.as_string()
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert "https://git.example.com/someone/tbench/blob/HEAD/docs/terminal.md" in links
    assert all(link.startswith(("https:", "#")) for link in links)


def test_a_checkout_without_a_remote_is_built_without_urls(tmp_path: Path) -> None:
    said = metadata(tmp_path, None)
    assert said.get_all("Project-URL") is None
    assert readme_of(said) == (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("https://github.com/someone/tbench.git", "https://github.com/someone/tbench"),
        ("http://me@git.example.com:8443/a/b/tbench/", "https://git.example.com/a/b/tbench"),
        ("git@github.com:someone/tbench.git", "https://github.com/someone/tbench"),
        ("ssh://git@git.example.com:2222/someone/tbench.git", "https://git.example.com/someone/tbench"),
        ("", None),
        ("/srv/git.example.com/tbench", None),
        ("../tbench.git", None),
        ("file:///srv/tbench.git", None),
        ("work:someone/tbench", None),
        ("git@intern:someone/tbench", None),
        ("https://localhost/tbench", None),
    ],
)
def test_a_remote_is_a_page_where_the_web_knows_it(remote: str, page: str | None) -> None:
    repository: Callable[[str], str | None] = runpy.run_path(str(ROOT / "hatch_build.py"))["repository"]
    assert repository(remote) == page


def test_the_remote_is_that_of_the_checkout_itself(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "remote", "add", "origin", "https://example.com/outer"], check=True)
    (tmp_path / "inner").mkdir()
    origin: Callable[[Path], str] = runpy.run_path(str(ROOT / "hatch_build.py"))["origin"]
    assert origin(tmp_path) == "https://example.com/outer"
    assert origin(tmp_path / "inner") == ""


@pytest.mark.slow
@pytest.mark.engine
def test_the_demo_of_an_installed_wheel_shows_no_signs_of_tampering(tmp_path: Path, tools_volume: str) -> None:
    """pip compiles the bundled tasks, too: what that leaves beside tests and solutions is no part of them."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--compile"]
    subprocess.run([*install, str(next(tmp_path.glob("*.whl")))], check=True)
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    assert list(site.glob("tbench/bundled/tasks/*/tests/__pycache__")), "nothing was compiled, so nothing is tried"
    # What it needs is taken from where these tests run; its own files come before.
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{Path(pytest.__file__).parents[1]}\n")
    demo = [str(python.with_name("tbench")), "demo", "-k", "1", "-o", str(tmp_path / "run")]
    done = subprocess.run(demo, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    results = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert len(results) >= 6
    assert {result["task"]: result["integrity"]["tamper"] for result in results if result["integrity"]["tamper"]} == {}


@pytest.mark.slow
def test_the_oldest_versions_that_are_allowed_work(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = [each.replace(">=", "==") for each in project["dependencies"]]
    assert all("==" in each for each in oldest)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    python = tmp_path / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    tools = [each for each in project["optional-dependencies"]["dev"] if each.startswith(("pytest", "hypothesis"))]
    subprocess.run([*pip, *oldest, *tools, "pexpect"], check=True)
    subprocess.run([*pip, "--no-deps", "-e", str(ROOT)], check=True)
    asked = ["tests/config", "tests/scores", "tests/harness", "tests/cli/test_config.py", "tests/cli/test_flags.py"]
    tests = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not engine and not slow", *asked]
    done = subprocess.run(tests, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5 matches such patterns wrongly; a single class of characters may be possessive."""
    modules = (path for name in ("tbench", "harness", "reports") for path in (ROOT / name).rglob("*.py"))
    assert [path for path in modules if re.search(r"\)[*+?]\+|\(\?>", path.read_text(encoding="utf-8"))] == []
