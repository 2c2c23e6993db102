"""Builds the answer to one HTTP request from the output of its sequences."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from headgate.engine.engine import SequenceOutput
from headgate.engine.openai import AnswerFormat, Choice, TokenUsage
from headgate.engine.tools import CallStream
from headgate.model.errors import SlowClient
from headgate.model.sequence import Sequence
from headgate.wire.exchange import Exchange

MOST_UNSENT = 1 << 20
"""Maximum bytes buffered for a client that does not read; beyond it the request fails, since its generation holds KV
memory in vain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The form of the answer that the client asks for."""

    stream: bool
    n: int = 1
    """Answers per prompt."""
    usage: bool = False
    """Send a usage chunk at the end of a stream."""
    usage_always: bool = False
    """Send usage in every chunk of a stream."""
    timings: bool = False
    calls: bool = False
    """The output may contain function calls."""
    one_call: bool = False
    """Only the first function call counts."""


class Answer:
    def __init__(
        self,
        exchange: Exchange,
        dialect: AnswerFormat,
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
        self._calling = [CallStream() for _ in sequences] if wishes.calls else None
        self._wishes = wishes
        self._tokenize_ms = tokenize_ms
        self._abandon = abandon
        self._open = len(sequences)
        exchange.on_gone = self._give_up
        if wishes.stream:
            exchange.stream()

    def hear(self, said: SequenceOutput) -> None:
        """Takes the output of one sequence."""
        if said.error is not None:
            self._exchange.fail(said.error)
            self._give_up()
            return
        index = self._index[said.sequence_id]
        choice = self._choices[index]
        choice.tokens.extend(said.tokens)
        if said.finish is not None:
            self._open -= 1
            choice.finish, choice.timings, choice.stop = said.finish.value, said.timings, said.stop
        calls: list[dict[str, Any]] = []
        if self._calling is not None:
            said, calls = self._told_apart(choice, self._calling[index], said)
        if self._wishes.stream:
            self._stream(index, said, calls)
        else:
            choice.text.append(said.text)
            choice.logprobs.extend(said.logprobs)
            if not self._open:
                self._exchange.respond(200, self._dialect.whole(self._choices, self._usage(), self._extra(choice)))

    def _told_apart(
        self, choice: Choice, stream: CallStream, said: SequenceOutput
    ) -> tuple[SequenceOutput, list[dict[str, Any]]]:
        """Returns the output that remains text, and the function calls found in it as OpenAI writes them."""
        text, found = stream.push(said.text)
        if said.finish is not None:
            rest, more = stream.finish()
            text, found = text + rest, found + more
            if stream.calls and choice.finish == "stop":
                choice.finish = "tool_calls"
        first = len(choice.calls)
        if self._wishes.one_call:
            found = found[: 1 - min(1, first)]
        for number, call in enumerate(found, first):
            function = {"name": call.name, "arguments": call.arguments}
            call_id = f"call_{self._exchange.request_id}_{said.sequence_id}_{number}"
            choice.calls.append({"id": call_id, "type": "function", "function": function})
        return replace(said, text=text), [{"index": at, **choice.calls[at]} for at in range(first, len(choice.calls))]

    def _stream(self, index: int, said: SequenceOutput, calls: list[dict[str, Any]]) -> None:
        choice, wishes, exchange = self._choices[index], self._wishes, self._exchange
        last = not self._open
        if said.text or calls or said.logprobs or choice.finish or (self._dialect.token_ids and said.tokens):
            usage = self._usage() if wishes.usage_always else None
            extra = self._extra(choice) if last and not wishes.usage else {}
            exchange.event(self._dialect.chunk(index, said, choice.finish, usage, extra, calls))
        if last:
            if wishes.usage:
                exchange.event(self._dialect.usage_chunk(self._usage(), self._extra(choice)))
            exchange.end(b"[DONE]")
        elif exchange.unsent > MOST_UNSENT:
            exchange.fail(SlowClient("the client does not read its stream"))
            self._give_up()

    def _give_up(self) -> None:
        self._abandon(self._sequences)

    def _usage(self) -> TokenUsage:
        prompts = self._sequences[:: self._wishes.n]  # n answers to one prompt count its tokens once, as OpenAI does
        return TokenUsage(
            prompt_tokens=sum(s.prompt_len for s in prompts),
            completion_tokens=sum(len(choice.tokens) for choice in self._choices),
            cached_tokens=sum(s.cached for s in prompts),
        )

    def _extra(self, last: Choice) -> dict[str, Any]:
        if not self._wishes.timings or last.timings is None:
            return {}
        stop = {"stop": last.stop} if last.stop else {}
        continued = self._sequences[0].continued
        more = {"continued_tokens": continued} if continued else {}
        return {"timings": {"tokenize_ms": self._tokenize_ms, **asdict(last.timings), **stop, **more}}
