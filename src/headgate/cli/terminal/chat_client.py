"""Runs `headgate chat`: a conversation in a terminal, streamed, with each answer's first-token time and pace."""

import contextlib
import importlib
import json
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, TextIO
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import msgspec
from rich.console import Console
from rich.text import Text

from headgate.cli.client import AdminClient, exact, message
from headgate.explain.explanation import many
from headgate.model.clock import Clock, monotonic
from headgate.model.errors import StartupError
from headgate.report.words import rate

WITHIN_S: Final = 300.0
"""Maximum seconds between two pieces of an answer."""
MOST_EVENT_BYTES: Final = 1 << 20
MOST_PIPED_CHARACTERS: Final = 4_000_000
PROMPT: Final = "> "
HELP: Final = """\
/clear   forget the conversation
/help    this
/quit    leave; so do ctrl-D, and ctrl-C where nothing is being answered
ctrl-C   stop the answer; what has come of it stays in the conversation"""


@dataclass(slots=True, kw_only=True)
class ChatSettings:
    url: str
    model: str = "default"
    lane: str | None = None
    """None: the gateway chooses."""
    key: str | None = None
    system: str | None = None
    max_tokens: int | None = None


@dataclass(slots=True)
class Spoken:
    """One answer as it came."""

    began: float
    wanted: str = ""
    """The lane that was asked for; empty: none."""
    text: str = ""
    first_at: float | None = None
    last_at: float | None = None
    pieces: int = 0
    tokens: int | None = None
    """Output tokens as the server counts them. None: it did not say."""
    finish: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def told(self, stopped: bool) -> str:
        """The figures of the answer, in one line."""
        parts = []
        if self.first_at is not None:
            parts.append(f"first token {exact(self.first_at - self.began)}")
        tokens = self.pieces if self.tokens is None else self.tokens
        if self.first_at is not None and self.last_at is not None and tokens > 1 and self.last_at > self.first_at:
            parts.append(f"{rate((tokens - 1) / (self.last_at - self.first_at))} tokens/s")
        parts.append(many(tokens, "token"))
        if lane := self.headers.get("x-headgate-lane"):
            told = f", not {self.wanted}: that is for keys that the gateway trusts"
            parts.append(f"lane {lane}" + (told if self.wanted not in ("", lane) else ""))
        if stopped:
            parts.append("stopped")
        elif self.finish == "length":
            parts.append("cut at its limit")
        return " · ".join(parts)


class AnswerFailed(Exception):
    """A request that got no answer; the message says why, on one line."""


class ChatSession:
    """What was said so far, and how to ask for what comes next."""

    def __init__(self, settings: ChatSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._url = AdminClient(settings.url, None).url.removesuffix("/v1")
        # Never through a proxy from the environment: the gateway is our own, most often on this machine.
        self._opener = build_opener(ProxyHandler({}))
        self.clear()

    def clear(self) -> None:
        system = self._settings.system
        self._messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self._session = secrets.token_hex(8)

    def ask(self, text: str, out: "AnswerVoice") -> tuple[Spoken, bool]:
        """Asks, and says the answer while it comes. Returns it, and whether it was stopped by ctrl-C. Raises
        AnswerFailed, and the question is as if it had not been asked."""
        self._messages.append({"role": "user", "content": text})
        spoken, stopped = Spoken(self._clock(), self._settings.lane or ""), False
        try:
            with self._opened() as answer:
                spoken.headers = {name.lower(): value for name, value in answer.headers.items()}
                self._hear(answer, spoken, out)
        except KeyboardInterrupt:
            stopped = True
        except BaseException:
            self._messages.pop()
            raise
        if spoken.text:
            self._messages.append({"role": "assistant", "content": spoken.text})
        else:
            self._messages.pop()
        return spoken, stopped

    @contextlib.contextmanager
    def _opened(self) -> Iterator[HTTPResponse]:
        settings = self._settings
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": self._messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if settings.max_tokens is not None:
            body["max_tokens"] = settings.max_tokens
        headers = {
            "content-type": "application/json", "x-headgate-timings": "1", "x-headgate-session": self._session,
        }  # fmt: skip
        if settings.lane is not None:
            headers["x-headgate-lane"] = settings.lane
        if settings.key:
            headers["authorization"] = f"Bearer {settings.key}"
        request = Request(f"{self._url}/v1/chat/completions", json.dumps(body).encode(), headers)
        try:
            with self._opener.open(request, timeout=WITHIN_S) as answer:
                yield answer
        except HTTPError as error:
            with error:
                raise AnswerFailed(_refused(error)) from None
        except URLError as error:
            hint = "is `headgate serve` running there? Its address is given with --url"
            raise AnswerFailed(f"can't reach {self._url}: {error.reason}; {hint}") from None
        except (OSError, HTTPException) as error:
            raise AnswerFailed(f"the answer broke off: {error}") from None

    def _hear(self, answer: HTTPResponse, spoken: Spoken, out: "AnswerVoice") -> None:
        ended = False
        while line := answer.readline(MOST_EVENT_BYTES):
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                ended = True
                break
            try:
                event = _event(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise AnswerFailed(f"the answer is not as OpenAI's API says: {error}") from None
            if event.error is not None:
                raise AnswerFailed(f"the answer ended with an error: {_words(event.error)}")
            self._take(event, spoken, out)
        if not ended:
            raise AnswerFailed("the answer broke off before its end")

    def _take(self, event: "_Event", spoken: Spoken, out: "AnswerVoice") -> None:
        if event.usage is not None and event.usage.completion_tokens is not None:
            spoken.tokens = event.usage.completion_tokens
        for choice in event.choices or ():
            delta = choice.delta or _Delta()
            thought, text = delta.reasoning_content or delta.reasoning or "", delta.content or ""
            if thought or text:
                spoken.last_at = self._clock()
                spoken.first_at = spoken.last_at if spoken.first_at is None else spoken.first_at
                spoken.pieces += 1
            out.think(thought)
            out.say(text)
            spoken.text += text
            spoken.finish = choice.finish_reason or spoken.finish


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_event = msgspec.json.Decoder(_Event).decode


class AnswerVoice:
    """Writes an answer where a person or a program reads it."""

    def __init__(self, out: TextIO, *, styled: bool) -> None:
        self._out = out
        self._styled = styled
        self._thinks = False

    def say(self, text: str) -> None:
        if text:
            self._style(thinks=False)
            self._write(text)

    def think(self, text: str) -> None:
        """Thoughts are shown to people only: a program that reads the answer wants the answer."""
        if text and self._styled:
            self._style(thinks=True)
            self._write(text)

    def end(self) -> None:
        self._style(thinks=False)
        self._write("\n")

    def _style(self, *, thinks: bool) -> None:
        if self._styled and thinks is not self._thinks:
            self._out.write("\x1b[2m" if thinks else "\x1b[0m\n")
        self._thinks = thinks

    def _write(self, text: str) -> None:
        self._out.write(harmless(text))
        self._out.flush()


def chat(settings: ChatSettings, clock: Clock = monotonic) -> int:
    """Talks until the person leaves; with another input than a terminal, answers it once. Returns the exit status."""
    conversation = ChatSession(settings, clock)
    if not sys.stdin.isatty():
        return _once(conversation)
    err = Console(stderr=True, highlight=False)
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # gives the line that is typed a history and an editor
    err.print(Text(f"{settings.model} at {settings.url} · /help", "dim"))
    voice = AnswerVoice(sys.stdout, styled=sys.stdout.isatty())
    while True:
        try:
            text = input(PROMPT).strip()
        except (EOFError, KeyboardInterrupt):
            err.print()
            return 0
        if text in ("/quit", "/exit"):
            return 0
        if text == "/clear":
            conversation.clear()
            err.print(Text("forgotten", "dim"))
        elif text.startswith("/"):
            err.print(Text(HELP if text == "/help" else f"{text.split()[0]} is not known\n{HELP}", "dim"))
        elif text:
            _answer(conversation, text, voice, err)


def _answer(conversation: ChatSession, text: str, voice: AnswerVoice, err: Console) -> None:
    try:
        spoken, stopped = conversation.ask(text, voice)
    except AnswerFailed as failed:
        voice.end()
        err.print(Text(str(failed), "red"))
        return
    voice.end()
    err.print(Text(spoken.told(stopped), "dim"))


def _once(conversation: ChatSession) -> int:
    text = sys.stdin.read(MOST_PIPED_CHARACTERS + 1)
    if len(text) > MOST_PIPED_CHARACTERS:
        raise StartupError(f"the input is longer than {MOST_PIPED_CHARACTERS:,} characters")
    if not text.strip():
        raise StartupError("there is nothing to ask: the input is empty")
    voice = AnswerVoice(sys.stdout, styled=False)
    try:
        spoken, stopped = conversation.ask(text, voice)
    except AnswerFailed as failed:
        raise StartupError(str(failed)) from None
    voice.end()
    if sys.stderr.isatty():
        Console(stderr=True, highlight=False).print(Text(spoken.told(stopped), "dim"))
    return 130 if stopped else 0


def harmless(text: str) -> str:
    """Without control characters other than line breaks and tabs: what a model writes must not steer the terminal."""
    return "".join(one for one in text if one in "\n\t" or not (ord(one) < 32 or 127 <= ord(one) < 160))


def _refused(error: HTTPError) -> str:
    said = message(_object(error.read(MOST_EVENT_BYTES)), error.code)
    again = error.headers.get("retry-after", "")
    if error.code == 401:
        return f"{said}; give a key with --key"
    return f"{said} (try again in {again} s)" if again.isdigit() else said


def _words(error: object) -> str:
    said = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(said).split())[:500]


def _object(data: bytes) -> dict[str, Any]:
    """The JSON object; empty: it is something else."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
