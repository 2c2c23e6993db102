"""Reports what the engine does: metrics for Prometheus, and a plain page for people."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from headgate import __version__
from headgate.engine.engine import Engine
from headgate.engine.recommended import Recommended
from headgate.engine.runner.emulated_runner import EmulatedRunner
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome

TTFT_EDGES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
GAP_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DURATION_EDGES = tuple(0.01 * 2**power for power in range(14))
disable_created_metrics()  # type: ignore[no-untyped-call]  # a creation time for every series doubles what is scraped
Family = CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily


@dataclass(frozen=True, slots=True)
class Emulation:
    """Marks an engine that computes nothing: its steps take the time that a profile gives. Metrics, page and answers
    say so."""

    profile: str
    dilation: float = 1.0
    """Real seconds per second of the profile."""
    cold_start_s: float = 0.0
    """Time that loading the weights would take, in real seconds."""

    def __str__(self) -> str:
        stretched = f", time stretched {self.dilation:g} times" if self.dilation != 1.0 else ""
        return f"{self.profile}: no model runs, the text is placeholder{stretched}"

    @property
    def fingerprint(self) -> str:
        return f"emulated-{self.profile}" + (f"-x{self.dilation:g}" if self.dilation != 1.0 else "")


class EngineFigures:
    """The metrics that the event loop counts. Labels are lanes and outcomes, so their number is bounded."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "headgate_engine_requests", "Requests by how they ended", ["outcome"], registry=registry
        )
        self.ttft = Histogram(
            "headgate_engine_time_to_first_token_seconds", "First byte of the request to first token", ["lane"],
            buckets=TTFT_EDGES, registry=registry,
        )  # fmt: skip
        self.gap = Histogram(
            "headgate_engine_inter_token_seconds", "Between two tokens of one sequence", ["lane"],
            buckets=GAP_EDGES, registry=registry,
        )  # fmt: skip
        self.duration = Histogram(
            "headgate_engine_request_duration_seconds", "First byte of the request to last token", ["lane"],
            buckets=DURATION_EDGES, registry=registry,
        )  # fmt: skip
        self.queue = Histogram(
            "headgate_engine_queue_seconds", "Waiting for a slot", ["lane"], buckets=TTFT_EDGES, registry=registry
        )
        self.cold_start = Gauge(
            "headgate_engine_cold_start_seconds", "Cold start by phase", ["phase"], registry=registry
        )
        self.ready = Gauge("headgate_engine_ready", "1 once warm-up is over", registry=registry)
        self.emulated = Gauge(
            "headgate_engine_emulated", "1 where nothing is computed; every time here is stretched by the dilation",
            ["profile", "dilation"], registry=registry,
        )  # fmt: skip
        for lane in LANES:
            for histogram in (self.ttft, self.gap, self.duration, self.queue):
                histogram.labels(lane)
        for outcome in Outcome:
            self.requests.labels(outcome.value)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class EngineCollector(Collector):
    """The metrics that the engine thread counts, read at each scrape. They are plain numbers: reading needs no lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Family]:
        batcher, spent = self._engine.batcher, self._engine.spent
        ledger, counts = batcher.ledger, batcher.counts
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        yield gauge("headgate_engine_sequences_waiting", "Sequences waiting for a slot", len(batcher.waiting))
        yield gauge("headgate_engine_sequences_running", "Sequences in a slot", len(batcher.running))
        yield gauge("headgate_engine_slots", "Sequences that fit at once", self._engine.runner.slots)
        yield gauge("headgate_engine_kv_usage_ratio", "KV blocks owned over all", ledger.owned_blocks / ledger.blocks)
        blocks = gauge("headgate_engine_kv_blocks", "KV blocks by what they hold", labels=["state"])
        blocks.add_metric(["owned"], ledger.owned_blocks)
        blocks.add_metric(["cached"], ledger.cached_blocks)
        blocks.add_metric(["free"], ledger.blocks - ledger.owned_blocks - ledger.cached_blocks)
        blocks.add_metric(["host"], ledger.host_used)
        yield blocks
        prompt = counter("headgate_engine_prompt_tokens", "Prompt tokens by where they came from", labels=["source"])
        prompt.add_metric(["computed"], counts.prefilled)
        prompt.add_metric(["cached"], counts.cached)
        yield prompt
        yield counter("headgate_engine_generation_tokens", "Tokens generated", counts.generated)
        preempted = counter("headgate_engine_preemptions", "Sequences that had to give up their slot", labels=["kind"])
        preempted.add_metric(["swap"], counts.swaps)
        preempted.add_metric(["recompute"], counts.recomputes)
        yield preempted
        yield counter("headgate_engine_prefix_evictions", "Cached prefixes that lost their blocks", ledger.evictions)
        drafts = counter("headgate_engine_draft_tokens", "Drafted tokens by verdict", labels=["verdict"])
        drafts.add_metric(["accepted"], counts.accepted)
        drafts.add_metric(["refused"], counts.drafted - counts.accepted)
        yield drafts
        yield SummaryMetricFamily("headgate_engine_step_seconds", "Whole steps", counts.steps, spent.step_s)
        runner = self._engine.runner
        if isinstance(runner, EmulatedRunner):
            behind = "Modelled time that this machine was too slow to keep"
            yield counter("headgate_engine_emulation_behind_seconds", behind, runner.behind_s)
        model_s = runner.model_s
        yield SummaryMetricFamily("headgate_engine_run_seconds", "Inside the model library", counts.steps, model_s)
        terms = gauge("headgate_engine_step_model_seconds", "Fitted step time by term", labels=["term"])
        for term, value in zip(("fixed", "prefill", "decode", "context"), batcher.step_time.coefficients, strict=True):
            terms.add_metric([term], value)
        yield terms


def page(
    model_name: str,
    phase: str,
    engine: Engine | None,
    cold_start: dict[str, float],
    emulation: Emulation | None,
    recommended: Recommended,
) -> bytes:
    rows = [("model", model_name), ("state", phase)]
    if recommended.shown:
        settings = ", ".join(f"{name} {value:g}" for name, value in recommended.shown.items())
        rows.append(("sampling by default", f"{settings} ({recommended.source})"))
    if emulation is not None:
        rows.append(("emulated", str(emulation)))
    if engine is not None:
        batcher, counts = engine.batcher, engine.batcher.counts
        ledger = batcher.ledger
        share = 100 * ledger.owned_blocks / ledger.blocks
        rows += [
            ("running", f"{len(batcher.running)} of {engine.runner.slots} slots"),
            ("waiting", str(len(batcher.waiting))),
            ("KV in use", f"{share:.0f} % ({ledger.cached_blocks} blocks more hold cached prefixes)"),
            ("tokens generated", f"{counts.generated:,}"),
            ("prompt tokens", f"{counts.prefilled:,} computed, {counts.cached:,} from cache"),
            ("preempted", f"{counts.swaps} swapped, {counts.recomputes} recomputed"),
        ]
    rows += [(f"cold start: {name}", f"{seconds:.2f} s") for name, seconds in cold_start.items()]
    cells = "".join(f"<tr><th scope=row>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return PAGE.format(cells=cells, version=__version__, title=escape(model_name)).encode()


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Headgate: {title}</title>
<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="2">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .35rem .5rem; border-bottom: 1px solid #8884; font-weight: normal; }}
td {{ font-variant-numeric: tabular-nums; font-weight: 600; }}
</style></head><body>
<h1>Headgate engine</h1>
<table>{cells}</table>
<p>Figures: <a href="/metrics">/metrics</a>. API: <code>POST /v1/chat/completions</code>. Version {version}.</p>
</body></html>
"""
