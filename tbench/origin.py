"""The dataset that a run's tasks are of: what run.json stores of it, and what summaries and pages say of it."""

from __future__ import annotations

from harness.trajectory import Frozen
from tbench.text import counted, names_shown


class DatasetOrigin(Frozen):
    """Where the tasks of a run come from, and whether they are what was published."""

    name: str
    version: str | None = None
    source: str
    """Who says where the tasks are: `tbench` (its own list), `git` (the user's URL), `harbor` (Harbor's cache), or the
    file or URL of a registry."""
    url: str | None = None
    """The repository, without user name and password; None where there is not exactly one."""
    commit: str | None = None
    path: str = ""
    """The folder of the repository that holds the tasks; empty for its root."""
    entry: str = ""
    """Name of the directory in the cache."""
    tasks: int
    """Number of tasks of the whole dataset, of which a run may take some."""
    digest: str | None = None
    """Digest of the whole dataset, as Harbor computes it; None where none is published."""
    verified: bool | None = None
    """Whether the run's tasks have their published digests; None where none is published."""
    compared: int = 0
    """Tasks of the run that have a published digest."""
    differing: tuple[str, ...] = ()
    """Those of them whose content has another one."""
    listed_commit: str | None = None
    """Commit that tbench's own list has under this name; None where it has none."""
    trials_per_task: int | None = None
    """Trials of each task that its leaderboard asks for; None without a leaderboard."""

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def said(self) -> str:
        """The dataset as a user names it."""
        if self.source != "git":
            return self.title
        return f"git+{self.url}@{self.commit}" + (f"#{self.path}" if self.path else "")

    @property
    def words(self) -> str:
        """One line: the dataset, its commit, and how its digests compare."""
        where = f" (commit {self.commit[:12]})" if self.commit else ""
        return f"{self.title}{where}: {self.digest_words}"

    @property
    def digest_words(self) -> str:
        """How the digests of the run's tasks compare with the published ones."""
        if not self.compared:
            return "no digests are published to compare its tasks with"
        same = self.compared - len(self.differing)
        verb = "matches" if self.compared == 1 else "match"
        said = f"{same:,} of {counted(self.compared, 'task')} {verb} the published digests"
        return said + (f"; changed: {names_shown(self.differing)}" if self.differing else "")
