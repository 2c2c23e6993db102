"""Builds the answer to one HTTP request from the output of its sequences."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from headgate.engine.engine import SequenceOutput
from headgate.engine.openai import AnswerFormat, Choice, TokenUsage
from headgate.engine.speech.calls import CallPiece, Manner, Said, Speech
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
    manner: Manner | None = None
    """How the output is read for reasoning and function calls; None: all of it is text."""
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
        manner = wishes.manner
        self._speech = None if manner is None else [Speech(manner) for _ in sequences]
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
        reasoning = ""
        if self._speech is not None:
            found = self._read(choice, self._speech[index], said)
            said, reasoning = replace(said, text=found.text), found.reasoning
            calls = self._called(choice, said.sequence_id, found.calls)
        if self._wishes.stream:
            self._stream(index, said, reasoning, calls)
        else:
            choice.text.append(said.text)
            choice.reasoning.append(reasoning)
            choice.logprobs.extend(said.logprobs)
            if not self._open:
                self._exchange.respond(200, self._dialect.whole(self._choices, self._usage(), self._extra(choice)))

    def _read(self, choice: Choice, speech: Speech, output: SequenceOutput) -> Said:
        """Text, reasoning and calls of the output."""
        said = speech.push(output.text)
        if output.finish is None:
            return said
        rest = speech.finish()
        said = Said(said.text + rest.text, said.reasoning + rest.reasoning, said.calls + rest.calls)
        if speech.broken and not self._wishes.stream:
            # Cut off within its arguments. What has been streamed stays; a whole answer has it as text.
            choice.calls = choice.calls[: speech.calls - 1]
            said.text += speech.broken
            said.calls = tuple(piece for piece in said.calls if piece.at < speech.calls - 1)
        elif speech.calls and choice.finish == "stop":
            choice.finish = "tool_calls"
        return said

    def _called(self, choice: Choice, sequence_id: int, pieces: tuple[CallPiece, ...]) -> list[dict[str, Any]]:
        """Adds the pieces to the choice's calls. Returns them as OpenAI writes them in a stream."""
        told: list[dict[str, Any]] = []
        for piece in pieces:
            if self._wishes.one_call and piece.at:
                continue
            if piece.name:
                call_id = f"call_{self._exchange.request_id}_{sequence_id}_{piece.at}"
                function = {"name": piece.name, "arguments": piece.arguments}
                choice.calls.append({"id": call_id, "type": "function", "function": {**function}})
                told.append({"index": piece.at, "id": call_id, "type": "function", "function": function})
            else:
                choice.calls[piece.at]["function"]["arguments"] += piece.arguments
                if told and told[-1]["index"] == piece.at:
                    told[-1]["function"]["arguments"] += piece.arguments
                else:
                    told.append({"index": piece.at, "function": {"arguments": piece.arguments}})
        return told

    def _stream(self, index: int, said: SequenceOutput, reasoning: str, calls: list[dict[str, Any]]) -> None:
        choice, wishes, exchange = self._choices[index], self._wishes, self._exchange
        last = not self._open
        if (
            said.text
            or reasoning
            or calls
            or said.logprobs
            or choice.finish
            or (self._dialect.token_ids and said.tokens)
        ):
            usage = self._usage() if wishes.usage_always else None
            extra = self._extra(choice) if last and not wishes.usage else {}
            exchange.event(self._dialect.chunk(index, said, choice.finish, usage, extra, calls, reasoning))
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
