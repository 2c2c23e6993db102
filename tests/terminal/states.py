"""What a gateway says at GET /admin/state, made up."""

from typing import Any

LEVELS = ("p50", "p90", "p95", "p99", "p999")


def lane(name: str, **given: Any) -> dict[str, Any]:
    figures = {figure: {level: 0.1 + number / 10 for number, level in enumerate(LEVELS)} for figure in ("ttft", "e2e")}
    figures["tpot"] = dict.fromkeys(LEVELS, 0.0123)
    values = {
        "name": name, "state": "ok", "waiting": 3, "running": 12, "requests_per_s": 8.25, "availability": 0.9991,
        "figures": figures,
    }  # fmt: skip
    return values | given


def idle(name: str) -> dict[str, Any]:
    figures = {figure: dict.fromkeys(LEVELS) for figure in ("ttft", "tpot", "e2e")}
    return lane(
        name, state="idle", waiting=0, running=0, requests_per_s=0.0, availability=None, figures=figures
    )  # fmt: skip


def replica(name: str, **given: Any) -> dict[str, Any]:
    values = {
        "id": name, "condition": "up", "state": "up", "requests": 4, "limit": 64.0, "batch_size": 4.0,
        "kv_ratio": 0.25, "model": "llama-3.1-8b", "kind": "vllm", "why": "",
    }  # fmt: skip
    return values | given


def slow(name: str, **given: Any) -> dict[str, Any]:
    values = {
        "id": name, "lane": "fast", "tenant": "t", "ttft_s": 0.5, "e2e_s": 2.5, "ago_s": 3.0, "outcome": "completed",
        "headline": "2.1 s of 2.5 s in the queue behind 40 requests (8 000 tokens) of tenant acme",
    }  # fmt: skip
    return values | given


def state(**given: Any) -> dict[str, Any]:
    values = {
        "verdict": {"level": "ok", "text": "All promises kept · 2 of 2 replicas · 0 refused"},
        "version": "0.1.0",
        "uptime_s": 3600.0,
        "lanes": [lane("fast"), lane("slow"), idle("long"), idle("batch")],
        "replicas": [replica("a"), replica("b")],
        "slowest": [slow(f"request-{number}") for number in range(12)],
        "totals": {
            "requests_per_s": 16.5, "tokens_per_s": 900.0, "availability": 0.999, "utilisation": 0.43,
            "loop_lag_p99_s": 0.0012,
        },
    }  # fmt: skip
    return values | given
