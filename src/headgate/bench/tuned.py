"""Defines the options of `headgate tune`, and its findings."""

from dataclasses import dataclass, field
from pathlib import Path

from headgate.bench.asker import Endpoint
from headgate.bench.lines import Advice, Alone, Level, Prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    urls: tuple[str, ...]
    """Addresses of replicas of one kind; requests go to them in turn."""
    sla: tuple[str, ...] = ("ttft:500",)
    """Promises at p95, in milliseconds: ttft, and optionally tpot."""
    slow_ttft_ms: float = 2000.0
    """TTFT that the slow lane promises at p95."""
    longest: int = 8192
    """Longest prompt to measure, in tokens."""
    output: int = 64
    """Output tokens of each answer while many requests run at once."""
    prompt: int | None = None
    """Prompt tokens of those requests; None: half of the fast lane's limit, at least 16 and at most 512."""
    concurrency: int = 256
    """Maximum requests at once, all replicas together."""
    budget_s: float = 180.0
    requests: int = 5000
    """Maximum requests in total."""
    model: str | None = None
    endpoint: Endpoint = "chat"
    keys: tuple[str, ...] = ()
    json: Path | None = None
    html: Path | None = None


@dataclass(slots=True)
class Tuned:
    """The findings of one run."""

    options: TuneOptions
    model: str
    ttft_s: float
    tpot_s: float | None
    alone: list[Alone] = field(default_factory=list)
    prefill: Prefill | None = None
    levels: list[Level] = field(default_factory=list)
    prompt: int = 0
    """Prompt tokens of the requests in the second part."""
    notes: list[str] = field(default_factory=list)
    advice: Advice | None = None
    asked: int = 0
