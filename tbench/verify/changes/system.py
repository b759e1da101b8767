"""The system under the tests: what of it is not the image's, and what of it an agent may add."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePosixPath
from posixpath import basename, dirname

from tbench.verify.changes.facts import LIBRARY, Seen, Sign, names, source_name

_SYSTEM = re.compile(r"/(?:usr|bin|sbin|lib\w*|etc|var/(?:lib|cache|run|log|spool|mail))(?:/.*)?")
_CODE = re.compile(r"/(?:usr|bin|sbin|lib\w*)(?:/.*)?")
_DULL = re.compile(
    r"/usr/share/(?:doc|man|info|locale|icons|mime|fonts|applications|lintian|bug)/.*|.*\.cache|.*/__pycache__(?:/.*)?"
)
_OF_PACKAGES = re.compile(
    r"/var/(?:cache|run)/.*|/var/lib/(?:dpkg|apt|apk|rpm|pam|systemd|python|ucf)(?:/.*)?"
    r"|/etc/(?:ld\.so\.cache|alternatives|ssl|ca-certificates|\.pwd\.lock|mtab|hostname|hosts|resolv\.conf)(?:[/.].*)?"
    r"|/etc/(?:passwd|group|g?shadow|sub[ug]id)-?"
)
"""What installers and the engine write, or comes with what they write: it stays behind, and says nothing."""
_DECIDES = re.compile(
    r"/etc/(?:ld\.so\.|ld-musl|profile|bash|zsh|environment|pam\.|security|nsswitch|sudo|su\b|login\.|apt/|dpkg/|apk/|yum|dnf"
    r"|pip|uv/|npmrc|wgetrc|gitconfig|python|perl|ruby|gem|ssh/ssh_config|inputrc|xdg/|php|java|openssl|sitecustomize).*"
)
"""Settings of loader, shells, accounts, interpreters and installers. Any other program's are work."""
_ACCOUNTS = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow")
_GROWS = re.compile(r"/usr/(?:local/)?(?:share|src|games|etc)/.+")
_MODULE = re.compile(
    r"(?P<place>.*/lib(?:64|32)?/python3(?:\.\d+)?(?:/(?:site|dist)-packages)?)/(?P<top>[^/]+)(?:/.*)?"
)
STARTUP = re.compile(r"(?:sitecustomize|usercustomize|apport_python_hook)(?:\.|$)")
"""Modules that python imports when it starts; the last by Debian's sitecustomize."""
TRIED = names("org java msvcrt nt winreg _winapi _winreg _wmi _scproxy _overlapped vms_lib win32evtlog")
"""Modules of other systems, which the standard library asks for and goes on without: no python of Linux has them."""
PYTEST = names("pytest _pytest pluggy iniconfig packaging exceptiongroup tomli py pygments attr attrs")
"""Modules of pytest, and those that it brings along."""
_DOWNLOADS = re.compile(
    r"(?:^|[\s.])(?:astral\.sh|pypi\.org|pythonhosted\.org|github\w*\.\w+|debian\.org|ubuntu\.com|npmjs\.\w+|crates\.io"
    r"|localhost)\b"
)
_NOBODYS = re.compile(r"[\w-]+|[\w.-]+\.(?:internal|local|localhost|test|example|invalid|lan)")
"""Names that belong to no server anywhere: where the instruction names one, it is to lead to this machine."""
_LOOPBACK = re.compile(r"^(?:127\.0\.0\.1\s+localhost|::1\s+localhost|(?:fe|ff)00::\d?\s+ip6-\w+|ff02::\d\s+ip6-\w+)\b")
_LOOPBACK_NAME = re.compile(r"localhost[46]?(?:\.localdomain[46]?)?|ip6-\w+")


def is_system(seen: Seen, path: str) -> bool:
    """Whether a path lies where the system does, or where the image has an interpreter of its own."""
    return _SYSTEM.fullmatch(path) is not None or path.startswith(seen.interpreters)


def is_code(seen: Seen, path: str) -> bool:
    """Whether programs, libraries and modules of the system lie at a path, or settings that decide what they do."""
    if _DULL.fullmatch(path) or _OF_PACKAGES.fullmatch(path):
        return False
    return path.startswith(seen.interpreters) or any(each.fullmatch(path) for each in (_CODE, _DECIDES))


def replaced(seen: Seen) -> dict[str, str]:
    """Paths of the image's system that are others now, and new ones that programs or the tests look for, in order, with
    the begin of their sums.

    Where the tests run beside them, they may not be the tests that the image's own would be.
    """
    found: dict[str, str] = {}
    for path in sorted(seen.changes):
        if not may_replace(seen, path) or path in seen.changed_by_tests:
            continue
        is_new = path not in seen.image.paths
        # What lies in a new directory is named by that.
        if is_new and any(above in found for above in map(str, PurePosixPath(path).parents)):
            continue
        if is_new or seen.differs(path):
            found[path] = sum_of(seen, path)
    return found


def sum_of(seen: Seen, path: str) -> str:
    """The begin of the sum of what lies at a path; empty for all but files."""
    return seen.now[path].sha256[:12] if path in seen.now else ""


def is_oracles(seen: Seen, path: str) -> bool:
    """Whether a new file is the oracle's own, or one that its passes have, too."""
    is_same = seen.oracle.is_own or (path, sum_of(seen, path)) in seen.oracle.files
    return is_same and path not in seen.image.paths


def is_as_oracle(seen: Seen, path: str) -> bool:
    """Whether the oracle's passes have the same new file, or a new program, library or module of the same name.

    Files that are run or read by their place, such as .pth files, have no name that says what they are.
    """
    if is_oracles(seen, path) or path in seen.image.paths:
        return path not in seen.image.paths
    name = _name(path, seen.image.search_path)
    return name != "" and name in _names(seen.oracle.files, seen.image.search_path)


@lru_cache(maxsize=8)
def _names(files: frozenset[tuple[str, str]], search_path: tuple[str, ...]) -> frozenset[str]:
    return frozenset(_name(path, search_path) for path, _ in files)


def _name(path: str, search_path: tuple[str, ...]) -> str:
    """What programs look for at a path of the system: the name of a program, a library or a module."""
    name = basename(path)
    if module := _MODULE.fullmatch(path):
        return "" if _is_found_by_place(name) else f"module {_module_name(module)}"
    if LIBRARY.search(name):
        return f"library {name.partition('.so')[0]}"
    return f"program {name}" if _is_among_programs(path, search_path) else ""


def _module_name(module: re.Match[str]) -> str:
    """The name of a module, also in the name of its metadata: `served-1.2.dist-info`."""
    return module["top"].partition(".")[0].partition("-")[0]


def _is_found_by_place(name: str) -> bool:
    """Whether python runs or reads a file of this name among modules, though nothing imports it."""
    return STARTUP.match(name) is not None or name.endswith((".pth", "entry_points.txt"))


def _is_among_programs(path: str, search_path: tuple[str, ...]) -> bool:
    return dirname(path) in search_path or basename(dirname(path)) in ("bin", "sbin")


def may_replace(seen: Seen, path: str) -> bool:
    """Whether a change at a path of the system can be in the way of the image's own, whatever its content is."""
    is_in_the_way = path in seen.image.paths or hides(seen, path)
    return is_code(seen, path) and is_in_the_way and not seen.tests.asks_for(path)


def hides(seen: Seen, path: str) -> bool:
    """Whether a new path has a name that programs, or the tests, look for where it lies."""
    name, tests, image = basename(path), seen.tests, seen.image
    if _DECIDES.fullmatch(path):
        return True
    if module := _MODULE.fullmatch(path):
        known = image.modules | tests.imports | tests.provided | PYTEST | TRIED
        return _module_name(module) in known or _is_found_by_place(name)
    if _is_among_programs(path, image.search_path):
        # A program's own directory is where python looks for modules first.
        module_name = name.partition(".")[0] if seen.is_module(path) else ""
        is_looked_for = name in tests.words and not tests.wants_made(name)
        return name in image.tools or is_looked_for or module_name in image.modules | PYTEST | TRIED
    if LIBRARY.search(name):
        return name in image.libraries
    source = source_name(path)
    return bool(source) and (source in image.sources or name.partition(".")[0] in tests.words)


def may_come(seen: Seen, path: str, change: str) -> bool:
    """Whether something of the system is brought to a fresh container: an application's settings and data, and new
    programs, libraries and modules that hide nothing. What the image has stays as it is."""
    if path in _ACCOUNTS:
        return _only_grows(seen, path)
    if is_as_oracle(seen, path) and not _OF_PACKAGES.fullmatch(path):
        return True
    if _OF_PACKAGES.fullmatch(path) or _DECIDES.fullmatch(path):
        return False
    if path.startswith(("/etc/", "/var/")):
        return True
    if change != "added" or hides(seen, path):
        return False
    module = _MODULE.fullmatch(path)
    if module is not None:
        return f"{module['place']}/{module['top']}" not in seen.image.paths
    place = dirname(path)
    is_found = place in seen.image.search_path or LIBRARY.search(path) is not None or source_name(path) != ""
    return is_found or _GROWS.fullmatch(path) is not None or place not in seen.image.paths


def _only_grows(seen: Seen, path: str) -> bool:
    """Whether the image's accounts are as they were, but for members of groups, and nobody else is root."""
    text = seen.content(path)
    keeps = 3 if path.endswith("group") else None
    then = [line.split(":")[:keeps] for line in seen.content_then(path).splitlines()]
    now = [line.split(":")[:keeps] for line in (text or "").splitlines()]
    if path.endswith("shadow"):
        return text is not None and _only_grows(seen, path.replace("shadow", "passwd").replace("/gpasswd", "/group"))
    added = [entry for entry in now if entry not in then]
    is_root = any(len(entry) > 2 and entry[2].lstrip("0") == "" for entry in added)
    return all(entry in now for entry in then) and not is_root and len({entry[0] for entry in now}) == len(now)


def host_signs(seen: Seen) -> Iterator[Sign]:
    """Names of servers: /etc/hosts and /etc/resolv.conf are mounts, so that no image has them."""
    for line in (seen.content("/etc/hosts") or "").splitlines():
        address, *found = line.partition("#")[0].split() or [""]
        wanted = {name for name in found if _DOWNLOADS.search(name) or seen.tests.asks_server(name)}
        if address.startswith("127.") or address == "::1":
            wanted -= {name for name in found if name in seen.tests.asked_for and _NOBODYS.fullmatch(name)}
        wanted -= {name for name in found if (address, name) in seen.given.hosts}
        if _LOOPBACK.match(line):
            wanted -= {name for name in found if _LOOPBACK_NAME.fullmatch(name)}
        if wanted and address:
            yield Sign("hosts", "/etc/hosts", f"names {', '.join(sorted(wanted))[:100]}")
    then = set(seen.content_then("/etc/resolv.conf").split())
    text = seen.content("/etc/resolv.conf")
    servers = re.findall(r"^\s*nameserver\s+(\S+)", text or "", re.MULTILINE)
    if then and any(server not in then | seen.given.servers for server in servers):
        yield Sign("hosts", "/etc/resolv.conf", "names another name server")
