"""Plain git as a process: never asks for anything, has a deadline, and says what its errors mean."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from tbench.datasets.reference import without_login
from tbench.errors import UsageError
from tbench.text import one_line

# What git's last words mean to whoever wanted a dataset: what is wrong, and what to do.

_MIRROR = "or let a mirror stand for it (docs/tasks.md)"
_LOGIN = f"give git a credential helper or a key for it, {_MIRROR}"
_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (
        r"No space left on device|Disk quota exceeded|File too large|died of signal 25",
        "the disk is full",
        "make room, then do it again",
    ),
    (
        r"could not read (Username|Password)|terminal prompts disabled|Authentication failed|Invalid username"
        r"|Permission denied \(|returned error: 40[13]|Host key verification failed",
        "asks who you are, or is not there for everybody",
        _LOGIN,
    ),
    (
        r"not our ref|unadvertised object|couldn't find remote ref|no such remote ref|bad object|unable to read tree",
        "does not have this commit (any more)",
        "check the commit, or name a mirror that has it",
    ),
    (
        r"[Rr]epository .*not found|does not appear to be a git repository|does not exist|returned error: 404"
        r"|No such file or directory|not a git repository|Project not found",
        "no repository is there",
        f"check the URL, {_MIRROR}",
    ),
    (
        r"pack-objects died|unable to read [0-9a-f]{40}|missing blob|bad pack header",
        "lacks some of its own files, as a partial copy does",
        "name a whole one, or mirror it with git clone --mirror",
    ),
    (r"dubious ownership", "belongs to another user, and git does not trust it", "see git help config, safe.directory"),
    (
        r"[Cc]ould not resolve|Failed to connect|[Cc]onnection (refused|timed out|reset)|Couldn't connect"
        r"|unreachable|unable to access|early EOF|RPC failed|hung up|Operation timed out|unable to connect"
        r"|transfer closed|timed out|name resolution",
        "cannot be reached",
        f"check the network, {_MIRROR}",
    ),
)
_GIT_ERRORS_ELSEWHERE = {what for _, what, _ in _MEANINGS} - {
    "no repository is there",
    "belongs to another user, and git does not trust it",
}
"""What is not the fault of a directory in which a killed git has left something."""
_MESSAGE = re.compile(r"^(?:fatal|error|ERROR|remote: error|ssh): *(.+)$", re.MULTILINE)


def meaning_of(output: str, code: int) -> str:
    """What is wrong and what to do, on one line, with git's own words."""
    if code == -signal.SIGXFSZ:
        return "the disk is full; make room, then do it again"
    said = _own_words(output) or f"git ended with {code}"
    for pattern, what, advice in _MEANINGS:
        if re.search(pattern, output):
            return f"{what} ({said}); {advice}"
    return f"git failed ({said})"


def is_elsewhere(output: str) -> bool:
    """Whether the trouble is with the server, the network or the disk, so that beginning anew is of no use."""
    found = next((what for pattern, what, _ in _MEANINGS if re.search(pattern, output)), None)
    return found in _GIT_ERRORS_ELSEWHERE


def refuses_filter(output: str) -> bool:
    """Whether the server may do without `--filter`: it cannot leave out files, and says so in its own way."""
    return re.search(r"expected 'packfile'|filter|not support|expected flush|protocol error", output) is not None


def _own_words(output: str) -> str:
    """Git's first complaint; the later ones follow from it."""
    found = _MESSAGE.search(output)
    return one_line(found[1] if found else output, 200)


LOOK_UP_SEC, TRANSFER_SEC = 120.0, 3600.0
"""Deadlines of a question to a server, and of the transfer of files. A transfer that stands still ends earlier."""
_SILENCE_SEC = 60
_OWN_SETTINGS = (
    *("-c", "core.autocrlf=false", "-c", "core.symlinks=true", "-c", "core.hooksPath=/dev/null"),
    *("-c", "core.attributesFile=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.filemode=true"),
    *("-c", "protocol.version=2", "-c", "advice.detachedHead=false", "-c", "gc.auto=0"),
    *("-c", "http.lowSpeedLimit=1", "-c", f"http.lowSpeedTime={_SILENCE_SEC}"),
    *("-c", "submodule.recurse=false", "-c", "init.defaultBranch=main"),
)
"""Settings that hold whatever the user's are. How servers are reached (insteadOf, proxies, certificates, credential
helpers) is the user's."""
_ELSEWHERE = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
    *("GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE", "GIT_SHALLOW_FILE", "GIT_TRACE"),
}
"""Variables that lead git to another repository: they are set where tbench runs within a hook."""
_REMOTE = "origin"
_SPECIAL = re.compile(r"([*?\[\]\\!# ])")


class GitFailed(UsageError):
    """Git could not do it: the message says what is wrong and what to do. `output` is what git said."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class Repository:
    """A repository of one's own that takes one commit of the one at `url`, in the directory `path`."""

    def __init__(self, path: Path, url: str, lock: int) -> None:
        """`lock` is the descriptor of the directory's lock: git keeps it until it ends, whatever becomes of us."""
        self.path = path
        self._url = url
        self._lock = lock

    def has(self, commit: str) -> bool:
        """Whether the commit is here already. Raises GitFailed where git cannot even look."""
        if not (self.path / ".git").is_dir():
            return False
        done = _run(["cat-file", "-e", f"{commit}^{{commit}}"], self.path, LOOK_UP_SEC, lock=self._lock)
        return done.returncode == 0

    def begin(self) -> None:
        """Make it, or mend what a killed process left: its lock files."""
        if (self.path / ".git").is_dir():
            for lock in (self.path / ".git").rglob("*.lock"):
                lock.unlink(missing_ok=True)
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._git("init", "--quiet", "--template=")

    def fetch(self, commit: str) -> None:
        """Fetch one commit without its history, and without its files where the server can leave them out."""
        arguments = ["fetch", "--quiet", "--no-tags", "--depth", "1"]
        try:
            self._git(*arguments, "--filter=blob:none", _REMOTE, commit, deadline_sec=TRANSFER_SEC)
        except GitFailed as failure:
            if not refuses_filter(failure.output):
                raise
            self._git("config", "--unset-all", f"remote.{_REMOTE}.promisor", check=False)
            self._git("config", "--unset-all", f"remote.{_REMOTE}.partialclonefilter", check=False)
            self._git(*arguments, _REMOTE, commit, deadline_sec=TRANSFER_SEC)

    def folders(self, commit: str, folder: str) -> list[str] | None:
        """Names of the folders in a folder of the commit, which is no link; None where it has no such folder."""
        listed = self._git("ls-tree", "-z", f"{commit}:{folder}", check=False)
        if listed is None:
            return None
        rows = [line.partition("\t") for line in listed.split("\0") if line]
        return sorted(name for kind, _, name in rows if kind.split()[1] == "tree")

    def files_in(self, commit: str, folder: str) -> set[str]:
        """Relative paths of the files directly in a folder, and of those directly in its folders."""
        listed = self._git("ls-tree", "-r", "-z", "--name-only", f"{commit}:{folder}") or ""
        return {path for path in listed.split("\0") if path.count("/") <= 1}

    def check_out(self, commit: str, paths: Iterable[str]) -> None:
        """Bring these files and folders of the commit into the directory."""
        # Anchored: without the slash in front, `alpha` would also be `other/alpha`.
        patterns = "".join("/" + _SPECIAL.sub(r"\\\1", path) + "\n" for path in paths)
        self._git("sparse-checkout", "set", "--no-cone", "--stdin", text=patterns)
        self._git("checkout", "--quiet", "--force", "--detach", commit, deadline_sec=TRANSFER_SEC)

    def pull_lfs(self, folder: str) -> None:
        """Let git-lfs bring the files of a folder that it keeps elsewhere."""
        include = f"{folder}/**" if folder else "**"
        self._git("lfs", "pull", "--include", include, "--exclude", "", deadline_sec=TRANSFER_SEC)

    def _git(
        self, *arguments: str, text: str | None = None, check: bool = True, deadline_sec: float = LOOK_UP_SEC
    ) -> str | None:
        """What a git command prints; None where it fails and `check` is off. Raises GitFailed."""
        done = _run(arguments, self.path, deadline_sec, url=self._url, text=text, lock=self._lock)
        if done.returncode == 0:
            return done.stdout
        if not check:
            return None
        raise _failed(self._url, done)


def find_commit(url: str, revision: str) -> str:
    """The commit that a branch, a tag or HEAD of a repository is now. Raises GitFailed."""
    done = _run(["ls-remote", "--quiet", _REMOTE, revision, f"{revision}^{{}}"], Path("/"), LOOK_UP_SEC, url=url)
    if done.returncode != 0:
        raise _failed(url, done)
    found = {name: commit for commit, _, name in (line.partition("\t") for line in done.stdout.splitlines())}
    for name in (f"refs/tags/{revision}^{{}}", f"refs/tags/{revision}", f"refs/heads/{revision}", f"{revision}^{{}}"):
        if name in found:
            return found[name]
    if revision in found:
        return found[revision]
    if revision == "HEAD":
        raise GitFailed(f"{without_login(url)}: says nothing of its main branch; name a branch or a tag with @")
    part = " (of a commit, all 40 characters are needed)" if re.fullmatch(r"[0-9a-f]{4,39}", revision) else ""
    raise GitFailed(f"{without_login(url)}: has no branch or tag {revision}{part}; check it with git ls-remote")


def has_lfs() -> bool:
    """Whether git-lfs is installed."""
    return _run(["lfs", "version"], Path("/"), LOOK_UP_SEC).returncode == 0


def _failed(url: str, done: subprocess.CompletedProcess[str]) -> GitFailed:
    # Git quotes the URL, with the password that may be in it.
    output = done.stderr.replace(url, without_login(url))
    output = re.sub(r"(?<=://)[^/\s@]+@", "", output)
    return GitFailed(f"{without_login(url)}: {meaning_of(output, done.returncode)}", output)


def _run(
    arguments: Sequence[str],
    directory: Path,
    deadline_sec: float,
    *,
    url: str | None = None,
    text: str | None = None,
    lock: int | None = None,
) -> subprocess.CompletedProcess[str]:
    command = ["git", *_OWN_SETTINGS, *arguments]
    process: subprocess.Popen[str] | None = None
    try:
        with _uninterrupted():
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=_environment(os.environ, url),
                stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="surrogateescape",
                start_new_session=True,  # without the terminal, on which ssh would ask
                pass_fds=() if lock is None else (lock,),
                umask=0o022,  # modes of the files go into containers: they are not this user's business
            )
        stdout, stderr = process.communicate(text, timeout=deadline_sec)
    except FileNotFoundError:
        raise GitFailed("git: is not installed; datasets are fetched with it (apt install git)") from None
    except subprocess.TimeoutExpired:
        stdout, stderr = "", f"fatal: timed out after {deadline_sec:g} s"
    finally:
        if process is not None:
            _end(process)
    assert process is not None
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A block that Ctrl-C ends only behind it: a process of which nobody knows yet would live on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children, which talk to the server, if it is still there."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _with_setting(variables: Mapping[str, str], key: str, value: str) -> dict[str, str]:
    """The variables that add a setting of git's to those that the environment may have already."""
    number = int(variables.get("GIT_CONFIG_COUNT") or 0)
    return {"GIT_CONFIG_COUNT": str(number + 1), f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}


@cache
def _configured_ssh() -> str:
    """The user's own core.sshCommand, which the variable would hide."""
    done = subprocess.run(["git", "config", "--get", "core.sshCommand"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _environment(variables: Mapping[str, str], url: str | None) -> dict[str, str]:
    """The environment of git: its messages in English, and nobody is ever asked for anything.

    The remote's URL is a setting in it: there may be a password in it, which is in no file and on no command line so.
    """
    ssh = variables.get("GIT_SSH_COMMAND") or _configured_ssh() or "ssh"
    return {
        **{name: value for name, value in variables.items() if name not in _ELSEWHERE},
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS_REQUIRE": "never",
        "GCM_INTERACTIVE": "never",
        "GIT_SSH_COMMAND": f"{ssh} -oBatchMode=yes -oConnectTimeout=30 -oServerAliveInterval=15",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        **(_with_setting(variables, f"remote.{_REMOTE}.url", url) if url is not None else {}),
    }


# Files that git-lfs keeps elsewhere: in their place is a pointer, which must never pass for a task's data.

_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_LONGEST_POINTER = 1024
"""As the specification of git-lfs has it."""


def pointers_in(directories: Sequence[Path]) -> list[Path]:
    """The files below these directories that are pointers of git-lfs, in order."""
    return sorted(path for directory in directories for path in _small_files(directory) if _is_pointer(path))


def _small_files(directory: str | Path) -> Iterator[Path]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _small_files(entry.path)
            elif entry.is_file(follow_symlinks=False):
                size = entry.stat(follow_symlinks=False).st_size
                if len(_POINTER) < size <= _LONGEST_POINTER:
                    yield Path(entry.path)


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER
