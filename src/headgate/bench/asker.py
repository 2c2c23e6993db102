"""Prepares and sends requests to a server: the address, the API key, and the bytes of head and body."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from headgate.model.clock import Clock
from headgate.model.errors import ReplicaFailed, StartupError, UsageError
from headgate.replica.connection import Call, Listener, PoolLimits
from headgate.replica.http import UNREACHED, Connections, Once, request_head
from headgate.workload.arrival import Arrival
from headgate.workload.prompt import prompt_text

Endpoint = Literal["chat", "completions"]
PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
LIMITS = PoolLimits(max_idle=8192, connect_timeout_s=10.0)
PROBE_S = 5.0
MOST_TURNS = 1000
"""Loop iterations that close() waits at most for closed connections to go away."""
Prepared = tuple[Connections, bytes, bytes]

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The settings that all requests of a run share."""

    endpoint: Endpoint = "chat"
    model: str | None = None
    """Model to request. None: the arrival's own, else the first that the server lists."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """API key by tenant; the key under "" is for tenants without one of their own."""
    ignore_eos: bool = False
    """Generate as many tokens as requested, past the model's own end. vLLM, SGLang and Headgate's engine know this
    option."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the body."""
    stream: bool | None = None
    """Whether to stream. None: as each arrival says."""
    seed: int = 0
    pin: str | None = None
    """The model version to request from Headgate; None: the version that Headgate chooses."""


class Asker:
    """Sends requests to one or more addresses. Built and used within one running loop."""

    def __init__(self, urls: tuple[str, ...], asking: Asking, clock: Clock, salt: int = 0) -> None:
        """The addresses take turns. Another salt makes all texts different, so that one run's prefix cache entries do
        not help the next run."""
        self.asking = asking
        self.urls = tuple(address(url) for url in urls)
        self._connections = [Connections(url, clock=clock, limits=LIMITS) for url in self.urls]
        self._turns = cycle(self._connections)
        self._salt = salt
        self._rng = random.Random(f"{asking.seed}/{salt}")
        self._heads: dict[tuple[str, str | None, str | None], bytes] = {}
        self._model = asking.model
        self._found_model: str | None = None
        self._tail = self._make_tail()

    @property
    def model(self) -> str:
        return self._model or self._found_model or ""

    @property
    def connections(self) -> int:
        return sum(connections.count for connections in self._connections)

    async def probe(self) -> None:
        """Checks that every address answers, and finds the first model it lists. Raises StartupError."""
        for connections in self._connections:
            status, body = await self._ask_models(connections)
            models = _model_names(body) if status == 200 else []
            if status in (401, 403):
                raise StartupError(
                    f"{connections.url} wants an API key, none or another than was given: give it with --key KEY"
                )
            if self._found_model is None and models:
                self._found_model = models[0]
            if not self._model and not models:
                raise StartupError(
                    f"{connections.url}/v1/models names no model (status {status}): say which with --model NAME"
                )

    async def _ask_models(self, connections: Connections) -> tuple[int, bytes]:
        once = Once(asyncio.get_running_loop().create_future())
        call = connections.send(self._head_of(connections, "/v1/models", "", None, "GET"), b"", once)
        try:
            async with asyncio.timeout(PROBE_S):
                return await once.answer
        except TimeoutError:
            raise StartupError(
                f"{connections.url} does not answer within {PROBE_S:g} s; is it the right address?"
            ) from None
        except ReplicaFailed as error:
            why = error.message.removeprefix(UNREACHED).replace("the replica", "it")
            raise StartupError(f"{connections.url} can't be reached: {why}; is it running?") from None
        finally:
            call.cancel()

    def prepare(self, arrival: Arrival) -> Prepared:
        """Builds all that can be built before the request is due."""
        connections = next(self._turns)
        tenant, lane = arrival.tenant or "", arrival.lane
        known = (tenant, lane, connections.url)
        head = self._heads.get(known)
        if head is None:
            head = self._heads[known] = self._head_of(connections, PATHS[self.asking.endpoint], tenant, lane)
        if arrival.session is not None:
            head += b"x-headgate-session: %b\r\n" % arrival.session.encode("ascii", "replace")
        for name, promised_s in ((b"ttft", arrival.ttft_s), (b"tpot", arrival.tpot_s)):
            if promised_s is not None:
                head += b"x-headgate-%b-ms: %.3f\r\n" % (name, promised_s * 1e3)
        return connections, head, self._body(arrival)

    def send(self, prepared: Prepared, listener: Listener) -> Call:
        connections, head, body = prepared
        return connections.send(head, body, listener)

    def streams(self, arrival: Arrival) -> bool:
        return arrival.stream if self.asking.stream is None else self.asking.stream

    async def close(self) -> None:
        for connections in self._connections:
            connections.close()
        for _ in range(MOST_TURNS):
            if not self.connections:
                break
            await asyncio.sleep(0)

    def _head_of(
        self, connections: Connections, path: str, tenant: str, lane: str | None, method: str = "POST"
    ) -> bytes:
        keys = self.asking.keys
        key = keys.get(tenant, keys.get("", ""))
        headers = [("x-headgate-timings", "1")]
        headers += [("authorization", f"Bearer {key}")] if key else []
        headers += [("x-headgate-lane", lane)] if lane else []
        headers += [("x-headgate-version", self.asking.pin)] if self.asking.pin else []
        return request_head(path, connections.host, tuple(headers), method)

    def _make_tail(self) -> bytes:
        """The end of every body, with the comma before it."""
        extra: dict[str, Any] = {"ignore_eos": True} if self.asking.ignore_eos else {}
        extra |= self.asking.extra
        return b"," + _encode(extra)[1:] if extra else b"}"

    def _body(self, arrival: Arrival) -> bytes:
        asked = arrival.prompt
        chat = self.asking.endpoint == "chat"
        if asked is None:
            text = prompt_text(arrival, self._rng, self._salt).encode()  # plain words: nothing to escape
            prompt = b'[{"role":"user","content":"%b"}]' % text if chat else b'"%b"' % text
        elif chat and isinstance(asked, str):
            prompt = _encode([{"role": "user", "content": asked}])
        else:
            prompt = _encode(asked)
        model = _encode(self._model or arrival.model or self._found_model or "")
        return b'{"model":%b,"%b":%b,"max_tokens":%d%b%b' % (
            model,
            b"messages" if chat else b"prompt",
            prompt,
            arrival.output_tokens,
            b',"stream":true,"stream_options":{"include_usage":true}' if self.streams(arrival) else b"",
            self._tail,
        )


def address(url: str) -> str:
    """The address to connect to, from the forms that people paste. Raises StartupError."""
    if url.startswith("unix:"):
        return url
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        known = False
    if not known or parts.path.rstrip("/") not in ("", "/v1", *PATHS.values()) or parts.query:
        raise UsageError(f"{url!r} is no address: say http://host:port, https://host:port or unix:/path")
    return f"{parts.scheme}://{parts.netloc}"


def _model_names(body: bytes) -> list[str]:
    try:
        listed = msgspec.json.decode(body)
        return [model["id"] for model in listed["data"] if isinstance(model["id"], str)]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return []
