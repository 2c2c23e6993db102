"""Reports what the engine does: metrics for Prometheus, and a plain page for people."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final

from headgate import __version__
from headgate.engine.engine import Engine
from headgate.engine.recommended import Recommended
from headgate.engine.runner.emulated_runner import EmulatedRunner
from headgate.metrics.exposition import Exposition, Family
from headgate.metrics.histogram import DURATION_EDGES, FIRST_TOKEN_EDGES, TOKEN_EDGES, Edges, Histogram
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome

REQUESTS: Final = Family("headgate_engine_requests_total", "counter", "Requests by how they ended", "outcome")
TTFT: Final = Family(
    "headgate_engine_time_to_first_token_seconds", "histogram", "First byte of the request to first token", "lane"
)
GAP: Final = Family("headgate_engine_inter_token_seconds", "histogram", "Between two tokens of one sequence", "lane")
DURATION: Final = Family(
    "headgate_engine_request_duration_seconds", "histogram", "First byte of the request to last token", "lane"
)
QUEUE: Final = Family("headgate_engine_queue_seconds", "histogram", "Waiting for a slot", "lane")
COLD_START: Final = Family("headgate_engine_cold_start_seconds", "gauge", "Cold start by phase", "phase")
READY: Final = Family("headgate_engine_ready", "gauge", "1 once warm-up is over")
EMULATED: Final = Family(
    "headgate_engine_emulated",
    "gauge",
    "1 where nothing is computed; every time here is stretched by the dilation",
    "profile",
    "dilation",
)
ASLEEP: Final = Family("headgate_engine_asleep", "gauge", "1 from being told to sleep until awake; emulated ones only")
KV_MEMORY: Final = Family(
    "headgate_engine_kv_memory_bytes", "gauge", "KV memory held on the device, 0 while asleep; emulated engines only"
)
WAITING: Final = Family("headgate_engine_sequences_waiting", "gauge", "Sequences waiting for a slot")
RUNNING: Final = Family("headgate_engine_sequences_running", "gauge", "Sequences in a slot")
SLOTS: Final = Family("headgate_engine_slots", "gauge", "Sequences that fit at once")
KV_USAGE: Final = Family("headgate_engine_kv_usage_ratio", "gauge", "KV blocks owned over all")
KV_BLOCKS: Final = Family("headgate_engine_kv_blocks", "gauge", "KV blocks by what they hold", "state")
PROMPT: Final = Family(
    "headgate_engine_prompt_tokens_total", "counter", "Prompt tokens by where they came from", "source"
)
GENERATED: Final = Family("headgate_engine_generation_tokens_total", "counter", "Tokens generated")
PREEMPTIONS: Final = Family(
    "headgate_engine_preemptions_total", "counter", "Sequences that had to give up their slot", "kind"
)
EVICTIONS: Final = Family("headgate_engine_prefix_evictions_total", "counter", "Cached prefixes that lost their blocks")
DRAFTS: Final = Family("headgate_engine_draft_tokens_total", "counter", "Drafted tokens by verdict", "verdict")
STEPS: Final = Family("headgate_engine_step_seconds", "summary", "Whole steps")
RUNS: Final = Family("headgate_engine_run_seconds", "summary", "Inside the model library")
BEHIND: Final = Family(
    "headgate_engine_emulation_behind_seconds_total", "counter", "Modelled time that this machine was too slow to keep"
)
STEP_MODEL: Final = Family("headgate_engine_step_model_seconds", "gauge", "Fitted step time by term", "term")
TERMS: Final = ("fixed", "prefill", "decode", "context")


@dataclass(frozen=True, slots=True)
class Emulation:
    """Marks an engine that computes nothing: its steps take the time that a profile gives. Metrics, page and answers
    say so."""

    profile: str
    dilation: float = 1.0
    """Real seconds per second of the profile."""
    cold_start_s: float = 0.0
    """Time that loading the weights would take, in real seconds."""
    wake_s: float = 0.0
    """Time that waking up from sleep takes, in real seconds."""

    def __str__(self) -> str:
        stretched = f", time stretched {self.dilation:g} times" if self.dilation != 1.0 else ""
        return f"{self.profile}: no model runs, the text is placeholder{stretched}"

    @property
    def fingerprint(self) -> str:
        return f"emulated-{self.profile}" + (f"-x{self.dilation:g}" if self.dilation != 1.0 else "")


class EngineFigures:
    """What the event loop counts, and the page of metrics. Labels are lanes and outcomes, so their number is
    bounded."""

    def __init__(self, emulation: Emulation | None = None) -> None:
        first, between, whole = Edges(FIRST_TOKEN_EDGES), Edges(TOKEN_EDGES), Edges(DURATION_EDGES)
        self.requests = dict.fromkeys(Outcome, 0)
        self.ttft = _by_lane(first)
        self.gap = _by_lane(between)
        self.duration = _by_lane(whole)
        self.queue = _by_lane(first)
        self.cold_start: dict[str, float] = {}
        """Seconds by phase."""
        self.ready = False
        self._emulation = emulation
        self._page = Exposition()

    def text(self, engine: Engine | None, state: str = "awake") -> bytes:
        """Returns the page of metrics. `engine` None: it is still loading. `state`: whether it sleeps."""
        page = self._page
        for outcome, number in self.requests.items():
            page.sample(REQUESTS, (outcome.value,), number)
        by_family = {TTFT: self.ttft, GAP: self.gap, DURATION: self.duration, QUEUE: self.queue}
        for family, histograms in by_family.items():
            for lane, histogram in histograms.items():
                page.histogram(family, (lane,), histogram)
        for phase, seconds in self.cold_start.items():
            page.sample(COLD_START, (phase,), seconds)
        page.sample(READY, (), int(self.ready))
        if self._emulation is not None:
            page.sample(EMULATED, (self._emulation.profile, f"{self._emulation.dilation:g}"), 1)
            page.sample(ASLEEP, (), int(state != "awake"))
            if engine is not None:
                held = 0 if state in ("asleep", "waking") else engine.batcher.ledger.blocks
                page.sample(KV_MEMORY, (), held * engine.batcher.ledger.block_tokens * engine.runner.bytes_per_token)
        if engine is not None:
            write_engine(page, engine)
        return page.render()


def _by_lane(edges: Edges) -> defaultdict[str, Histogram]:
    made: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(edges))
    for lane in LANES:
        made[lane]  # a series that is there from the start can be seen to rise
    return made


def write_engine(page: Exposition, engine: Engine) -> None:
    """Writes what the engine's thread counts. They are plain numbers: reading needs no lock."""
    batcher, runner = engine.batcher, engine.runner
    ledger, counts = batcher.ledger, batcher.counts
    page.sample(WAITING, (), len(batcher.waiting))
    page.sample(RUNNING, (), len(batcher.running))
    page.sample(SLOTS, (), runner.slots)
    page.sample(KV_USAGE, (), ledger.owned_blocks / ledger.blocks)
    page.sample(KV_BLOCKS, ("owned",), ledger.owned_blocks)
    page.sample(KV_BLOCKS, ("cached",), ledger.cached_blocks)
    page.sample(KV_BLOCKS, ("free",), ledger.blocks - ledger.owned_blocks - ledger.cached_blocks)
    page.sample(KV_BLOCKS, ("host",), ledger.host_used)
    page.sample(PROMPT, ("computed",), counts.prefilled)
    page.sample(PROMPT, ("cached",), counts.cached)
    page.sample(GENERATED, (), counts.generated)
    page.sample(PREEMPTIONS, ("swap",), counts.swaps)
    page.sample(PREEMPTIONS, ("recompute",), counts.recomputes)
    page.sample(EVICTIONS, (), ledger.evictions)
    page.sample(DRAFTS, ("accepted",), counts.accepted)
    page.sample(DRAFTS, ("refused",), counts.drafted - counts.accepted)
    page.summary(STEPS, counts.steps, engine.spent.step_s)
    if isinstance(runner, EmulatedRunner):
        page.sample(BEHIND, (), runner.behind_s)
    page.summary(RUNS, counts.steps, runner.model_s)
    for term, value in zip(TERMS, batcher.step_time.coefficients, strict=True):
        page.sample(STEP_MODEL, (term,), value)


def page(
    model_name: str,
    phase: str,
    engine: Engine | None,
    cold_start: dict[str, float],
    emulation: Emulation | None,
    recommended: Recommended,
) -> bytes:
    """The page for people: one line that says whether all is well, the figures, and the rest in rows."""
    level, verdict = _verdict(phase, engine)
    vitals: list[tuple[str, str]] = []
    rows: list[tuple[str, str]] = []
    if emulation is not None:
        rows.append(("Emulated", str(emulation)))
    if recommended.shown:
        settings = ", ".join(f"{name} {value:g}" for name, value in recommended.shown.items())
        rows.append(("Sampling by default", f"{settings} ({recommended.source})"))
    if engine is not None:
        batcher, counts = engine.batcher, engine.batcher.counts
        ledger = batcher.ledger
        vitals = [
            ("Running", f"{len(batcher.running)} of {engine.runner.slots}"),
            ("Waiting", str(len(batcher.waiting))),
            ("KV in use", f"{100 * ledger.owned_blocks / ledger.blocks:.0f} %"),
            ("Tokens so far", f"{counts.generated:,}"),
            ("Preempted", str(counts.swaps + counts.recomputes)),
        ]
        rows += [
            ("KV cache", f"{ledger.cached_blocks} of {ledger.blocks} blocks hold cached prefixes"),
            ("Prompt tokens", f"{counts.prefilled:,} computed, {counts.cached:,} from cache"),
            ("Preempted", f"{counts.swaps} swapped, {counts.recomputes} recomputed"),
        ]
    rows += [(f"Cold start: {name}", f"{seconds:.2f} s") for name, seconds in cold_start.items()]
    return (
        _file("page.html")
        .decode()
        .format(
            level=level,
            verdict=escape(verdict),
            version=__version__,
            model=escape(model_name) + (" · emulated" if emulation is not None else ""),
            vitals="".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in vitals),
            rows="".join(
                f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows
            ),
        )
        .encode()
    )


def _verdict(phase: str, engine: Engine | None) -> tuple[str, str]:
    """The level and the words, as on the gateway's page."""
    if engine is not None and engine.failed is not None:
        return "critical", f"Down: {engine.failed.message}"
    if phase != "ready" or engine is None:
        return "warning", f"Not ready: {phase}"
    running, waiting = len(engine.batcher.running), len(engine.batcher.waiting)
    if not running and not waiting:
        return "idle", f"Idle and ready · 0 of {engine.runner.slots} slots"
    return "ok", f"Serving · {running} of {engine.runner.slots} slots · {waiting} waiting"


PAGE_TYPES: Final = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""Files that the page refers to, below page/."""
PAGE_HEADERS: Final = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
)


@cache
def _file(name: str) -> bytes:
    return files("headgate.engine").joinpath(name).read_bytes()


def page_file(name: str) -> tuple[bytes, str] | None:
    """A file of the page and its content type. None: there is no such file."""
    kind = PAGE_TYPES.get(name)
    return None if kind is None else (_file(name), kind)
