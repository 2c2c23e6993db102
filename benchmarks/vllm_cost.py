"""What Headgate's part of a step of vLLM costs, with 64 requests running and 64 waiting.

    python benchmarks/vllm_cost.py              some seconds; writes results/vllm_cost.json and .md

CPU time of one thread, of a step's plan, of taking in what became of it, and of taking its tokens in; vLLM's own
scheduler is a double, whose time is not counted. Interpreted, as in vLLM's environment.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from tests.vllm.doubles.mini import Asked, MiniVllm, WithHeadgate

RESULTS = Path(__file__).resolve().parent / "results"
SEATS, WAITING, STEPS, WARM = 64, 64, 2000, 200
PREFILLS = (0, 1)
"""Running requests whose prompts are not read yet."""
PROMPT = 20_000
BOUND_MS = 0.3


class Timed(WithHeadgate):
    """Notes the CPU time of Headgate's part of each step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock, tokens=2048, seats=SEATS, blocks=1_000_000)
        self.inner_ns = 0
        self.part_ns: list[int] = []

    def schedule(self) -> Any:
        began = time.thread_time_ns()
        output = self.hooks.schedule(self, self._inner)
        self.part_ns.append(time.thread_time_ns() - began - self.inner_ns)
        return output

    def _inner(self) -> Any:
        began = time.thread_time_ns()
        output = MiniVllm.schedule(self)
        self.inner_ns = time.thread_time_ns() - began
        return output

    def update_from_output(self, output: Any) -> list[Asked]:
        spoke = MiniVllm.update_from_output(self, output)
        began = time.thread_time_ns()
        self.hooks.back(self, output)
        self.part_ns[-1] += time.thread_time_ns() - began
        return spoke


def measured(prefills: int) -> list[int]:
    """The CPU time of each step, in nanoseconds."""
    now = 100.0

    def clock() -> float:
        return now

    scheduler = Timed(clock)
    for number in range(SEATS + WAITING):
        running = number < SEATS - prefills
        scheduler.add(Asked(f"r{number}", 16 if running else PROMPT, 1_000_000, now))
    for _ in range(WARM + STEPS):
        output = scheduler.schedule()
        now += 0.02 + 1e-5 * output.total_num_scheduled_tokens
        scheduler.update_from_output(output)
        for request in scheduler.running:
            if request.num_prompt_tokens == PROMPT and request.num_computed_tokens > PROMPT // 2:
                request.num_computed_tokens = 0  # it is never read to its end
    assert len(scheduler.running) == SEATS
    assert len(scheduler.waiting) == WAITING
    assert scheduler.counts.failures == 0
    return scheduler.part_ns[WARM:]


def main() -> None:
    rows: dict[str, dict[str, float]] = {}
    for prefills in PREFILLS:
        spent = sorted(measured(prefills))
        rows[str(prefills)] = {"median_ms": statistics.median(spent) / 1e6, "p99_ms": spent[int(0.99 * STEPS)] / 1e6}
    lines = [
        "# Cost of Headgate's part of a step of vLLM",
        "",
        f"`benchmarks/vllm_cost.py`: {SEATS} requests running and {WAITING} waiting, CPU time of {STEPS:,} steps,"
        " interpreted. The machine was shared.",
        "",
        "| running prompts | median | p99 | pass |",
        "|--:|--:|--:|---|",
    ]
    for count, row in rows.items():
        fine = "yes" if row["median_ms"] <= BOUND_MS else "**no**"
        lines.append(f"| {count} | {row['median_ms']:.3f} ms | {row['p99_ms']:.3f} ms | ≤ {BOUND_MS} ms: {fine} |")
    (RESULTS / "vllm_cost.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "vllm_cost.md").write_text("\n".join([*lines, ""]))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
