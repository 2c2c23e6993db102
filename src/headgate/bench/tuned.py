"""What can be asked of `headgate tune`, and what it finds."""

from dataclasses import dataclass, field
from pathlib import Path

from headgate.bench.asker import Endpoint
from headgate.bench.lines import Advice, Alone, Level, Prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    urls: tuple[str, ...]
    """Replicas of one kind, asked in turn."""
    sla: tuple[str, ...] = ("ttft:500",)
    """At p95, in milliseconds: ttft, and tpot if given."""
    slow_ttft_ms: float = 2000.0
    """What the slow lane promises at p95."""
    longest: int = 8192
    """Prompt tokens."""
    output: int = 64
    """Tokens of each answer while many are asked at once."""
    prompt: int | None = None
    """The same for their prompts; None: half of what is short here."""
    concurrency: int = 256
    """At most so many at once, all replicas together."""
    budget_s: float = 180.0
    requests: int = 5000
    """At most so many in all."""
    model: str | None = None
    endpoint: Endpoint = "chat"
    keys: tuple[str, ...] = ()
    json: Path | None = None
    html: Path | None = None


@dataclass(slots=True)
class Tuned:
    """All that was found."""

    options: TuneOptions
    model: str
    ttft_s: float
    tpot_s: float | None
    alone: list[Alone] = field(default_factory=list)
    prefill: Prefill | None = None
    levels: list[Level] = field(default_factory=list)
    prompt: int = 0
    """Tokens of the prompts of the second part."""
    notes: list[str] = field(default_factory=list)
    advice: Advice | None = None
    asked: int = 0
