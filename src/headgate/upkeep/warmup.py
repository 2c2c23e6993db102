"""Warms a replica up: before its first request, again after it was out, and while it gets no requests.

First one token of a short prompt: a replica that can't generate that is not used. Then what makes later requests quick:
adapters, system prompts, and prompts as long as each lane's for as long as there is time. A replica that fails to load
an adapter is used all the same; one that breaks at a prompt is not. A 4xx answer is about the gateway's question (the
replica's context may be shorter than the prompt), and counts for nothing. A replica that is full with other clients'
requests generates already, and is used as it is when there is no more time. None of these is a client's request: they
leave no record.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from headgate.config.gateway import ClassifyConfig
from headgate.config.warm import AdapterConfig, WarmConfig
from headgate.model.clock import Clock
from headgate.model.dialect import Dialect
from headgate.model.errors import ReplicaFailed, ReplicaStalled
from headgate.model.labels import plain
from headgate.model.replica import Replica
from headgate.replica.http import OWN_BYTES, Connections, Once, request_head
from headgate.replica.openai import FULL, flaw_in, quoted, read_error

PURPOSE: Final = ("x-headgate-purpose", "warm-up")
"""A header that marks warm-up requests in an engine's log."""
SHORT_TOKENS: Final = 16
BUSY: Final = (408, *FULL)
DENIED: Final = (401, 403)
"""Status codes of a replica that wants a key, or another one."""
BUSY_PAUSE_S: Final = 0.5
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SENTENCE: Final = "The quick brown fox jumps over the lazy dog. "
SENTENCE_TOKENS: Final = 10

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class WarmupStep:
    what: str
    tokens: int
    """Tokens of the prompt, about."""
    took_s: float
    status: int
    """HTTP status of the answer. 0: there was none, or it was unusable."""
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def broke(self) -> bool:
        """Whether the replica failed at this step. 4xx and 501 are about the question, and being busy is about other
        requests; but a denied key is about all questions."""
        if self.status in DENIED or (self.status < 400 and self.status != 200):
            return True
        return self.status >= 500 and self.status not in (*BUSY, 501)


@dataclass(frozen=True, slots=True)
class Warmed:
    ok: bool
    why: str
    """What went wrong, also where that did no harm. Empty: nothing did."""
    took_s: float
    steps: tuple[WarmupStep, ...] = ()
    adapters: bool = False
    """Whether loading adapters was tried, so that the replica may list more models now."""
    full: bool = False
    """Whether the replica was full, so that nothing is known of what it generates."""
    denied: bool = False
    """Whether the replica wants a key, or another one."""


@dataclass(frozen=True, slots=True)
class WarmupTarget:
    """The replica to warm, and what is known of it."""

    replica: Replica
    dialect: Dialect
    connections: Connections
    models: tuple[str, ...] = ()
    context: int | None = None
    """Maximum tokens of a sequence. None: unknown."""

    @property
    def model(self) -> str:
        return self.replica.served_as or self.replica.model or (self.models[0] if self.models else "default")


class Warmup:
    """Warms all replicas: what is to be done, and in how much time."""

    def __init__(self, config: WarmConfig, lines: ClassifyConfig, clock: Clock) -> None:
        self.config = config
        self._lines = lines
        self._clock = clock

    def has_work(self, dialect: Dialect) -> bool:
        """Whether there is anything to do: Headgate's own engine warms itself, and only system prompts, which the
        gateway alone knows, are left."""
        return self.config.before_use and (not dialect.warms_itself or bool(self.config.system_prompts))

    async def warm(self, target: WarmupTarget, *, all_of_it: bool = False) -> Warmed:
        """Takes all steps. `all_of_it`: also those that Headgate's own engine has done by itself."""
        began, steps = self._clock(), []
        prompts = all_of_it or not target.dialect.warms_itself
        if prompts:
            first = await self._first(target)
            steps.append(first)
            full = first.status in FULL
            if first.broke or first.status in BUSY:
                why = first.note if first.status in DENIED else f"no first token: {first.note}"
                denied = first.status in DENIED
                return Warmed(full, why, self._clock() - began, tuple(steps), full=full, denied=denied)
        loaded = await self._adapters(target)
        steps += loaded
        steps += [await self._ask(target, *ask, self.config.timeout_s) for ask in self._system_prompts(target)]
        if prompts:
            steps += await self._shapes(target)
        broke = next((step for step in steps if step.broke), None)
        missing = next((step for step in loaded if not step.ok), None)
        why = f"{broke.what}: {broke.note}" if broke else f"{missing.what}: {missing.note}" if missing else ""
        alive = broke is None or broke in loaded  # without an adapter the replica still serves everything else
        return Warmed(alive, why, self._clock() - began, tuple(steps), bool(loaded))

    async def keep_alive(self, target: WarmupTarget) -> bool | None:
        """Sends a short prompt and the system prompts, so that the replica's caches of code and of prompts stay.
        Returns whether it generated; None: it was full."""
        step = await self._ask(target, "keep-alive", SHORT_TOKENS, _user(_text("again", SHORT_TOKENS)), None, 20.0)
        for ask in self._system_prompts(target):
            await self._ask(target, *ask, self.config.timeout_s)
        return None if step.status in FULL else not step.broke

    # -- what is asked ---------------------------------------------------------------------------------------

    async def _first(self, target: WarmupTarget) -> WarmupStep:
        """Asks for the first token, again and again while the replica is busy with other requests and there is time."""
        ends = self._clock() + self.config.timeout_s
        while True:
            left_s = max(0.1, ends - self._clock())
            step = await self._ask(target, "first", SHORT_TOKENS, _user(_text("first", SHORT_TOKENS)), None, left_s)
            if step.status not in BUSY or self._clock() + BUSY_PAUSE_S >= ends:
                return step
            await asyncio.sleep(BUSY_PAUSE_S)

    async def _shapes(self, target: WarmupTarget) -> list[WarmupStep]:
        steps: list[WarmupStep] = []
        ends = self._clock() + self.config.limit_s
        # How long the other steps will take is guessed from this one: the very first compiled, allocated and loaded.
        last = await self._ask(target, "again", SHORT_TOKENS, _user(_text("again", SHORT_TOKENS)), None, 20.0)
        steps.append(last)
        for lane, tokens in self.shapes(target.replica.lanes, target.context):
            left_s = ends - self._clock()
            if last.status in BUSY or last.broke or last.took_s * tokens / last.tokens > left_s:
                break  # a longer prompt would not do better
            last = await self._ask(target, lane, tokens, _user(_text(lane, tokens)), None, left_s)
            if last.status == 0 and self._clock() >= ends:
                break  # the time was over, which is no fault of the replica
            steps.append(last)
        return steps

    def shapes(self, lanes: Iterable[str], context: int | None) -> list[tuple[str, int]]:
        """The typical prompt tokens of each lane, the shortest first and none twice. `lanes` empty: all lanes."""
        lines, most = self._lines, self.config.longest_tokens
        if context is not None:
            most = min(most, int(context * 0.7))  # the sentence's tokens are counted roughly
        typical = {
            "fast": lines.fast_below_tokens // 2,
            "slow": 2 * lines.fast_below_tokens,
            "batch": 2 * lines.fast_below_tokens,
            "long": lines.long_above_tokens + 1,
        }
        wanted = set(lanes) or set(typical)
        found = {min(tokens, most): name for name, tokens in reversed(typical.items()) if name in wanted}
        return [(name, tokens) for tokens, name in sorted(found.items()) if tokens > SHORT_TOKENS]

    def _system_prompts(self, target: WarmupTarget) -> list[tuple[str, int, list[dict[str, str]], str | None]]:
        return [
            (
                f"system prompt {number}",
                max(1, len(text) // 4),
                [{"role": "system", "content": text}, *_user(".")],
                None,
            )
            for number, text in enumerate(self.config.system_prompts, 1)
        ]

    async def _adapters(self, target: WarmupTarget) -> list[WarmupStep]:
        path = target.dialect.load_adapter
        if path is None:
            return []
        return [await self._load(target, path, one) for one in self.config.adapters if one.name not in target.models]

    async def _load(self, target: WarmupTarget, path: str, adapter: AdapterConfig) -> WarmupStep:
        body = {"lora_name": adapter.name, "lora_path": adapter.path}
        what = f"adapter {adapter.name}"
        step = await self._post(target.connections, what, 1, path, body, self.config.timeout_s)
        if step.status == 404 and target.dialect.kind == "vllm":
            return replace(step, note="it loads none: start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True")
        if step.ok:  # the adapter's first request is slow too
            step = await self._ask(target, what, 1, _user("."), adapter.name, self.config.timeout_s)
        return step

    async def _ask(
        self,
        target: WarmupTarget,
        what: str,
        tokens: int,
        messages: list[dict[str, str]],
        model: str | None,
        timeout_s: float,
    ) -> WarmupStep:
        """Sends a chat, or a text completion where there are no chats."""
        body: dict[str, Any] = {"model": model or target.model, "max_tokens": 1, "temperature": 0}
        step = await self._post(target.connections, what, tokens, CHAT, {**body, "messages": messages}, timeout_s)
        if step.status not in (400, 404, 405, 422, 501):
            return step
        text = "\n".join(message["content"] for message in messages)
        again = await self._post(target.connections, what, tokens, TEXT, {**body, "prompt": text}, timeout_s)
        return again if again.ok else step

    async def _post(
        self, connections: Connections, what: str, tokens: int, path: str, body: object, timeout_s: float
    ) -> WarmupStep:
        began = self._clock()
        status, note = 0, ""
        try:
            status, answer = await _once(connections, path, _encode(body), timeout_s)
        except ReplicaFailed as error:
            note = error.message
        else:
            note = "" if status == 200 else _said(connections, path, status, answer)
            if status == 200 and path in (CHAT, TEXT) and (why := flaw_in(answer, "choices")):
                status, note = 0, why
        return WarmupStep(what, tokens, self._clock() - began, status, note)


async def _once(connections: Connections, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
    """Like Connections.ask, with a header that says what the request is for."""
    probe = Once(asyncio.get_running_loop().create_future())
    call = connections.send(request_head(path, connections.host, (PURPOSE,)), body, probe)
    call.most_bytes = OWN_BYTES
    try:
        async with asyncio.timeout(timeout_s):
            return await probe.answer
    except TimeoutError:
        raise ReplicaStalled(f"{path} did not answer within {plain(timeout_s)} s") from None
    finally:
        call.cancel()


def _said(connections: Connections, path: str, status: int, answer: bytes) -> str:
    """What the replica answered, in words, on one line."""
    if status in DENIED:
        return connections.denied(path, status)
    return f"it answered {status}: {quoted(read_error(answer))}"[:300]


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _text(salt: str, tokens: int) -> str:
    """A prompt of about this many tokens. Prompts begin differently, or all but the first would be found in the prefix
    cache."""
    return f"{salt}: {SENTENCE * max(1, tokens // SENTENCE_TOKENS)}"
