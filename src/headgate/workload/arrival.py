"""Defines an arrival: when one request of a workload comes, and for how many tokens."""

from typing import Any

import msgspec

from headgate.model.errors import UsageError

BLOCK_TOKENS = 512
"""Tokens that one id of a prefix stands for. Mooncake's traces were made with blocks of this size."""
UNNAMED = "all"
"""Label of arrivals without lane or name."""


class WorkloadError(UsageError):
    """A workload that can't be understood or read; the message says what and where, on one line."""


class NextTurn(msgspec.Struct, frozen=True, gc=False):
    """A turn of a session that follows another one."""

    think_s: float
    """Seconds from the end of the turn before until this one: a person reads, a tool runs."""
    new_tokens: int
    """Prompt tokens beside all that was said before."""
    output_tokens: int


class Arrival(msgspec.Struct, frozen=True, gc=False):
    at_s: float
    """Seconds since the beginning."""
    prompt_tokens: int
    output_tokens: int
    lane: str | None = None
    """The lane that the request names; None: the server decides."""
    tenant: str | None = None
    stream: bool = True
    prefix: tuple[int, ...] = ()
    """Ids of the blocks that its prompt begins with, 512 tokens each; the last may be cut off by the prompt's end. The
    same ids from the start on are the same text. The text after them is unique."""
    session: str | None = None
    model: str | None = None
    name: str = ""
    """The stream of a mix that it belongs to."""
    prompt: Any = None
    """The original prompt, where a file of records kept it: messages, or text. None: made up by length."""
    choices: int = 1
    """Answers requested at once, each of `output_tokens` tokens."""
    turn: int = 0
    """The number of this turn in its session, where the next one waits for its end; 0: it waits for none. Its prefix
    covers prompt and answer."""
    later: tuple[NextTurn, ...] = ()
    """The turns that follow this one."""
    ttft_s: float | None = None
    """Time to first token that the request promises itself; None: it has its lane's."""
    tpot_s: float | None = None
    """Time per further token that the request promises itself; None: it has its lane's."""

    @property
    def label(self) -> str:
        """The label that it is counted under."""
        return self.lane or self.name or UNNAMED

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.choices * self.output_tokens


def blocks(tokens: int) -> int:
    """Blocks that hold these tokens, the last one perhaps in part."""
    return -(-tokens // BLOCK_TOKENS)


def follow_up(before: Arrival, ended_s: float) -> Arrival:
    """The turn after this one, which ended at `ended_s`. Its prompt begins with all that was said before."""
    turn = before.later[0]
    prompt = before.prompt_tokens + before.output_tokens + turn.new_tokens
    first = before.prefix[0]
    return msgspec.structs.replace(
        before,
        at_s=ended_s + turn.think_s,
        prompt_tokens=prompt,
        output_tokens=turn.output_tokens,
        prefix=tuple(first + block for block in range(blocks(prompt + turn.output_tokens))),
        turn=before.turn + 1,
        later=before.later[1:],
    )
