"""Parses OpenAI's request bodies and writes its response bodies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from headgate.config.output import Runaway
from headgate.engine.engine import SequenceOutput, Timings
from headgate.engine.recommended import OPENAI, Recommended
from headgate.model.errors import InvalidRequest
from headgate.model.labels import plain
from headgate.model.sampling import Sampling, TokenLogprob

MOST_CHOICES = 16
MOST_STOPS = 16
MOST_TOP_LOGPROBS = 20
MOST_STOP_TOKENS = 128


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(msgspec.Struct, kw_only=True):
    """The fields that chat and text completions share. fields.py lists the others that a body may have."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: list[int] = []
    response_format: dict[str, Any] | None = None
    # Other servers' names for the form of the output; see structured.py.
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    service_tier: str | None = None
    user: str | None = None
    # Headgate's own fields; any client works without them.
    lane: str | None = None
    priority: int | None = None
    ttft_target_ms: float | None = None
    tpot_target_ms: float | None = None
    longest_neighbour: int | None = None
    uncached_tokens: int | None = None
    generation_limit_ms: float | None = None
    runaway: Runaway = "off"
    continued: list[str] = []
    """Text generated already by a replica that broke off, in the pieces in which it was sent. It counts as output."""
    truncate_prompt: bool | None = None
    return_token_ids: bool = False
    cache_salt: str | None = None


class ChatBody(Body, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool = False
    """vLLM's name: the last message is the assistant's own and unfinished; the answer continues it."""
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None


class TextBody(Body, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    prompt: str | None = None
    content: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    add_special_tokens: bool = True


def refuse_what_we_lack(body: ChatBody | TextBody) -> None:
    """Refuses what the embedded engine can't do: a clear refusal is better than an answer that ignores half of the
    request."""
    if isinstance(body, ChatBody):
        if body.top_logprobs and not body.logprobs:
            raise InvalidRequest("top_logprobs wants logprobs to be true", param="top_logprobs")
    else:
        if body.echo:
            raise InvalidRequest("echo is not supported by the embedded engine", param="echo")
        if body.suffix:
            raise InvalidRequest("suffix is not supported by the embedded engine", param="suffix")
        if body.best_of and body.best_of != body.n:
            raise InvalidRequest("best_of is not supported by the embedded engine; use n", param="best_of")


def sampling_of(
    body: ChatBody | TextBody, seed: int, grammar: str | None, recommended: Recommended = OPENAI
) -> Sampling:
    """Converts the body's sampling settings. `recommended` applies if the client gives none of temperature, top_p,
    top_k and min_p: the four shape one distribution together, and a mix of client and model values is not what either
    chose."""
    named = (body.temperature, body.top_p, body.top_k, body.min_p)
    default = recommended if all(value is None for value in named) else OPENAI
    return Sampling(
        temperature=_within("temperature", body.temperature, default.temperature, 0.0, 100.0),
        top_p=_within("top_p", body.top_p, default.top_p, 0.0, 1.0),
        top_k=default.top_k if body.top_k is None else max(0, body.top_k),
        min_p=_within("min_p", body.min_p, default.min_p, 0.0, 1.0),
        repetition_penalty=_within(
            "repetition_penalty", body.repetition_penalty, default.repetition_penalty, 0.01, 10.0
        ),
        presence_penalty=_within("presence_penalty", body.presence_penalty, 0.0, -2.0, 2.0),
        frequency_penalty=_within("frequency_penalty", body.frequency_penalty, 0.0, -2.0, 2.0),
        seed=seed,
        logit_bias=_logit_bias(body.logit_bias or {}),
        top_logprobs=_top_logprobs(body),
        ignore_eos=body.ignore_eos,
        min_tokens=_min_tokens(body),
        stop_token_ids=_stop_token_ids(body.stop_token_ids),
        confident_end=body.runaway != "off" and not body.ignore_eos,
        grammar=grammar,
    )


def stops_of(body: Body) -> tuple[str, ...]:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > MOST_STOPS:
        raise InvalidRequest(f"at most {MOST_STOPS} stop sequences, got {len(stops)}", param="stop")
    if any(len(stop) > 1024 for stop in stops):
        raise InvalidRequest("a stop sequence may have at most 1024 characters", param="stop")
    return tuple(stop for stop in stops if stop)


def _within(name: str, value: float | None, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    if not low <= value <= high:
        raise InvalidRequest(
            f"{name} must be between {plain(low, 6)} and {plain(high, 6)}, got {plain(value, 6)}", param=name
        )
    return value


def _min_tokens(body: ChatBody | TextBody) -> int:
    most = body.max_completion_tokens if isinstance(body, ChatBody) else None
    most = body.max_tokens if most is None else most
    if body.min_tokens < 0 or (most is not None and body.min_tokens > most):
        limit = "" if most is None else f" and at most max_tokens, {most}"
        raise InvalidRequest(f"min_tokens must be at least 0{limit}, got {body.min_tokens}", param="min_tokens")
    return body.min_tokens


def _stop_token_ids(given: list[int]) -> frozenset[int]:
    if len(given) > MOST_STOP_TOKENS:
        raise InvalidRequest(f"at most {MOST_STOP_TOKENS} stop_token_ids, got {len(given)}", param="stop_token_ids")
    return frozenset(given)


def _logit_bias(given: dict[str, float]) -> dict[int, float]:
    if len(given) > 1024:
        raise InvalidRequest(f"at most 1024 entries in logit_bias, got {len(given)}", param="logit_bias")
    try:
        return {int(token): _within("logit_bias", bias, 0.0, -100.0, 100.0) for token, bias in given.items()}
    except ValueError as error:
        raise InvalidRequest(f"logit_bias wants token ids as keys: {error}", param="logit_bias") from None


def _top_logprobs(body: ChatBody | TextBody) -> int | None:
    if isinstance(body, TextBody):
        wanted, param = body.logprobs, "logprobs"
    else:
        wanted, param = ((body.top_logprobs or 0) if body.logprobs else None), "top_logprobs"
    if wanted is not None and not 0 <= wanted <= MOST_TOP_LOGPROBS:
        raise InvalidRequest(f"{param} must be between 0 and {MOST_TOP_LOGPROBS}, got {wanted}", param=param)
    return wanted


# -- answers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenUsage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class AnswerFormat:
    """Writes the answers of one request: chat or text, streamed or whole."""

    def __init__(
        self,
        kind: Literal["chat", "text"],
        answer_id: str,
        model: str,
        created: int,
        piece: Any,
        token_ids: bool,
        fingerprint: str | None = None,
    ) -> None:
        self.chat = kind == "chat"
        self.token_ids = token_ids
        self._piece = piece
        self._object = "chat.completion" if self.chat else "text_completion"
        self._head = {"id": answer_id, "created": created, "model": model}
        if fingerprint is not None:
            self._head["system_fingerprint"] = fingerprint
        # The part of a streamed event that never changes is encoded once, not per token.
        chunk = self._object + ".chunk" if self.chat else self._object
        self._chunk_head = msgspec.json.encode({"object": chunk, **self._head})[:-1] + b',"choices":['
        self._started: set[int] = set()

    def chunk(
        self,
        index: int,
        said: SequenceOutput,
        finish: str | None,
        usage: TokenUsage | None,
        extra: dict[str, Any],
        calls: Sequence[dict[str, Any]] = (),
        reasoning: str = "",
    ) -> bytes:
        """Returns one streamed event. The role is sent with the first text: a chunk of its own would mislead clients
        that take the first chunk for the first token."""
        choice: dict[str, Any] = {"index": index, "finish_reason": finish}
        if said.stop:
            choice["headgate_stop"] = said.stop
        if self.chat:
            delta: dict[str, Any] = {"content": said.text}
            if index not in self._started:
                self._started.add(index)
                delta = {"role": "assistant", "content": said.text}
            if calls:
                delta["content"] = said.text or None
                delta["tool_calls"] = calls
            if reasoning:
                delta["content"] = said.text or None
                delta["reasoning_content"] = reasoning
            choice["delta"] = delta
        else:
            choice["text"] = said.text
        if said.logprobs:
            choice["logprobs"] = self._logprobs(said.logprobs)
        if self.token_ids:
            choice["token_ids"] = said.tokens
        tail = msgspec.json.encode({"usage": usage.as_json(), **extra} if usage else extra) if usage or extra else b"{}"
        return self._chunk_head + msgspec.json.encode(choice) + (b"]," + tail[1:] if len(tail) > 2 else b"]}")

    def usage_chunk(self, usage: TokenUsage, extra: dict[str, Any]) -> bytes:
        return self._chunk_head + b"]," + msgspec.json.encode({"usage": usage.as_json(), **extra})[1:]

    def whole(self, choices: list["Choice"], usage: TokenUsage, extra: dict[str, Any]) -> bytes:
        bodies = []
        for index, choice in enumerate(choices):
            body: dict[str, Any] = {"index": index, "finish_reason": choice.finish}
            body["logprobs"] = self._logprobs(tuple(choice.logprobs)) if choice.logprobs else None
            if choice.stop:
                body["headgate_stop"] = choice.stop
            if self.chat:
                text = "".join(choice.text)
                body["message"] = {"role": "assistant", "content": text}
                if choice.calls:
                    body["message"] |= {"content": text or None, "tool_calls": choice.calls}
                if any(choice.reasoning):
                    body["message"]["reasoning_content"] = "".join(choice.reasoning)
            else:
                body["text"] = "".join(choice.text)
            if self.token_ids:
                body["token_ids"] = choice.tokens
            bodies.append(body)
        answer = {"object": self._object, **self._head, "choices": bodies, "usage": usage.as_json(), **extra}
        return msgspec.json.encode(answer)

    def _logprobs(self, logprobs: tuple[TokenLogprob, ...]) -> dict[str, Any]:
        if self.chat:
            return {
                "content": [self._entry(one.token, one.logprob) | {"top_logprobs": self._top(one)} for one in logprobs]
            }
        return {
            "tokens": [self._text(one.token) for one in logprobs],
            "token_logprobs": [one.logprob for one in logprobs],
            "top_logprobs": [{self._text(token): value for token, value in one.top} for one in logprobs],
        }

    def _top(self, one: TokenLogprob) -> list[dict[str, Any]]:
        return [self._entry(token, value) for token, value in one.top]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._text(token), "logprob": logprob, "bytes": list(self._piece(token))}

    def _text(self, token: int) -> str:
        piece: bytes = self._piece(token)
        return piece.decode("utf-8", "replace")


@dataclass(slots=True)
class Choice:
    """One sequence's answer as it grows."""

    text: list[str]
    tokens: list[int]
    logprobs: list[TokenLogprob]
    finish: str | None = None
    stop: str = ""
    """Why the sequence was ended early; empty: it was not."""
    timings: Timings | None = None
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Function calls, as OpenAI writes them."""
