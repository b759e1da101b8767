"""What a trainer gets of a trial: the reward, the conversation, and the tokens as the server had them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.trajectory import Message, Outcome, Reply, ReplyTokens, Trajectory
from tbench.errors import TbenchError
from tbench.results import TrialResult
from tbench.reward import canonical

_COMPLETE = (Outcome.SUBMITTED, Outcome.FINISHED)


class TokensMissing(TbenchError):
    """The endpoint did not say which tokens a reply has."""


@dataclass(frozen=True)
class RolloutTurn:
    """One reply of the model with the tokens of its prompt, its own, and their logprobs."""

    reply: Reply
    tokens: ReplyTokens | None
    """None where they were not asked for."""


@dataclass(frozen=True)
class TokenSequence:
    """Turns in a row of which each prompt goes on where the turn before ended: one example to learn from."""

    prompt_ids: list[int]
    """The first prompt."""
    response_ids: list[int]
    """All that follows: what was sampled, and what the terminal said in between."""
    loss_mask: list[int]
    """1 for sampled tokens, 0 for others; as long as `response_ids`."""
    logprobs: list[float]
    """Of sampled tokens, 0.0 for others; as long as `response_ids`, or empty where the server told none."""
    turns: int


@dataclass(frozen=True)
class Rollout:
    """A trial that ended with a verdict, as an example to learn from."""

    reward: float
    """The verifier's number; 1.0 and above is a pass."""
    outcome: Outcome | None
    """How the agent ended."""
    messages: tuple[Message, ...]
    """The conversation as it was last sent, replies included; of a task with steps, that of its last."""
    turns: tuple[RolloutTurn, ...]
    """The replies in order. Summaries that a model makes of its own history are none of them."""
    result: TrialResult
    """Times, token counts, and what the verdict rests on."""

    @classmethod
    def of(cls, result: TrialResult, trajectories: Sequence[Trajectory]) -> Rollout:
        """The rollout of a trial that has a reward, out of what its agents did."""
        assert result.reward is not None
        replies = [step.reply for trajectory in trajectories for step in trajectory.steps]
        return cls(
            reward=canonical(result.reward),
            outcome=result.outcome,
            messages=trajectories[-1].messages if trajectories else (),
            turns=tuple(RolloutTurn(reply, reply.tokens) for reply in replies),
            result=result,
        )

    @property
    def stop_reason(self) -> str:
        """Why it ended: `complete`, `context_length`, or the outcome's own name, such as `agent_timeout`."""
        if self.outcome is None or self.outcome in _COMPLETE:
            return "complete"
        return "context_length" if self.outcome is Outcome.CONTEXT_LIMIT else str(self.outcome)

    def sequences(self) -> list[TokenSequence]:
        """The turns as sequences of tokens: several where the history was changed on the way. Raises TokensMissing.

        A turn belongs to the sequence before it only where its prompt begins with exactly those tokens: nothing is
        tokenized again, so what is learned is what was sampled.
        """
        return flatten(self._tokens())

    def longest_sequence(self) -> TokenSequence | None:
        """The sequence with most of what was sampled, for trainers that take one; None without a reply.

        There is only one where the chat template leaves the history as it was; turns outside it are not learned from.
        Raises TokensMissing.
        """
        return max(self.sequences(), key=lambda each: sum(each.loss_mask), default=None)

    @property
    def _name(self) -> str:
        return f"{self.result.task} seed {self.result.seed}"

    def _tokens(self) -> list[ReplyTokens]:
        found = [turn.tokens for turn in self.turns if turn.tokens is not None]
        if len(found) < len(self.turns):
            raise TokensMissing(f"{self._name}: the endpoint gave no token ids; vLLM gives them for return_token_ids")
        return found


def flatten(turns: Iterable[ReplyTokens]) -> list[TokenSequence]:
    """Turns as the fewest sequences in which each prompt begins with all tokens before it.

    Logprobs are kept where every turn of a sequence has one for each of its tokens.
    """
    found: list[TokenSequence] = []
    whole: list[int] = []
    for turn in turns:
        prompt = list(turn.prompt)
        if not found or prompt[: len(whole)] != whole:
            found.append(TokenSequence(prompt, [], [], [], 0))
            between: list[int] = []
        else:
            between = prompt[len(whole) :]
        found[-1] = _continued(found[-1], between, turn)
        whole = prompt + list(turn.completion)
    return found


def _continued(sequence: TokenSequence, between: Sequence[int], turn: ReplyTokens) -> TokenSequence:
    sampled = turn.completion
    is_told = len(turn.logprobs) == len(sampled) and len(sequence.logprobs) == len(sequence.response_ids)
    return TokenSequence(
        prompt_ids=sequence.prompt_ids,
        response_ids=[*sequence.response_ids, *between, *sampled],
        loss_mask=[*sequence.loss_mask, *[0] * len(between), *[1] * len(sampled)],
        logprobs=[*sequence.logprobs, *[0.0] * len(between), *turn.logprobs] if is_told else [],
        turns=sequence.turns + 1,
    )
