"""The tasks that a command's configuration chooses."""

from __future__ import annotations

from tbench.cli.printing import print_line
from tbench.config.document import RunDocument
from tbench.config.settings import TasksConfig
from tbench.datasets.known_dataset import Access
from tbench.datasets.read_tasks import read_selected
from tbench.datasets.reference import stored_source
from tbench.tasks.sources import TaskChoice, TaskSet


def read_selected_tasks(chosen: TasksConfig, earlier: RunDocument | None = None) -> TaskSet:
    """Read the tasks that a configuration chooses, of the dataset version of `earlier` if that run is resumed.

    Prints on stderr what is fetched. Raises UsageError.
    """
    is_same = earlier is not None and earlier.config.tasks.source == stored_source(chosen.source)
    access = Access(chosen.registry, chosen.refresh, chosen.offline, lambda text: print_line(text, err=True))
    choice = TaskChoice(chosen.include, chosen.exclude, chosen.limit)
    return read_selected(chosen.source, choice, access, earlier.dataset if earlier and is_same else None)
