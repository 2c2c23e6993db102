"""Turns a parsed body into sequences: tokenizes prompts, converts settings, enforces limits."""

import random
import re
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

from msgspec import json

from headgate.config.engine import EngineConfig
from headgate.engine.openai import (
    MOST_CHOICES,
    ChatBody,
    TextBody,
    TokenizeBody,
    refuse_what_we_lack,
    sampling_of,
    stops_of,
)
from headgate.engine.recommended import OPENAI, Recommended
from headgate.engine.runner.continued import said_before
from headgate.engine.runner.tokenizer import Message
from headgate.engine.speech.calls import THINK, THOUGHT, Manner, Thinks
from headgate.engine.speech.taught import taught
from headgate.engine.speech.tools import Tools, speaks_of_tools, tools_of
from headgate.engine.structured import Rules, rules_of
from headgate.model.errors import ContextOverflow, InvalidRequest, UnknownModel
from headgate.model.lane import LANES, Lane
from headgate.model.sequence import LOWEST_PRIORITY, Sequence
from headgate.policy.dispatch.intake import classify

MOST_IDS = 1_000_000
"""Maximum token ids accepted in one prompt."""
MOST_KWARGS_BYTES = 16_384
END_TOKENS = 8
"""Tokens at the end of a prompt in which the mark of reasoning is looked for."""
RESERVED = frozenset(("messages", "tools", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token"))
"""Names in a chat template that a client's chat_template_kwargs may not redefine."""
DEFAULT_MAX_TOKENS = 512
"""Maximum output tokens where neither the request nor the config gives a limit."""
IN_ORDER = replace(LANES["slow"], ttft_target_s=86_400.0)
"""The lane of all requests when the engine serves in order of arrival: one priority, and a deadline too far off to
matter."""


class TextCoder(Protocol):
    """Turns text into tokens: a model's tokenizer, or one for an engine without a model."""

    @property
    def n_vocab(self) -> int: ...
    @property
    def template(self) -> str:
        """The chat template, in Jinja."""

    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]: ...
    def encode_chat(
        self,
        messages: Items[Message],
        tools: Items[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]: ...
    def spelling(self, token: int) -> bytes: ...
    def piece(self, token: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Intake:
    config: EngineConfig
    tokenizer: TextCoder
    context: int
    """Longest sequence that the engine can hold, in tokens."""
    ids: Iterator[int]
    rng: random.Random
    """Gives seeds to requests without one."""
    recommended: Recommended = OPENAI
    """The sampling settings for clients that give none."""

    def rules(self, body: ChatBody | TextBody) -> Rules | None:
        """Returns the form that the output must have; None: any text."""
        tools = self.tools(body)
        rules = rules_of(body)
        if tools is None or tools.grammar is None:
            return rules
        if rules is not None:
            raise InvalidRequest(f"an answer can't be both a demanded call and in a {rules.param}", param="tool_choice")
        return Rules(tools.grammar, "tools")

    def sequences(self, body: ChatBody | TextBody, arrived: float) -> tuple[list[Sequence], tuple[str, ...]]:
        """Returns one sequence per prompt and choice, and the stop strings. Tokenizes: long prompts belong in a
        thread."""
        self.check_model(body.model)
        refuse_what_we_lack(body)
        tools = self.tools(body)
        prompts = self._prompts(body, tools)
        if not 1 <= body.n * len(prompts) <= MOST_CHOICES:
            raise InvalidRequest(f"n × prompts must be between 1 and {MOST_CHOICES}", param="n")
        seed = self.rng.getrandbits(63) if body.seed is None else body.seed
        rules = self.rules(body)
        sequences = [
            self._sequence(body, prompt, seed + choice, None if rules is None else rules.grammar, arrived)
            for prompt in prompts
            for choice in range(body.n)
        ]
        if body.continued:
            if len(sequences) != 1:
                raise InvalidRequest("only one answer can be gone on with", param="continued")
            self._go_on(sequences[0], body.continued)
        return sequences, stops_of(body)

    def _go_on(self, sequence: Sequence, pieces: list[str]) -> None:
        """Adds the tokens of another replica to the sequence as if the sequence had generated them. To the Batcher they
        are part of the prompt."""
        tokens = said_before(self.tokenizer, pieces)
        sequence.tokens += tokens
        sequence.prompt_len += len(tokens)
        sequence.continued = len(tokens)
        # At least 1: a replica that had generated all of the output would have finished.
        sequence.max_output = max(1, sequence.max_output - len(tokens))
        if len(sequence.tokens) >= self.context:
            raise ContextOverflow(f"prompt and what was said have {len(sequence.tokens)} tokens", param="continued")

    def tools(self, body: ChatBody | TextBody) -> Tools | None:
        return tools_of(body, self.tokenizer.template) if isinstance(body, ChatBody) else None

    def manner(self, body: ChatBody | TextBody, sequences: Items[Sequence]) -> Manner | None:
        """How the output is read: whether it may have calls or reasoning. None: it is text."""
        if not isinstance(body, ChatBody):
            return None
        tools, thinks = self.tools(body), self._thinks(body, sequences[0])
        style = None if tools is None else tools.style
        if style is None and thinks == "no":
            return None
        return Manner(style, frozenset() if tools is None else tools.names, thinks)

    def _thinks(self, body: ChatBody, sequence: Sequence) -> Thinks:
        """Whether the output may begin with reasoning: not where a form is demanded or a message continued."""
        if THOUGHT not in self.tokenizer.template or body.continue_final_message or self.rules(body) is not None:
            return "no"
        end = b"".join(self.tokenizer.spelling(token) for token in sequence.tokens[-END_TOKENS:])
        if end.rstrip().endswith(THINK.encode()):
            return "begun"
        return "no" if sequence.continued else "may"

    def tokenized(self, body: TokenizeBody) -> list[int]:
        if body.messages is not None:
            chat = ChatBody(
                messages=body.messages,
                tools=body.tools,
                continue_final_message=body.continue_final_message,
                chat_template_kwargs=body.chat_template_kwargs,
            )
            return self._prompts(chat, self.tools(chat))[0]
        text = body.prompt if body.prompt is not None else body.content
        if text is None:
            raise InvalidRequest("give prompt, content or messages", param="prompt")
        return self.tokenizer.encode(text, special=True, bos=body.add_special_tokens)

    def check_model(self, model: str | None) -> None:
        if model not in (None, "", "default", self.config.served_name):
            ours = self.config.served_name
            raise UnknownModel(f"no model {model!r} here; this engine serves {ours!r}", param="model")

    def lane(self, body: ChatBody | TextBody, prompt_tokens: int) -> Lane:
        """Returns the lane that the request names, or the one that its size and kind suggest."""
        if body.lane is not None:
            if body.lane not in LANES:
                raise InvalidRequest(f"no lane {body.lane!r}; there are {', '.join(LANES)}", param="lane")
            return LANES[body.lane]
        if self.config.in_order:
            return IN_ORDER
        says_batch = body.service_tier == "flex"
        return LANES[classify(uncached_tokens=prompt_tokens, streaming=body.stream, says_batch=says_batch)]

    def _prompts(self, body: ChatBody | TextBody, tools: Tools | None) -> list[list[int]]:
        if isinstance(body, ChatBody):
            if not body.messages:
                raise InvalidRequest("messages must not be empty", param="messages")
            given_tools, goes_on = None if tools is None else tools.given, body.continue_final_message
            if goes_on and not (body.messages[-1].get("role") == "assistant" and body.messages[-1].get("content")):
                raise InvalidRequest(
                    "it wants a last message of the assistant's, with content", param="continue_final_message"
                )
            messages: Items[Message] = body.messages
            if not speaks_of_tools(self.tokenizer.template):
                messages, given_tools = taught(messages, given_tools), None
            return [
                self.tokenizer.encode_chat(
                    messages, given_tools, continue_final_message=goes_on, **self._variables(body)
                )
            ]
        given = body.prompt
        if isinstance(given, str):
            return [self._text(given)]
        if given and all(isinstance(item, int) for item in given):
            return [self._ids(given)]
        if not given:
            raise InvalidRequest("prompt must not be empty", param="prompt")
        return [self._text(item) if isinstance(item, str) else self._ids(item) for item in given]

    def _variables(self, body: ChatBody) -> dict[str, Any]:
        """Returns the variables that the client gives to the chat template."""
        given = body.chat_template_kwargs
        if taken := given.keys() & RESERVED:
            name = min(taken)
            raise InvalidRequest(
                f"chat_template_kwargs.{name} is the engine's own; leave it out", param="chat_template_kwargs"
            )
        if (size := len(json.encode(given))) > MOST_KWARGS_BYTES:
            raise InvalidRequest(
                f"chat_template_kwargs has {size} bytes, at most {MOST_KWARGS_BYTES} are taken",
                param="chat_template_kwargs",
            )
        effort = body.reasoning_effort
        if effort and re.search(r"\breasoning_effort\b", self.tokenizer.template):
            return {"reasoning_effort": effort, **given}
        if effort not in (None, "", "none", "medium"):
            raise InvalidRequest(
                "reasoning_effort: this model's chat template has no place for it; leave it out",
                param="reasoning_effort",
            )
        return given

    def _text(self, text: str) -> list[int]:
        tokens = self.tokenizer.encode(text, special=True, bos=True)
        if not tokens:
            raise InvalidRequest("prompt must not be empty", param="prompt")
        return tokens

    def _ids(self, ids: object) -> list[int]:
        if not isinstance(ids, list) or not ids:
            raise InvalidRequest("prompt wants text or lists of token ids", param="prompt")
        if len(ids) > MOST_IDS:
            raise ContextOverflow(f"a prompt of {len(ids)} tokens is longer than any context here", param="prompt")
        for token in ids:
            if type(token) is not int or not 0 <= token < self.tokenizer.n_vocab:
                raise InvalidRequest(f"{token!r} is no token id of this model", param="prompt")
        return ids

    def _sequence(
        self, body: ChatBody | TextBody, prompt: list[int], seed: int, rules: str | None, arrived: float
    ) -> Sequence:
        asked = body.max_completion_tokens if isinstance(body, ChatBody) else None
        asked = body.max_tokens if asked is None else asked
        if asked is not None and asked < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, got {asked}", param="max_tokens")
        tokens = self._fitting(prompt, 1 if asked is None else asked, body.truncate_prompt)
        lane = self.lane(body, len(tokens))
        gap_s = self.config.gap_target_s or lane.gap_target_s
        ttft_s = lane.ttft_target_s if body.ttft_target_ms is None else max(0.0, body.ttft_target_ms / 1e3)
        return Sequence(
            id=next(self.ids),
            tokens=list(tokens),
            prompt_len=len(tokens),
            max_output=min(asked or self.config.default_max_tokens or DEFAULT_MAX_TOKENS, self.context - len(tokens)),
            arrived=arrived,
            lane=lane.name,
            priority=lane.priority
            if body.priority is None
            else max(-LOWEST_PRIORITY, min(LOWEST_PRIORITY, body.priority)),
            first_token_by=arrived + ttft_s,
            gap_target_s=gap_s if body.tpot_target_ms is None else max(0.001, body.tpot_target_ms / 1e3),
            sampling=sampling_of(body, seed, rules, self.recommended),
            cache_salt=blake2b(body.cache_salt.encode(), digest_size=32).digest() if body.cache_salt else b"",
            expected=max(0, body.uncached_tokens or 0),
            # At least a quarter of the context: a client that tolerated no neighbour would have the engine to itself.
            longest_neighbour=None
            if body.longest_neighbour is None
            else max(body.longest_neighbour, self.context // 4),
        )

    def _fitting(self, prompt: list[int], output: int, truncate: bool | None) -> list[int]:
        """Returns the prompt, cut from the left if it is too long and truncation is on."""
        room = self.context - output
        if len(prompt) <= room:
            return prompt
        if (self.config.truncate if truncate is None else truncate) and room > 0:
            return prompt[-room:]
        raise ContextOverflow(
            f"This model's maximum context length is {self.context} tokens. However, you requested "
            f"{len(prompt) + output} tokens ({len(prompt)} in the prompt, {output} in the completion). "
            "Please reduce the length of the prompt or the completion."
        )
