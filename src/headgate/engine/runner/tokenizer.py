"""Converts text and chats to tokens, and tokens to text.

Only the chat template's own markup may become control tokens: a message that contains `<|im_end|>` must not end its own
turn. Nearly no message spells a control token, so a rendered chat is tokenized whole, exactly as llama.cpp does it.
Where one does, that spelling (and nothing else) is swapped for a mark before rendering; the text is split at the marks,
and each spelling is tokenized apart, as plain text. Splitting at every message instead would change merges at the
borders of ordinary chats.
"""

import ctypes as C
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headgate.engine.runner.llama import CONTROL_TOKEN, Model
from headgate.model.clock import Clock, wall
from headgate.model.errors import InvalidRequest, StartupError

Message = Mapping[str, Any]

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Tokenizer:
    """One model's vocabulary and chat template. Thread-safe; llama.cpp tokenizes outside the GIL."""

    def __init__(self, model: Model, *, template: str | None = None, clock: Clock = wall) -> None:
        """`template`: used for chats instead of the model's own; None: the model's own, or ChatML if it has none."""
        self._model = model  # keeps the vocabulary in memory
        self._c, self._vocab = model.c, model.vocab
        self.n_vocab = model.n_vocab
        self.eog = frozenset(id_ for id_ in range(self.n_vocab) if self._c.llama_vocab_is_eog(self._vocab, id_))
        """The tokens that end a generation."""
        bos, eos = self._c.llama_vocab_bos(self._vocab), self._c.llama_vocab_eos(self._vocab)
        self.bos: int | None = bos if bos >= 0 and self._c.llama_vocab_get_add_bos(self._vocab) else None
        """The first token of every prompt; None: the vocabulary asks for none."""
        self._names = {"bos_token": self._text(bos), "eos_token": self._text(eos)}
        self._pieces: list[bytes | None] = [None] * self.n_vocab
        self.template = template or model.chat_template() or CHATML
        """The chat template, in Jinja."""
        self._template = compile_template(self.template, clock)

    def encode(self, text: str, *, special: bool = False, bos: bool = False) -> list[int]:
        """Tokenizes text. `special`: text that spells a control token becomes it. `bos`: begin with the first token
        that the vocabulary asks for."""
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        ids = np.empty(room, np.int32)
        count = self._c.llama_tokenize(self._vocab, data, len(data), ids.ctypes.data, room, False, special)
        if count < 0:
            raise InvalidRequest("the text can't be tokenized", param="prompt")
        tokens: list[int] = ids[:count].tolist()
        return self._begun(tokens) if bos else tokens

    def piece(self, token: int) -> bytes:
        """Returns the bytes that a token adds to the text: none for a control token."""
        known = self._pieces[token]
        if known is None:
            known = self._pieces[token] = self._spell(token, special=False)
        return known

    def spelling(self, token: int) -> bytes:
        """Returns a token's bytes like `piece`, but a control token gives its name."""
        return self._spell(token, special=True)

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Renders a chat. `continue_final_message` leaves the last message open, for the model to continue."""
        given = {"messages": normalised(messages), "tools": tools or None, **variables}
        return self._render(given, add_generation_prompt, continue_final_message)

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]:
        """Returns the tokens of a chat, in which only the template's markup becomes control tokens."""
        given = {"messages": normalised(messages), "tools": tools or None, **variables}
        spelled: list[str] = []
        if any(self._control.search(text) for text in _strings(given)):
            # A mark is a digest of the very chat that contains it, so no chat can contain its own.
            digest = blake2b("\0".join(_strings(given)).encode("utf-8", "replace"), digest_size=16).hexdigest()

            def swap(found: re.Match[str]) -> str:
                spelled.append(found[0])
                return f"\ue000{digest}:{len(spelled) - 1}\ue001"

            given = _mapped(given, lambda text: self._control.sub(swap, text))
        text = self._render(given, add_generation_prompt, continue_final_message)
        if not spelled:
            return self.encode(text, special=True, bos=True)
        tokens: list[int] = []
        for at, part in enumerate(re.split(f"\ue000{digest}:(\\d+)\ue001", text)):
            tokens += self.encode(spelled[int(part)]) if at % 2 else self.encode(part, special=True)
        return self._begun(tokens)

    def _begun(self, tokens: list[int]) -> list[int]:
        """Adds the first token if it is missing: templates differ in whether they write it, and it must not come
        twice."""
        return tokens if self.bos is None or tokens[:1] == [self.bos] else [self.bos, *tokens]

    def _render(self, given: dict[str, Any], add_generation_prompt: bool, open_end: bool) -> str:
        final = "\ue000end\ue001"
        if open_end:
            *before, last = given["messages"]
            given = given | {"messages": [*before, last | {"content": last["content"] + final}]}
        try:
            text = self._template.render(
                **self._names, **given, add_generation_prompt=add_generation_prompt and not open_end
            )
        except TemplateError as error:
            raise InvalidRequest(f"chat template: {error.message or error}", param="messages") from error
        except Exception as error:
            # The template is a program of the model's author that runs on the client's data: whatever it fails on (None
            # + str, a missing key) is in that data.
            raise InvalidRequest(f"chat template: {error}", param="messages") from error
        return text[: text.rindex(final)] if open_end and final in text else text

    def _spell(self, token: int, *, special: bool) -> bytes:
        size = 64
        while True:
            buffer = C.create_string_buffer(size)
            written = self._c.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if written >= 0:
                return buffer.raw[:written]
            size = -written

    def _text(self, token: int) -> str:
        text: bytes | None = self._c.llama_vocab_get_text(self._vocab, token) if token >= 0 else None
        return (text or b"").decode("utf-8", "replace")

    @cached_property
    def _control(self) -> re.Pattern[str]:
        """Matches the spelling of any control token, the longest first."""
        attr = self._c.llama_vocab_get_attr
        names = [self._text(id_) for id_ in range(self.n_vocab) if attr(self._vocab, id_) & CONTROL_TOKEN]
        names = sorted(filter(None, names), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or "(?!)")


def normalised(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns messages as templates expect them: content is text, tool arguments are objects."""
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    return [_normalised(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _normalised(message: Message, path: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequest(f"{path} needs a role", param=f"{path}.role")
    plain = dict(message) | {"content": _content(message.get("content"), f"{path}.content")}
    if message.get("tool_calls"):
        if not isinstance(message["tool_calls"], list):
            raise InvalidRequest(f"{path}.tool_calls must be a list", param=f"{path}.tool_calls")
        plain["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return plain


def _content(content: Any, path: str) -> str:
    if content is None:
        return ""  # an assistant that only calls tools; most templates add strings to it
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequest(f"{path} must be a string or a list of parts", param=path)
    texts = []
    for at, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{path}[{at}]: this model takes only text parts", param=f"{path}[{at}]")
        texts.append(part["text"])
    return "\n".join(texts)


def _call(call: Any) -> Any:
    """Parses a call's arguments: OpenAI sends them as JSON in a string, templates want the object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return dict(call) | {"function": dict(function) | {"arguments": arguments}}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _strings(pair)
    elif isinstance(value, Sequence):
        for part in value:
            yield from _strings(part)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(part, change) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [_mapped(part, change) for part in value]
    return value


def compile_template(source: str, clock: Clock) -> Template:
    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def strftime_now(format_: str) -> str:
        return datetime.fromtimestamp(clock(), UTC).strftime(format_)

    def tojson(value: Any, indent: int | None = None, **options: Any) -> str:
        # Jinja's own escapes < and > for HTML pages.
        return json.dumps(value, **({"ensure_ascii": False} | options), indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise StartupError(f"the chat template is broken ({error}); fix the model's, or --chat-template") from error
