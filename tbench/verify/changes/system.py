"""Decides which changes to the system replace parts of the image, and which are allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePosixPath
from posixpath import basename, dirname

from tbench.verify.changes.facts import LIBRARY, ContainerFacts, Sign, names, source_name

_SYSTEM = re.compile(r"/(?:usr|bin|sbin|lib\w*|etc|var/(?:lib|cache|run|log|spool|mail))(?:/.*)?")
_CODE = re.compile(r"/(?:usr|bin|sbin|lib\w*)(?:/.*)?")
_IRRELEVANT = re.compile(
    r"/usr/share/(?:doc|man|info|locale|icons|mime|fonts|applications|lintian|bug)/.*|.*\.cache|.*/__pycache__(?:/.*)?"
)
_INSTALLER_FILES = re.compile(
    r"/var/(?:cache|run)/.*|/var/lib/(?:dpkg|apt|apk|rpm|pam|systemd|python|ucf)(?:/.*)?"
    r"|/etc/(?:ld\.so\.cache|alternatives|ssl|ca-certificates|\.pwd\.lock|mtab|hostname|hosts|resolv\.conf)(?:[/.].*)?"
    r"|/etc/(?:passwd|group|g?shadow|sub[ug]id)-?"
)
"""Files that installers and the engine write; they are neither copied nor suspicious."""
_SYSTEM_SETTINGS = re.compile(
    r"/etc/(?:ld\.so\.|ld-musl|profile|bash|zsh|environment|pam\.|security|nsswitch|sudo|su\b|login\.|apt/|dpkg/|apk/|yum|dnf"
    r"|pip|uv/|npmrc|wgetrc|gitconfig|python|perl|ruby|gem|ssh/ssh_config|inputrc|xdg/|php|java|openssl|sitecustomize).*"
)
"""Settings of loader, shells, accounts, interpreters and installers. Settings of other programs are work."""
_ACCOUNTS = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow")
_ADDABLE = re.compile(r"/usr/(?:local/)?(?:share|src|games|etc)/.+")
_MODULE = re.compile(
    r"(?P<place>.*/lib(?:64|32)?/python3(?:\.\d+)?(?:/(?:site|dist)-packages)?)/(?P<top>[^/]+)(?:/.*)?"
)
STARTUP = re.compile(r"(?:sitecustomize|usercustomize|apport_python_hook)(?:\.|$)")
"""Modules that Python imports at start; the last one is imported by Debian's sitecustomize."""
NOT_ON_LINUX = names("org java msvcrt nt winreg _winapi _winreg _wmi _scproxy _overlapped vms_lib win32evtlog")
"""Modules of other operating systems. The standard library tries to import them; Python on Linux never has them."""
PYTEST = names("pytest _pytest pluggy iniconfig packaging exceptiongroup tomli py pygments attr attrs")
"""Modules of pytest and of its dependencies."""
_DOWNLOADS = re.compile(
    r"(?:^|[\s.])(?:astral\.sh|pypi\.org|pythonhosted\.org|github\w*\.\w+|debian\.org|ubuntu\.com|npmjs\.\w+|crates\.io"
    r"|localhost)\b"
)
_LOCAL_NAMES = re.compile(r"[\w-]+|[\w.-]+\.(?:internal|local|localhost|test|example|invalid|lan)")
"""Host names that no public server has: the instruction may ask for one that resolves to this machine."""
_LOOPBACK = re.compile(r"^(?:127\.0\.0\.1\s+localhost|::1\s+localhost|(?:fe|ff)00::\d?\s+ip6-\w+|ff02::\d\s+ip6-\w+)\b")
_LOOPBACK_NAME = re.compile(r"localhost[46]?(?:\.localdomain[46]?)?|ip6-\w+")


def is_system(seen: ContainerFacts, path: str) -> bool:
    """Whether a path belongs to the system, or to an interpreter of the image outside of it."""
    return _SYSTEM.fullmatch(path) is not None or path.startswith(seen.interpreters)


def is_code(seen: ContainerFacts, path: str) -> bool:
    """Whether a path belongs to programs, libraries or modules of the system, or to settings that control them."""
    if _IRRELEVANT.fullmatch(path) or _INSTALLER_FILES.fullmatch(path):
        return False
    return path.startswith(seen.interpreters) or any(each.fullmatch(path) for each in (_CODE, _SYSTEM_SETTINGS))


def replaced_paths(seen: ContainerFacts) -> dict[str, str]:
    """Return changed system paths, and new ones that programs or tests look for, with the start of their checksums.

    Ordered by path. Tests that run beside such files may behave differently than in the image.
    """
    found: dict[str, str] = {}
    for path in sorted(seen.changes):
        if not may_replace(seen, path) or path in seen.changed_by_tests:
            continue
        is_new = path not in seen.image.paths
        # A new directory stands for everything in it.
        if is_new and any(above in found for above in map(str, PurePosixPath(path).parents)):
            continue
        if is_new or seen.differs(path):
            found[path] = sum_of(seen, path)
    return found


def sum_of(seen: ContainerFacts, path: str) -> str:
    """Return the start of a file's checksum; empty if the path is no file."""
    return seen.now[path].sha256[:12] if path in seen.now else ""


def is_oracle_file(seen: ContainerFacts, path: str) -> bool:
    """Whether a new file was added by the oracle, or equals one in the oracle's passes."""
    is_same = seen.oracle.is_own or (path, sum_of(seen, path)) in seen.oracle.files
    return is_same and path not in seen.image.paths


def matches_oracle(seen: ContainerFacts, path: str) -> bool:
    """Whether the oracle's passes added the same file, or a program, library or module of the same name.

    Files that are run because of their directory, such as .pth files, are not compared by name.
    """
    if is_oracle_file(seen, path) or path in seen.image.paths:
        return path not in seen.image.paths
    name = _name(path, seen.image.search_path)
    return name != "" and name in _names(seen.oracle.files, seen.image.search_path)


@lru_cache(maxsize=8)
def _names(files: frozenset[tuple[str, str]], search_path: tuple[str, ...]) -> frozenset[str]:
    return frozenset(_name(path, search_path) for path, _ in files)


def _name(path: str, search_path: tuple[str, ...]) -> str:
    """Return kind and name of the program, library or module at a system path; empty for other files."""
    name = basename(path)
    if module := _MODULE.fullmatch(path):
        return "" if _is_run_by_location(name) else f"module {_module_name(module)}"
    if LIBRARY.search(name):
        return f"library {name.partition('.so')[0]}"
    return f"program {name}" if _is_among_programs(path, search_path) else ""


def _module_name(module: re.Match[str]) -> str:
    """Return a module's name, also from its metadata directory: `served-1.2.dist-info`."""
    return module["top"].partition(".")[0].partition("-")[0]


def _is_run_by_location(name: str) -> bool:
    """Whether Python runs or reads a file of this name among its modules without an import."""
    return STARTUP.match(name) is not None or name.endswith((".pth", "entry_points.txt"))


def _is_among_programs(path: str, search_path: tuple[str, ...]) -> bool:
    return dirname(path) in search_path or basename(dirname(path)) in ("bin", "sbin")


def may_replace(seen: ContainerFacts, path: str) -> bool:
    """Whether a changed system path can replace or hide a part of the image, regardless of its content."""
    is_in_the_way = path in seen.image.paths or may_shadow(seen, path)
    return is_code(seen, path) and is_in_the_way and not seen.tests.asks_for(path)


def may_shadow(seen: ContainerFacts, path: str) -> bool:
    """Whether programs or the tests may find a new path in place of another one."""
    name, tests, image = basename(path), seen.tests, seen.image
    if _SYSTEM_SETTINGS.fullmatch(path):
        return True
    if module := _MODULE.fullmatch(path):
        known = image.modules | tests.imports | tests.provided | PYTEST | NOT_ON_LINUX
        return _module_name(module) in known or _is_run_by_location(name)
    if _is_among_programs(path, image.search_path):
        # Python looks for modules first in the directory of the running program.
        module_name = name.partition(".")[0] if seen.is_module(path) else ""
        is_looked_for = name in tests.words and not tests.asks_to_make(name)
        return name in image.tools or is_looked_for or module_name in image.modules | PYTEST | NOT_ON_LINUX
    if LIBRARY.search(name):
        return name in image.libraries
    source = source_name(path)
    return bool(source) and (source in image.sources or name.partition(".")[0] in tests.words)


def may_be_copied(seen: ContainerFacts, path: str, change: str) -> bool:
    """Whether a change to the system is copied to a fresh container: an application's settings and data, and new
    programs, libraries and modules that hide nothing. The image's own files are never replaced."""
    if path in _ACCOUNTS:
        return _only_grows(seen, path)
    if matches_oracle(seen, path) and not _INSTALLER_FILES.fullmatch(path):
        return True
    if _INSTALLER_FILES.fullmatch(path) or _SYSTEM_SETTINGS.fullmatch(path):
        return False
    if path.startswith(("/etc/", "/var/")):
        return True
    if change != "added" or may_shadow(seen, path):
        return False
    module = _MODULE.fullmatch(path)
    if module is not None:
        return f"{module['place']}/{module['top']}" not in seen.image.paths
    place = dirname(path)
    is_found = place in seen.image.search_path or LIBRARY.search(path) is not None or source_name(path) != ""
    return is_found or _ADDABLE.fullmatch(path) is not None or place not in seen.image.paths


def _only_grows(seen: ContainerFacts, path: str) -> bool:
    """Whether all accounts of the image are unchanged except for group members, and no new account is root."""
    text = seen.content(path)
    keeps = 3 if path.endswith("group") else None
    then = [line.split(":")[:keeps] for line in seen.content_then(path).splitlines()]
    now = [line.split(":")[:keeps] for line in (text or "").splitlines()]
    if path.endswith("shadow"):
        return text is not None and _only_grows(seen, path.replace("shadow", "passwd").replace("/gpasswd", "/group"))
    added = [entry for entry in now if entry not in then]
    is_root = any(len(entry) > 2 and entry[2].lstrip("0") == "" for entry in added)
    return all(entry in now for entry in then) and not is_root and len({entry[0] for entry in now}) == len(now)


def host_signs(seen: ContainerFacts) -> Iterator[Sign]:
    """Yield signs about host names and name servers: /etc/hosts and /etc/resolv.conf are mounts, not in the image."""
    for line in (seen.content("/etc/hosts") or "").splitlines():
        address, *found = line.partition("#")[0].split() or [""]
        wanted = {name for name in found if _DOWNLOADS.search(name) or seen.tests.asks_server(name)}
        if address.startswith("127.") or address == "::1":
            wanted -= {name for name in found if name in seen.tests.asked_for and _LOCAL_NAMES.fullmatch(name)}
        wanted -= {name for name in found if (address, name) in seen.given.hosts}
        if _LOOPBACK.match(line):
            wanted -= {name for name in found if _LOOPBACK_NAME.fullmatch(name)}
        if wanted and address:
            yield Sign("hosts", "/etc/hosts", f"names {', '.join(sorted(wanted))[:100]}")
    then = set(seen.content_then("/etc/resolv.conf").split())
    text = seen.content("/etc/resolv.conf")
    servers = re.findall(r"^\s*nameserver\s+(\S+)", text or "", re.MULTILINE)
    if then and any(server not in then | seen.given.servers for server in servers):
        yield Sign("hosts", "/etc/resolv.conf", "lists a different name server")
