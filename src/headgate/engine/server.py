"""Serves the engine through OpenAI's API: the handlers of all paths, on the event loop."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from headgate.config.engine import EngineConfig
from headgate.engine.answer import Answer, Wishes
from headgate.engine.bound import bounds_for
from headgate.engine.deep_check import DeepCheck
from headgate.engine.engine import Engine, EngineRequest, SequenceOutput
from headgate.engine.grammar.compiling import Compiling
from headgate.engine.grammar.grammar import Compiled, Grammars
from headgate.engine.intake import Intake
from headgate.engine.openai import AnswerFormat, ChatBody, StreamOptions, TextBody, TokenizeBody
from headgate.engine.prepare import LIMITS, Prepared, client_of, prepare
from headgate.engine.recommended import OPENAI
from headgate.engine.runner.emulated_sleep import SleepMode
from headgate.engine.runner.recent_steps import RecentSteps
from headgate.engine.status import PAGE_HEADERS, Emulation, EngineFigures, page, page_file
from headgate.engine.warmup import warm_up
from headgate.metrics.exposition import CONTENT_TYPE
from headgate.model.clock import Clock, wall
from headgate.model.errors import EngineFailed, Gone, InvalidRequest, NotReady, QueueFull, ServeError
from headgate.model.outcome import Outcome
from headgate.model.sequence import Sequence
from headgate.wire.body import json
from headgate.wire.errors import refusal_body
from headgate.wire.exchange import Exchange
from headgate.wire.router import Router, Routes

log = logging.getLogger(__name__)

TOKENIZE_INLINE = 4096
"""Maximum bytes of a body that is prepared on the event loop, where that costs less than handing it to a thread (about
0.3 ms)."""
MOST_PREPARING = 256
"""Maximum requests waiting for the tokenizing thread; more would only wait longer."""
MOST_COUNTED_BYTES = 1024 * 1024
"""Maximum bytes of a body at /tokenize: some ten times the longest context."""
MOST_COUNTING = 16
"""Maximum /tokenize requests waiting. They have a thread of their own, and delay no completion."""
STEPS_S = 60.0
"""Seconds of steps that GET /steps tells."""
WARMUP_LIMIT_S = 3.0
"""Maximum seconds for warm-up prompts; system prompts and adapters come on top."""


@dataclass(slots=True)
class _Watched:
    """A client's sequence and when its last output came."""

    sequence: Sequence
    last_at: float | None = None


class EngineServer:
    """The API's handlers, on the event loop. Until an engine is adopted and warm, completions are answered 503."""

    def __init__(self, config: EngineConfig, clock: Clock, emulation: Emulation | None = None) -> None:
        self.config = config
        self.emulation = emulation
        self.figures = EngineFigures(emulation)
        self.steps = RecentSteps(clock)
        self.phase = "loading"
        self.sleep_mode = SleepMode(0.0 if emulation is None else emulation.wake_s, lambda: self._engine, self._abort)
        naps: Routes = {
            ("POST", "/sleep"): self.sleep_mode.sleep,
            ("POST", "/wake_up"): self.sleep_mode.wake_up,
            ("GET", "/is_sleeping"): self.sleep_mode.is_sleeping,
        }
        self.router = Router(
            {
                ("POST", "/v1/chat/completions"): lambda exchange: self._complete(exchange, ChatBody),
                ("POST", "/v1/completions"): lambda exchange: self._complete(exchange, TextBody),
                ("POST", "/tokenize"): self._tokenize,
                ("GET", "/v1/models"): self._models,
                ("GET", "/health/live"): self._live,
                ("GET", "/health/ready"): self._ready,
                ("GET", "/health"): self._ready,
                ("GET", "/health/deep"): lambda exchange: self._deep.answer(exchange),
                ("GET", "/metrics"): self._metrics,
                ("GET", "/steps"): self._tell_steps,
                ("GET", "/"): self._page,
                ("GET", "/page/*"): self._page_file,
                **({} if emulation is None else naps),  # an engine with real weights has nowhere to put them
            }
        )
        self._clock = clock
        self._created = int(wall())
        self._engine: Engine | None = None
        self._intake: Intake | None = None
        self._listeners: dict[int, Callable[[SequenceOutput], None]] = {}
        self._watched: dict[int, _Watched] = {}
        self._loop = asyncio.get_running_loop()
        self._tokenizing = ThreadPoolExecutor(1, "tokenize")
        self._preparing = 0
        self._counter = ThreadPoolExecutor(1, "count")
        self._counting = 0
        self._deep = DeepCheck(clock, self._generate, self._engine_when_ready)
        self.compiling: Compiling | None = None
        """None: the runner follows no grammars."""

    # -- life -----------------------------------------------------------------------------------------

    def sink(self, said: list[SequenceOutput]) -> None:
        """Called on the engine's thread, once per step: one wake-up of the event loop for all sequences."""
        self._loop.call_soon_threadsafe(self._dispatch, said)

    def compile_aside(self, grammars: Grammars, library: Path) -> None:
        """Compiles grammars on threads of their own from now on. May be called from any thread."""
        self.compiling = Compiling(grammars, library, self._loop.call_soon_threadsafe)

    def adopt(self, engine: Engine, intake: Intake) -> None:
        self._engine, self._intake = engine, intake
        self.phase = "warming up"

    def record_phase(self, name: str, seconds: float) -> None:
        self.figures.cold_start[name] = seconds

    async def warm(self) -> None:
        engine, intake = self._engine, self._intake
        assert engine is not None
        assert intake is not None
        began = self._clock()
        pinned = [
            intake.tokenizer.encode_chat([{"role": "system", "content": text}], add_generation_prompt=False)
            for text in self.config.system_prompts
        ]
        intake.tokenizer.encode_chat([{"role": "user", "content": "The first chat compiles the template."}])
        text = intake.tokenizer.encode("The quick brown fox jumps over the lazy dog, and then does it again. ")
        dilation = 1.0 if self.emulation is None else self.emulation.dilation
        limit_s, step_time = WARMUP_LIMIT_S * dilation, engine.batcher.step_time
        await warm_up(self._generate, text, pinned, step_time, intake.context, limit_s, self._clock)
        self.record_phase("warm-up", self._clock() - began)
        self.phase = "ready"
        self.figures.ready = True

    def drain(self) -> None:
        """Turns readiness off first, so that gateways stop routing here; running requests continue."""
        self.phase = "draining"
        self.figures.ready = False

    async def _generate(self, prompt: list[int], pin: bool, priority: int = 0) -> None:
        """Generates one output token for a prompt of the server's own."""
        engine, intake = self._engine, self._intake
        if engine is None or intake is None:
            raise NotReady("the model is still loading")
        if self.sleep_mode.state != "awake":
            raise NotReady(f"the engine is {self.sleep_mode.state}")
        body = TextBody(prompt=list(prompt), max_tokens=1, temperature=0.0, ignore_eos=True, priority=priority)
        (sequence,), _ = intake.sequences(body, self._clock())
        future: asyncio.Future[None] = self._loop.create_future()

        def hear(said: SequenceOutput) -> None:
            if said.error is not None and not future.done():
                future.set_exception(said.error)
            elif said.finish is not None and not future.done():
                future.set_result(None)

        self._listeners[sequence.id] = hear
        engine.submit(EngineRequest(sequence, pin=pin))
        try:
            await future
        finally:
            if self._listeners.pop(sequence.id, None) is not None:
                engine.cancel(sequence.id)

    # -- completions ----------------------------------------------------------------------------------

    def _complete(self, exchange: Exchange, kind: type[ChatBody] | type[TextBody]) -> None:
        try:
            _, intake = self._engine_when_ready()
            if self.sleep_mode.holds(exchange, lambda: self._complete(exchange, kind)):
                return
        except ServeError as error:
            self._fail(exchange, error)
            return
        if len(exchange.body) <= TOKENIZE_INLINE:
            self._begin(exchange, prepare(intake, exchange, kind, self._clock))
            return

        def in_thread() -> None:
            self._loop.call_soon_threadsafe(self._prepared, exchange, prepare(intake, exchange, kind, self._clock))

        if self._preparing >= MOST_PREPARING:
            self._fail(exchange, QueueFull(f"{self._preparing} requests are being tokenized already"))
            return
        self._preparing += 1
        self._tokenizing.submit(in_thread)

    def _prepared(self, exchange: Exchange, prepared: Prepared | ServeError) -> None:
        self._preparing -= 1
        self._begin(exchange, prepared)

    def _begin(self, exchange: Exchange, prepared: Prepared | ServeError) -> None:
        if exchange.done:  # the client left while its prompt was tokenized
            self.figures.requests[Outcome.CANCELLED] += 1
        elif isinstance(prepared, ServeError):
            self._fail(exchange, prepared)
        elif prepared.rules is None or self.compiling is None:
            self._submit(exchange, prepared)
        else:
            grammar, param = prepared.rules

            def compiled(found: Compiled | ServeError) -> None:
                if exchange.done:
                    self.figures.requests[Outcome.CANCELLED] += 1
                elif isinstance(found, ServeError):
                    self._fail(exchange, found)
                else:
                    self._submit(exchange, prepared, found)

            self.compiling.compile(grammar, param, client_of(exchange.headers, prepared.body), compiled)

    def _submit(self, exchange: Exchange, prepared: Prepared, compiled: Compiled | None = None) -> None:
        engine, intake, body = self._engine, self._intake, prepared.body
        assert engine is not None
        assert intake is not None
        kind: Literal["chat", "text"] = "chat" if isinstance(body, ChatBody) else "text"
        name = ("chatcmpl-" if kind == "chat" else "cmpl-") + exchange.request_id
        emulated = None if self.emulation is None else self.emulation.fingerprint
        spelling, ids = intake.tokenizer.spelling, body.return_token_ids
        dialect = AnswerFormat(kind, name, self.config.served_name, int(wall()), spelling, ids, emulated)
        options = body.stream_options or StreamOptions()
        wishes = Wishes(
            stream=body.stream,
            n=body.n,
            usage=bool(options.include_usage),
            usage_always=bool(options.continuous_usage_stats),
            timings="x-headgate-timings" in exchange.headers,
            manner=prepared.manner,
            one_call=isinstance(body, ChatBody) and body.parallel_tool_calls is False,
        )
        answer = Answer(exchange, dialect, prepared.sequences, wishes, prepared.tokenize_ms, self._abandon)
        asked = {"messages": body.messages} if isinstance(body, ChatBody) else {"prompt": body.prompt}
        bounds = bounds_for(asked, body.runaway, body.generation_limit_ms)
        for sequence in prepared.sequences:
            self._listeners[sequence.id] = answer.hear
            self._watched[sequence.id] = _Watched(sequence)
            engine.submit(EngineRequest(sequence, prepared.stops, bounds=bounds, compiled=compiled))

    def _dispatch(self, said: list[SequenceOutput]) -> None:
        for one in said:
            listener = self._listeners.get(one.sequence_id)
            if listener is None:
                continue  # cancelled while the step ran
            self._measure(one)
            if one.finish is not None or one.error is not None:
                del self._listeners[one.sequence_id]
            try:
                listener(one)
            except Exception:  # one client's failure must not silence the other sequences of this step
                log.exception("sequence %d: its listener failed", one.sequence_id)

    def _measure(self, said: SequenceOutput) -> None:
        watched = self._watched.get(said.sequence_id)
        if watched is None:
            return
        figures, now, sequence = self.figures, self._clock(), watched.sequence
        if said.error is not None:
            figures.requests[said.error.outcome] += 1
        elif watched.last_at is None:
            figures.ttft[sequence.lane].add(now - sequence.arrived)
        else:
            figures.gap[sequence.lane].add(now - watched.last_at)
        watched.last_at = now
        if said.tokens:
            self._deep.spoke(now)
        if said.finish is not None and said.timings is not None:
            figures.requests[Outcome.COMPLETED] += 1
            figures.duration[sequence.lane].add(now - sequence.arrived)
            figures.queue[sequence.lane].add(said.timings.queue_ms / 1e3)
        if said.finish is not None or said.error is not None:
            del self._watched[said.sequence_id]

    def _abandon(self, sequences: list[Sequence]) -> None:
        """Cancels those of the sequences that still run: their client has left or failed."""
        assert self._engine is not None
        for sequence in sequences:
            if self._listeners.pop(sequence.id, None) is not None:
                del self._watched[sequence.id]
                self.figures.requests[Outcome.CANCELLED] += 1
                self._engine.cancel(sequence.id)

    def _abort(self) -> None:
        """Ends all requests of clients: the engine is put to sleep at once."""
        assert self._engine is not None
        for number in tuple(self._watched):
            self._engine.cancel(number)
            self._dispatch([SequenceOutput(number, "", error=EngineFailed("aborted: the engine was put to sleep"))])

    def _fail(self, exchange: Exchange, error: ServeError) -> None:
        self.figures.requests[error.outcome] += 1
        exchange.fail(error)

    def _engine_when_ready(self) -> tuple[Engine, Intake]:
        if self._engine is not None and self._engine.failed is not None:
            raise self._engine.failed
        if self._engine is None or self._intake is None or self.phase != "ready":
            raise NotReady(f"the engine is {self.phase}")
        return self._engine, self._intake

    # -- everything else --------------------------------------------------------------------------------

    def _tokenize(self, exchange: Exchange) -> None:
        size = len(exchange.body)
        if size > MOST_COUNTED_BYTES:
            raise InvalidRequest(f"/tokenize takes bodies of at most {MOST_COUNTED_BYTES} bytes, got {size}")
        if self._counting >= MOST_COUNTING:
            raise QueueFull(f"{self._counting} texts wait to be tokenized already")
        self._counting += 1

        def answer_with(status: int, body: bytes) -> None:
            self._counting -= 1
            exchange.respond(status, body)

        def fail_with(error: ServeError) -> None:
            self._counting -= 1
            exchange.fail(error)

        def in_thread() -> None:
            try:
                if exchange.done:
                    raise Gone("the client left before its text was tokenized")
                _, intake = self._engine_when_ready()
                tokens = intake.tokenized(json.decode(exchange.body, TokenizeBody, LIMITS))
                answer = {"count": len(tokens), "max_model_len": intake.context, "tokens": tokens}
            except ServeError as error:
                self._loop.call_soon_threadsafe(fail_with, error)
            except Exception:
                log.exception("a text could not be tokenized")
                self._loop.call_soon_threadsafe(fail_with, EngineFailed("internal error"))
            else:
                self._loop.call_soon_threadsafe(answer_with, 200, msgspec.json.encode(answer))

        self._counter.submit(in_thread)

    def _models(self, exchange: Exchange) -> None:
        context = self.config.context if self._intake is None else self._intake.context
        card: dict[str, Any] = {
            "id": self.config.served_name,
            "object": "model",
            "created": self._created,
            "owned_by": "headgate" if self.emulation is None else "headgate-emulated",
            "max_model_len": context,
        }
        if self._intake is not None and self._intake.recommended.shown:
            card["default_sampling_params"] = self._intake.recommended.shown
        exchange.respond(200, msgspec.json.encode({"object": "list", "data": [card]}))

    def _live(self, exchange: Exchange) -> None:
        if self._engine is not None and self._engine.failed is not None:
            exchange.fail(self._engine.failed)
        else:
            exchange.respond(200, b'{"status":"live"}')

    def _ready(self, exchange: Exchange) -> None:
        try:
            self._engine_when_ready()
        except ServeError as error:
            exchange.fail(error)
        else:
            exchange.respond(200, b'{"status":"ready"}')

    def _metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, self.figures.text(self._engine, self.sleep_mode.state), CONTENT_TYPE)

    def _tell_steps(self, exchange: Exchange) -> None:
        exchange.respond(200, self.steps.told(STEPS_S))

    def _page(self, exchange: Exchange) -> None:
        recommended = OPENAI if self._intake is None else self._intake.recommended
        body = page(
            self.config.served_name, self.phase, self._engine, self.figures.cold_start, self.emulation, recommended
        )
        exchange.respond(200, body, "text/html; charset=utf-8", PAGE_HEADERS)

    def _page_file(self, exchange: Exchange) -> None:
        found = page_file(exchange.path.removeprefix("/page/"))
        if found is None:
            exchange.respond(404, refusal_body(404, f"no such path: {exchange.path[:256]}"))
        else:
            exchange.respond(200, *found, PAGE_HEADERS)
