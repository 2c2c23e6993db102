"""One HTTP request's answer, from the sequences that make it up."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from headgate.engine.engine import Said
from headgate.engine.openai import Choice, Dialect, Usage
from headgate.model.errors import SlowClient
from headgate.model.sequence import Sequence
from headgate.wire.exchange import Exchange

MOST_UNSENT = 1 << 20
"""Bytes waiting for a client that does not read. A generation nobody reads only holds KV memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How the client wants its answer."""

    stream: bool
    n: int = 1
    """Answers to each prompt."""
    usage: bool = False
    """A usage chunk at the end of a stream."""
    usage_always: bool = False
    """Usage in every chunk of a stream."""
    timings: bool = False


class Answer:
    def __init__(
        self,
        exchange: Exchange,
        dialect: Dialect,
        sequences: list[Sequence],
        wishes: Wishes,
        tokenize_ms: float,
        abandon: Callable[[list[Sequence]], None],
    ) -> None:
        self._exchange = exchange
        self._dialect = dialect
        self._sequences = sequences
        self._index = {sequence.id: index for index, sequence in enumerate(sequences)}
        self._choices = [Choice([], [], []) for _ in sequences]
        self._wishes = wishes
        self._tokenize_ms = tokenize_ms
        self._abandon = abandon
        self._open = len(sequences)
        exchange.on_gone = self._give_up
        if wishes.stream:
            exchange.stream()

    def hear(self, said: Said) -> None:
        """Take what one of the sequences said."""
        if said.error is not None:
            self._exchange.fail(said.error)
            self._give_up()
            return
        index = self._index[said.sequence_id]
        choice = self._choices[index]
        choice.tokens.extend(said.tokens)
        if said.finish is not None:
            self._open -= 1
            choice.finish, choice.timings = said.finish.value, said.timings
        if self._wishes.stream:
            self._stream(index, said)
        else:
            choice.text.append(said.text)
            choice.logprobs.extend(said.logprobs)
            if not self._open:
                self._exchange.respond(200, self._dialect.whole(self._choices, self._usage(), self._extra(choice)))

    def _stream(self, index: int, said: Said) -> None:
        choice, wishes, exchange = self._choices[index], self._wishes, self._exchange
        last = not self._open
        if said.text or said.logprobs or choice.finish or (self._dialect.token_ids and said.tokens):
            usage = self._usage() if wishes.usage_always else None
            extra = self._extra(choice) if last and not wishes.usage else {}
            exchange.event(self._dialect.chunk(index, said, choice.finish, usage, extra))
        if last:
            if wishes.usage:
                exchange.event(self._dialect.usage_chunk(self._usage(), self._extra(choice)))
            exchange.end(b"[DONE]")
        elif exchange.unsent > MOST_UNSENT:
            exchange.fail(SlowClient("the client does not read its stream"))
            self._give_up()

    def _give_up(self) -> None:
        self._abandon(self._sequences)

    def _usage(self) -> Usage:
        prompts = self._sequences[:: self._wishes.n]  # n answers to one prompt count it once, as OpenAI does
        return Usage(
            prompt_tokens=sum(s.prompt_len for s in prompts),
            completion_tokens=sum(len(choice.tokens) for choice in self._choices),
            cached_tokens=sum(s.cached for s in prompts),
        )

    def _extra(self, last: Choice) -> dict[str, Any]:
        if not self._wishes.timings or last.timings is None:
            return {}
        return {"timings": {"tokenize_ms": self._tokenize_ms, **asdict(last.timings)}}
