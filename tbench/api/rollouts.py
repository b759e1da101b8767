"""Rollouts for trainers: reward, conversation, and the tokens as the server reported them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.trajectory import Message, Outcome, Reply, ReplyTokens, Trajectory
from tbench.errors import TbenchError
from tbench.results import TrialResult
from tbench.reward import canonical

_COMPLETE = (Outcome.SUBMITTED, Outcome.FINISHED)


class TokensMissing(TbenchError):
    """The endpoint did not report the tokens of a reply."""


@dataclass(frozen=True)
class RolloutTurn:
    """One reply of the model with the tokens of its prompt, its own tokens, and their logprobs."""

    reply: Reply
    tokens: ReplyTokens | None
    """None if tokens were not requested."""


@dataclass(frozen=True)
class TokenSequence:
    """Turns in which each prompt continues the previous turn: one training example."""

    prompt_ids: list[int]
    """Tokens of the first prompt."""
    response_ids: list[int]
    """All tokens that follow: sampled ones, and the terminal's output between them."""
    loss_mask: list[int]
    """1 for sampled tokens, 0 for others; as long as `response_ids`."""
    logprobs: list[float]
    """Logprobs of sampled tokens, 0.0 for others; as long as `response_ids`, or empty if the server gave none."""
    turns: int


@dataclass(frozen=True)
class Rollout:
    """A trial with a verdict, as a training example."""

    reward: float
    """Reward from the verifier; 1.0 and above is a pass."""
    outcome: Outcome | None
    """Outcome of the agent."""
    messages: tuple[Message, ...]
    """The conversation as last sent, with replies; for a task with several steps, the last step's conversation."""
    turns: tuple[RolloutTurn, ...]
    """The replies in order, without summaries that a model made of its own history."""
    result: TrialResult
    """Result of the trial: times, token counts, integrity."""

    @classmethod
    def from_trial(cls, result: TrialResult, trajectories: Sequence[Trajectory]) -> Rollout:
        """Make the rollout of a trial with a reward, from its agents' trajectories."""
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
        """Why the trial ended: `complete`, `context_length`, or the outcome's name, such as `agent_timeout`."""
        if self.outcome is None or self.outcome in _COMPLETE:
            return "complete"
        return "context_length" if self.outcome is Outcome.CONTEXT_LIMIT else str(self.outcome)

    def sequences(self) -> list[TokenSequence]:
        """Return the turns as token sequences, several if the history was changed on the way. Raises TokensMissing.

        A turn continues a sequence only if its prompt begins with exactly the tokens of the sequence. Nothing is
        tokenized again, so training sees the sampled tokens.
        """
        tokens = [turn.tokens for turn in self.turns if turn.tokens is not None]
        if len(tokens) < len(self.turns):
            what = f"{self.result.task} seed {self.result.seed}"
            raise TokensMissing(f"{what}: the endpoint gave no token ids; vLLM does, with return_token_ids")
        return flatten(tokens)

    def longest_sequence(self) -> TokenSequence | None:
        """Return the sequence with the most sampled tokens, for trainers that take one; None without a reply.

        There is only one if the chat template leaves the history unchanged; turns outside of it are lost for training.
        Raises TokensMissing.
        """
        return max(self.sequences(), key=lambda each: sum(each.loss_mask), default=None)


def flatten(turns: Iterable[ReplyTokens]) -> list[TokenSequence]:
    """Join turns into the fewest sequences in which each prompt begins with all tokens before it.

    An agent with its own loop may send other requests in between, such as for a title. Logprobs are kept if every
    turn of a sequence has one for each of its tokens.
    """
    found: list[TokenSequence] = []
    wholes: list[list[int]] = []
    for turn in turns:
        prompt = list(turn.prompt)
        open_ones = range(len(found) - 1, -1, -1)
        at = next((at for at in open_ones if prompt[: len(wholes[at])] == wholes[at]), None)
        between = [] if at is None else prompt[len(wholes[at]) :]
        if at is None:
            at = len(found)
            found.append(TokenSequence(prompt, [], [], [], 0))
            wholes.append([])
        found[at] = _continue_sequence(found[at], between, turn)
        wholes[at] = prompt + list(turn.completion)
    return found


def _continue_sequence(sequence: TokenSequence, between: Sequence[int], turn: ReplyTokens) -> TokenSequence:
    sampled = turn.completion
    has_logprobs = len(turn.logprobs) == len(sampled) and len(sequence.logprobs) == len(sequence.response_ids)
    return TokenSequence(
        prompt_ids=sequence.prompt_ids,
        response_ids=[*sequence.response_ids, *between, *sampled],
        loss_mask=[*sequence.loss_mask, *[0] * len(between), *[1] * len(sampled)],
        logprobs=[*sequence.logprobs, *[0.0] * len(between), *turn.logprobs] if has_logprobs else [],
        turns=sequence.turns + 1,
    )
