"""Origin of a run's tasks: the dataset as stored in run.json and shown in summaries and pages."""

from __future__ import annotations

from harness.trajectory import Frozen
from tbench.text import counted, names_text


class DatasetOrigin(Frozen):
    """The dataset of a run's tasks, and whether they match what was published."""

    name: str
    version: str | None = None
    source: str
    """Source of the dataset: `tbench` (its own list), `git` (the user's URL), `harbor` (Harbor's cache), or
    the file or URL of a registry."""
    url: str | None = None
    """URL of the repository, without user name and password; None unless there is exactly one."""
    commit: str | None = None
    path: str = ""
    """Folder of the tasks in the repository; empty for its root."""
    entry: str = ""
    """Name of the dataset's directory in the cache."""
    tasks: int
    """Number of tasks of the whole dataset; a run may use only some of them."""
    digest: str | None = None
    """Digest of the whole dataset, computed like Harbor's; None if none is published."""
    verified: bool | None = None
    """Whether the run's tasks match their published digests; None if none is published."""
    compared: int = 0
    """Number of the run's tasks that have a published digest."""
    differing: tuple[str, ...] = ()
    """Tasks whose content does not match its published digest."""
    listed_commit: str | None = None
    """Commit of this dataset in tbench's own list; None if it is not listed."""
    trials_per_task: int | None = None
    """Trials per task that the dataset's leaderboard requires; None without a leaderboard."""

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def spec(self) -> str:
        """The dataset as given on the command line."""
        if self.source != "git":
            return self.title
        return f"git+{self.url}@{self.commit}" + (f"#{self.path}" if self.path else "")

    @property
    def words(self) -> str:
        """The dataset, its commit and the comparison of its digests, in one line."""
        where = f" (commit {self.commit[:12]})" if self.commit else ""
        return f"{self.title}{where}: {self.digest_words}"

    @property
    def digest_words(self) -> str:
        """Comparison of the tasks' digests with the published ones, in words."""
        if not self.compared:
            return "no digests of its tasks are published"
        same = self.compared - len(self.differing)
        verb = "matches" if self.compared == 1 else "match"
        text = f"{same:,} of {counted(self.compared, 'task')} {verb} the published digests"
        return text + (f"; changed: {names_text(self.differing)}" if self.differing else "")
