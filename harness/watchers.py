"""What others than the model have to say about an agent: rules, and whoever watches it. All of it is noted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from harness.approval import Approval, Approver
from harness.clock import Clock
from harness.errors import FormatError
from harness.oversight import Approved, Declined, Draft, HandedBack, Oversight, Query
from harness.protocols.base import Parsed
from harness.trajectory import Intervention, Reply

Sample = Callable[[int | None, float | None], Awaitable[Reply]]
Read = Callable[[Reply], Parsed | FormatError]


class Watchers:
    """Those who may hold an agent, speak to it, and decide about its replies; the time they take is not charged."""

    def __init__(self, oversight: Oversight | None, approval: Approval | None) -> None:
        self.interventions: list[Intervention] = []
        """What they did, in order."""
        self._oversight = oversight
        self._approver = None if approval is None else Approver(approval)

    async def before_query(self, step: int, clock: Clock) -> Sequence[str | HandedBack]:
        """Return when the model may be asked; what is returned is told to it."""
        if self._oversight is None:
            return ()
        with clock.stopped():
            return await self._oversight.before_query(step)

    async def reply(self, query: Query) -> Reply:
        """The reply to a query. Raises what the model does."""
        return await (query.ask() if self._oversight is None else self._oversight.reply(query))

    async def review(
        self, step: int, reply: Reply, parsed: Parsed | FormatError, sample: Sample, read: Read, clock: Clock
    ) -> Reply | Declined:
        """The reply that is followed, or the refusal of it."""
        refused = self._refused(parsed)
        decided: Reply | Declined | Approved = reply
        if self._oversight is not None:
            with clock.stopped():
                decided = await self._oversight.review(Draft(step, reply, parsed, sample, read, bool(refused)))
        if isinstance(decided, Approved):
            self._note(step, "approved", decided.by)
            decided = decided.reply
        elif decided is reply:
            decided = self._by_rule(step, reply, parsed, refused)
        if isinstance(decided, Declined):
            self._note(step, "refused", decided.why)
            return decided
        if decided is not reply:
            self._note(step, "changed", reply.content)
        if self._approver is not None and not isinstance(followed := read(decided), FormatError):
            self._approver.done(followed)
        return decided

    def _refused(self, parsed: Parsed | FormatError) -> tuple[str, ...]:
        if self._approver is None or isinstance(parsed, FormatError):
            return ()
        return self._approver.refused(parsed)

    def _by_rule(
        self, step: int, reply: Reply, parsed: Parsed | FormatError, refused: tuple[str, ...]
    ) -> Reply | Declined:
        """What the rules say of a reply about which nobody has said anything."""
        if self._approver is None or isinstance(parsed, FormatError):
            return reply
        if refused:
            return Declined(self._approver.approval.words_for_model(refused))
        if rules := self._approver.rules_for(parsed):
            self._note(step, "approved", f"by rule: {' and '.join(rules)}")
        return reply

    def told(self, step: int, said: str | HandedBack, text: str) -> None:
        """Note that the model was told something, as which `text`."""
        self._note(step, "typed" if isinstance(said, HandedBack) else "message", text)

    def _note(self, step: int, kind: str, text: str) -> None:
        self.interventions.append(Intervention.model_validate({"step": step, "kind": kind, "text": text}))
