"""Admission to the machines of a backend, as they come and go."""

from __future__ import annotations

from collections.abc import Callable

from tbench.config.settings import ScheduleConfig
from tbench.runs.scheduling.admission import Admission, NodeBudget
from tbench.sandbox.backend import Backend
from tbench.sandbox.node import HasNodes, Node, nodes_of


def admission_to(backend: Backend, schedule: ScheduleConfig, say: Callable[[str], None]) -> Admission:
    """Admission to the machines of an open backend; closed when there will be none any more."""
    admission, known = Admission((), max_load=schedule.max_load, say=say), dict[Node, NodeBudget]()

    def follow() -> None:
        for node in nodes_of(backend):
            if node in known:
                known[node].measure(schedule.cpu_overcommit)
            else:
                known[node] = NodeBudget.of(node, schedule.cpu_overcommit)
                admission.add(known[node])
        if why_no_machine(backend) is None:
            admission.look_again()
        else:
            admission.close()

    follow()
    if isinstance(backend, HasNodes):
        backend.on_change(follow)
    return admission


def why_no_machine(backend: Backend) -> str | None:
    """Why a backend will have no machine any more on which a trial could be; None where it has, or may have."""
    return backend.gave_up if isinstance(backend, HasNodes) else None
