"""Whose a container is, and whether that process still runs: told across processes, boots, namespaces, machines."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tbench.sandbox.owner import Owner, OwnerState, owner, owner_state

PRINT_OWNER = "from tbench.sandbox.owner import owner; print(owner(), flush=True); input()"
HERE = Owner.of_this_process()
SOMEBODY = Owner(str(os.getpid()), HERE.start, "boot", "4026531836", "0123456789ab", "box")


def other_process(*prefix: str) -> tuple[subprocess.Popen[str], str]:
    """A process that has said whose its things are, and waits."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", PRINT_OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_this_process_is_alive() -> None:
    assert owner_state(owner()) == (OwnerState.ALIVE, f"its process {os.getpid()} still runs")


def test_a_killed_process_is_gone_also_while_no_one_waits_for_it() -> None:
    process, label = other_process()
    with process:
        assert owner_state(label)[0] is OwnerState.ALIVE
        process.kill()
        # WNOWAIT leaves the zombie where it is.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owner_state(label)[0] is OwnerState.GONE
    assert owner_state(label) == (OwnerState.GONE, f"its process {process.pid} is gone")


def test_a_process_that_got_the_same_pid_is_another_one() -> None:
    assert replace(HERE, start="1").seen_from(HERE)[0] is OwnerState.GONE


def test_a_process_in_another_pid_namespace_is_never_taken_for_gone() -> None:
    """Its pid means nothing here: most likely there is no such process, or quite another one."""
    if subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True).returncode:
        pytest.skip("making a pid namespace takes privileges")
    process, label = other_process("unshare", "--pid", "--fork", "--mount-proc")
    with process:
        named = Owner.parse(label)
        assert named is not None and named.namespace != HERE.namespace
        life, why = owner_state(label)
        assert life is OwnerState.UNKNOWN
        assert "another container or pid namespace" in why
        process.communicate("\n")


def test_a_process_of_another_machine_is_never_taken_for_gone() -> None:
    elsewhere = replace(SOMEBODY, machine="ba9876543210", boot="other", host="far")
    assert elsewhere.seen_from(SOMEBODY) == (
        OwnerState.UNKNOWN, f"its process {os.getpid()} belongs to another machine (far)",
    )  # fmt: skip
    twin = replace(SOMEBODY, boot="other", host="clone")
    assert twin.seen_from(SOMEBODY)[0] is OwnerState.UNKNOWN


def test_a_process_of_an_earlier_boot_of_this_machine_is_gone() -> None:
    seen = replace(SOMEBODY, boot="earlier").seen_from(SOMEBODY)
    assert seen == (OwnerState.GONE, "this machine has been rebooted since")


def test_machines_without_an_id_or_a_boot_are_not_mistaken_for_each_other() -> None:
    nameless = replace(SOMEBODY, machine="")
    assert replace(nameless, boot="other").seen_from(nameless)[0] is OwnerState.UNKNOWN
    bootless = replace(SOMEBODY, boot="unknown")
    assert replace(bootless, host="far", start="1").seen_from(bootless)[0] is OwnerState.UNKNOWN


def test_a_process_that_may_not_be_looked_at_is_not_taken_for_gone(tmp_path: Path) -> None:
    """Where /proc is mounted with hidepid, another user's processes are not in it."""
    assert HERE.seen_from(HERE, proc=tmp_path) == (
        OwnerState.UNKNOWN, f"process {os.getpid()} runs, but cannot be inspected",
    )  # fmt: skip


@pytest.mark.parametrize("label", ["", "1:2:3", "x:1:boot:ns:machine:host", "somebody else's label"])
def test_a_label_that_names_no_one_is_not_taken_for_gone(label: str) -> None:
    assert owner_state(label) == (OwnerState.UNKNOWN, "its label names no owner")
