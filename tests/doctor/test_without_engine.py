"""Doctor names the programs that containers without an engine need, and how to get them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbench.doctor import CheckStatus
from tbench.doctor.without_engine import check_programs, findings
from tbench.sandbox.oci.store import PACKAGES, Store


def have_only(names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in names:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


async def test_missing_programs_are_named_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have_only({"crun", "umoci", "buildah", "slirp4netns", "newuidmap"}, tmp_path, monkeypatch)
    found = await check_programs(Store(tmp_path))
    assert found.status is CheckStatus.FAIL
    assert found.advice.endswith("apt-get install --no-install-recommends skopeo")
    names = [(each.name, each.status) for each in await findings(Store(tmp_path))]
    assert names == [
        ("programs", CheckStatus.FAIL),
        ("containers", CheckStatus.SKIPPED),
        ("limits", CheckStatus.SKIPPED),
    ]


async def test_programs_that_few_runs_need_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have_only({"runc", "umoci", "skopeo", "newuidmap"}, tmp_path, monkeypatch)
    found = await check_programs(Store(tmp_path))
    assert found.status is CheckStatus.WARN
    assert "slirp4netns" in found.seen
    have_only(set(PACKAGES), tmp_path, monkeypatch)
    assert (await check_programs(Store(tmp_path, is_rootless=True))).status is CheckStatus.OK
