"""What errors of the SDK say about an engine that does not answer; the libraries below it wrap them several times."""

from __future__ import annotations

import os

import requests
import urllib3

from tbench.text import one_line

DEFAULT = "unix:///var/run/docker.sock"
"""Where an engine is looked for if nothing says where."""
_MINE = "start Docker (or run 'tbench setup', which can as root on Debian)"


def is_cut_off(error: BaseException) -> bool:
    """Whether the connection broke or could not be made; an answer that takes too long does not count."""
    if any(isinstance(cause, urllib3.exceptions.ReadTimeoutError | TimeoutError) for cause in _causes(error)):
        return False
    return isinstance(error, requests.ConnectionError | urllib3.exceptions.ProtocolError | ConnectionError)


def was_refused(error: BaseException) -> bool:
    """Whether the engine cannot have received the call."""
    refusals = ConnectionRefusedError | FileNotFoundError | urllib3.exceptions.NewConnectionError
    return any(isinstance(cause, refusals) for cause in _causes(error))


def why_unavailable(error: BaseException, host: str | None, waited_sec: float, of_way: str = "") -> str:
    """Why an engine at `host`, or else where DOCKER_HOST says, cannot be connected to, and what to do about it.

    `of_way` is what went wrong on the way to it, where something leads there.
    """
    where = host or os.environ.get("DOCKER_HOST") or DEFAULT
    causes = _causes(error)
    nobody = f"no container engine answers at {where}"
    closer = f"'tbench doctor{'' if host is None else f' --engine {host}'}' looks closer"
    if of_way:
        return f"{nobody}: {one_line(of_way, 200)}; {closer}"
    if any(isinstance(cause, PermissionError) for cause in causes):
        return (
            f"no permission on {where}: join its group ('sudo usermod -aG docker $USER', log in again) or run as root"
        )
    if any(isinstance(cause, FileNotFoundError | ConnectionRefusedError) for cause in causes):
        return f"{nobody}: {_MINE if where.startswith('unix://') else 'start one there, or name another address'}"
    if any(isinstance(cause, requests.Timeout | TimeoutError) for cause in causes):
        return f"{nobody} within {waited_sec:.0f} s; {closer}"
    return f"{nobody}: {one_line(_words(error, causes), 200)}; {closer}"


def _words(error: BaseException, causes: list[BaseException]) -> str:
    """What another service answers, or the innermost reason, such as that of a name that nobody knows."""
    of_requests = [cause for cause in causes if isinstance(cause, requests.RequestException)]
    for each in of_requests:
        if each.response is not None:
            return f"it answers {each.response.status_code} {each.response.reason}"
    of_system = [cause for cause in causes if isinstance(cause, OSError) and cause not in of_requests]
    return (of_system[-1].strerror or str(of_system[-1])) if of_system else str(error)


def _causes(error: BaseException) -> list[BaseException]:
    found = [error]
    for cause in found:  # grows as it is read
        reasons = [*cause.args, cause.__cause__, cause.__context__, getattr(cause, "reason", None)]
        found += [reason for reason in reasons if isinstance(reason, BaseException) and reason not in found]
    return found
