"""The attempts at one trial: how many there may be, and on which machine the next one is."""

from __future__ import annotations

from tbench.config.retrying import ALL_THAT_MAY_HEAL, RetryChoice
from tbench.results import ErrorInfo
from tbench.runs.scheduling.admission import Likes, NodeBudget
from tbench.sandbox.node import Node, is_of_machine

MOST_LOSSES = 3
"""How many machines may be lost under one trial before that counts as an attempt at it."""
_OTHER_MACHINE, _ITS_IMAGE = 2.0, 0.2
"""What another machine than the one before, and one that has the image, are worth beside a share that is left."""


class Tries:
    """The attempts at one trial."""

    def __init__(self, most: int, choice: RetryChoice = ALL_THAT_MAY_HEAL) -> None:
        """`choice` says of which errors others follow at all."""
        self._choice = choice
        self.most = most
        """How many there may be."""
        self.node: Node | None = None
        """The machine of the newest one."""
        self.avoided: Node | None = None
        """The machine of the newest one, where it is the machine that has failed."""
        self._made = 0
        self._lost: set[int] = set()
        """Numbers of those under which their machine was lost."""

    def begins_on(self, node: Node) -> None:
        """Take it that an attempt begins on this machine."""
        self.node, self.avoided = node, None
        self._made += 1

    def likes(self, task: str) -> Likes:
        """What else decides on which machine the next attempt is: that it is another one, and has the image."""
        before = self.node

        def likes(budget: NodeBudget) -> float:
            assert budget.node is not None
            has_image = task in budget.node.backend.image_ids
            return _OTHER_MACHINE * (budget.node is not before) + _ITS_IMAGE * has_image

        return likes

    def is_last(self, error: ErrorInfo) -> bool:
        """Whether no other attempt follows the newest one, which ends with this error.

        A machine that was lost is not the trial's doing.
        """
        assert self.node is not None
        # One of several that does not answer is soon known to be lost, or is there again.
        if not self.node.is_up or (self.node.name and error.type == "engine_unreachable"):
            self._lost.add(self._made)
        return not self._choice.wants(error) or self._made >= self.most + min(len(self._lost), MOST_LOSSES)

    def ended(self, error: ErrorInfo | None) -> None:
        """Notice how the newest attempt has ended."""
        assert self.node is not None
        self.node.attempted(error)
        if error is not None and is_of_machine(error):
            self.avoided = self.node
