"""Runs git without prompts and with deadlines, and explains its errors."""

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

# Explanations of git's error messages: pattern, what is wrong, and what to do

_MIRROR = "or use a mirror (docs/tasks.md)"
_LOGIN = f"configure a credential helper or a key for git, {_MIRROR}"
_KNOWN_ERRORS: tuple[tuple[str, str, str], ...] = (
    (
        r"No space left on device|Disk quota exceeded|File too large|died of signal 25",
        "the disk is full",
        "free some space and try again",
    ),
    (
        r"could not read (Username|Password)|terminal prompts disabled|Authentication failed|Invalid username"
        r"|Permission denied \(|returned error: 40[13]|Host key verification failed",
        "requires a login, or is not public",
        _LOGIN,
    ),
    (
        r"not our ref|unadvertised object|couldn't find remote ref|no such remote ref|bad object|unable to read tree",
        "does not have this commit (any more)",
        "check the commit, or use a mirror that has it",
    ),
    (
        r"[Rr]epository .*not found|does not appear to be a git repository|does not exist|returned error: 404"
        r"|No such file or directory|not a git repository|Project not found",
        "is not a git repository",
        f"check the URL, {_MIRROR}",
    ),
    (
        r"pack-objects died|unable to read [0-9a-f]{40}|missing blob|bad pack header",
        "is incomplete, such as a partial clone",
        "use a complete repository, or mirror it with git clone --mirror",
    ),
    (r"dubious ownership", "belongs to another user, so git does not trust it", "see git help config, safe.directory"),
    (
        r"[Cc]ould not resolve|Failed to connect|[Cc]onnection (refused|timed out|reset)|Couldn't connect"
        r"|unreachable|unable to access|early EOF|RPC failed|hung up|Operation timed out|unable to connect"
        r"|transfer closed|timed out|name resolution",
        "cannot be reached",
        f"check the network, {_MIRROR}",
    ),
)
_EXTERNAL_ERRORS = {what for _, what, _ in _KNOWN_ERRORS} - {
    "is not a git repository",
    "belongs to another user, so git does not trust it",
}
"""Errors that do not come from a local directory that a killed git left in a bad state."""
_MESSAGE = re.compile(r"^(?:fatal|error|ERROR|remote: error|ssh): *(.+)$", re.MULTILINE)


def explain(output: str, code: int) -> str:
    """Explain an error of git on one line: what is wrong, git's message, and what to do."""
    if code == -signal.SIGXFSZ:
        return "the disk is full; free some space and try again"
    quoted = _first_error(output) or f"git exited with {code}"
    for pattern, what, advice in _KNOWN_ERRORS:
        if re.search(pattern, output):
            return f"{what} ({quoted}); {advice}"
    return f"git failed ({quoted})"


def is_external(output: str) -> bool:
    """Whether server, network or disk are at fault, so that starting again is of no use."""
    found = next((what for pattern, what, _ in _KNOWN_ERRORS if re.search(pattern, output)), None)
    return found in _EXTERNAL_ERRORS


def refuses_filter(output: str) -> bool:
    """Whether the fetch may succeed without `--filter`, which servers reject in various ways."""
    return re.search(r"expected 'packfile'|filter|not support|expected flush|protocol error", output) is not None


def _first_error(output: str) -> str:
    """Return git's first error; the others follow from it."""
    found = _MESSAGE.search(output)
    return one_line(found[1] if found else output, 200)


LOOK_UP_SEC, TRANSFER_SEC = 120.0, 3600.0
"""Deadlines of a request to a server and of a transfer of files. A stalled transfer ends earlier."""
_SILENCE_SEC = 60
_SETTINGS = (
    *("-c", "core.autocrlf=false", "-c", "core.symlinks=true", "-c", "core.hooksPath=/dev/null"),
    *("-c", "core.attributesFile=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.filemode=true"),
    *("-c", "protocol.version=2", "-c", "advice.detachedHead=false", "-c", "gc.auto=0"),
    *("-c", "http.lowSpeedLimit=1", "-c", f"http.lowSpeedTime={_SILENCE_SEC}"),
    *("-c", "submodule.recurse=false", "-c", "init.defaultBranch=main"),
)
"""Settings that override the user's. The user's settings for connections (insteadOf, proxies, certificates, credential
helpers) stay in force."""
_REDIRECTING_VARIABLES = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
    *("GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE", "GIT_SHALLOW_FILE", "GIT_TRACE"),
}
"""Variables that redirect git to another repository; they are set if tbench runs in a git hook."""
_REMOTE = "origin"
_SPECIAL = re.compile(r"([*?\[\]\\!# ])")


class GitFailed(UsageError):
    """Git failed. The message says what is wrong and what to do; `output` is git's error output."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class Repository:
    """A local repository in the directory `path`, for fetching a commit of the repository at `url`."""

    def __init__(self, path: Path, url: str, lock: int) -> None:
        """`lock` is the descriptor of the directory's lock, which git inherits, also if this process is killed."""
        self.path = path
        self._url = url
        self._lock = lock

    def has(self, commit: str) -> bool:
        """Whether the commit was already fetched. Raises GitFailed if git cannot run."""
        if not (self.path / ".git").is_dir():
            return False
        done = _run(["cat-file", "-e", f"{commit}^{{commit}}"], self.path, LOOK_UP_SEC, lock=self._lock)
        return done.returncode == 0

    def begin(self) -> None:
        """Initialise the repository, or remove lock files of a killed process."""
        if (self.path / ".git").is_dir():
            for lock in (self.path / ".git").rglob("*.lock"):
                lock.unlink(missing_ok=True)
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._git("init", "--quiet", "--template=")

    def fetch(self, commit: str) -> None:
        """Fetch one commit without history and, if the server supports it, without files."""
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
        """List the names of directories in a folder of the commit; None if the commit has no such folder."""
        listed = self._git("ls-tree", "-z", f"{commit}:{folder}", check=False)
        if listed is None:
            return None
        rows = [line.partition("\t") for line in listed.split("\0") if line]
        return sorted(name for kind, _, name in rows if kind.split()[1] == "tree")

    def list_files(self, commit: str, folder: str, levels: int) -> set[str]:
        """List the relative paths of the files in a folder and in subfolders down to this level."""
        listed = self._git("ls-tree", "-r", "-z", "--name-only", f"{commit}:{folder}") or ""
        return {path for path in listed.split("\0") if path.count("/") <= levels}

    def check_out(self, commit: str, paths: Iterable[str]) -> None:
        """Check out these files and folders of the commit."""
        # With a leading slash, because `alpha` would also match `other/alpha`.
        patterns = "".join("/" + _SPECIAL.sub(r"\\\1", path) + "\n" for path in paths)
        self._git("sparse-checkout", "set", "--no-cone", "--stdin", text=patterns)
        self._git("checkout", "--quiet", "--force", "--detach", commit, deadline_sec=TRANSFER_SEC)

    def pull_lfs(self, folder: str) -> None:
        """Download the files of a folder that are stored in git-lfs."""
        include = f"{folder}/**" if folder else "**"
        self._git("lfs", "pull", "--include", include, "--exclude", "", deadline_sec=TRANSFER_SEC)

    def _git(
        self, *arguments: str, text: str | None = None, check: bool = True, deadline_sec: float = LOOK_UP_SEC
    ) -> str | None:
        """Run a git command and return its output; None if it fails without `check`. Raises GitFailed."""
        done = _run(arguments, self.path, deadline_sec, url=self._url, text=text, lock=self._lock)
        if done.returncode == 0:
            return done.stdout
        if not check:
            return None
        raise _git_error(self._url, done)


def find_commit(url: str, revision: str) -> str:
    """Return the current commit of a branch, a tag or HEAD of a repository. Raises GitFailed."""
    done = _run(["ls-remote", "--quiet", _REMOTE, revision, f"{revision}^{{}}"], Path("/"), LOOK_UP_SEC, url=url)
    if done.returncode != 0:
        raise _git_error(url, done)
    found = {name: commit for commit, _, name in (line.partition("\t") for line in done.stdout.splitlines())}
    for name in (f"refs/tags/{revision}^{{}}", f"refs/tags/{revision}", f"refs/heads/{revision}", f"{revision}^{{}}"):
        if name in found:
            return found[name]
    if revision in found:
        return found[revision]
    if revision == "HEAD":
        raise GitFailed(f"{without_login(url)}: has no HEAD; give a branch or a tag with @")
    part = " (a commit needs all 40 characters)" if re.fullmatch(r"[0-9a-f]{4,39}", revision) else ""
    raise GitFailed(f"{without_login(url)}: has no branch or tag {revision}{part}; check it with git ls-remote")


def has_lfs() -> bool:
    """Whether git-lfs is installed."""
    return _run(["lfs", "version"], Path("/"), LOOK_UP_SEC).returncode == 0


def _git_error(url: str, done: subprocess.CompletedProcess[str]) -> GitFailed:
    # Git quotes the URL, which may contain a password.
    output = done.stderr.replace(url, without_login(url))
    output = re.sub(r"(?<=://)[^/\s@]+@", "", output)
    return GitFailed(f"{without_login(url)}: {explain(output, done.returncode)}", output)


def _run(
    arguments: Sequence[str],
    directory: Path,
    deadline_sec: float,
    *,
    url: str | None = None,
    text: str | None = None,
    lock: int | None = None,
) -> subprocess.CompletedProcess[str]:
    command = ["git", *_SETTINGS, *arguments]
    process: subprocess.Popen[str] | None = None
    try:
        with _delay_interrupts():
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=_environment(os.environ, url),
                stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="surrogateescape",
                start_new_session=True,  # without a terminal: ssh would prompt on it
                pass_fds=() if lock is None else (lock,),
                umask=0o022,  # file modes go into containers, so they must not depend on this user
            )
        stdout, stderr = process.communicate(text, timeout=deadline_sec)
    except FileNotFoundError:
        raise GitFailed("git: is not installed, but needed to fetch datasets (apt install git)") from None
    except subprocess.TimeoutExpired:
        stdout, stderr = "", f"fatal: timed out after {deadline_sec:g} s"
    finally:
        if process is not None:
            _end(process)
    assert process is not None
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@contextlib.contextmanager
def _delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, so that a process that was just started is not left running."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children, which are connected to the server, if it is still running."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _with_setting(variables: Mapping[str, str], key: str, value: str) -> dict[str, str]:
    """Return variables that add a git setting to those that the environment may already contain."""
    number = int(variables.get("GIT_CONFIG_COUNT") or 0)
    return {"GIT_CONFIG_COUNT": str(number + 1), f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}


@cache
def _configured_ssh() -> str:
    """Return the user's core.sshCommand, which GIT_SSH_COMMAND would hide."""
    done = subprocess.run(["git", "config", "--get", "core.sshCommand"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _environment(variables: Mapping[str, str], url: str | None) -> dict[str, str]:
    """Return an environment for git with messages in English and without prompts.

    It sets the remote's URL, so that a password in it appears in no file and on no command line.
    """
    ssh = variables.get("GIT_SSH_COMMAND") or _configured_ssh() or "ssh"
    return {
        **{name: value for name, value in variables.items() if name not in _REDIRECTING_VARIABLES},
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


# Pointers of git-lfs, which must never be mistaken for a task's data

_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_LONGEST_POINTER = 1024
"""Maximum size of a pointer in bytes, from the specification of git-lfs."""


def find_lfs_pointers(directories: Sequence[Path]) -> list[Path]:
    """Return the sorted git-lfs pointers below these directories."""
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
