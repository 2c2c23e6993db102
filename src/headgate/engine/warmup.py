"""Warms the engine up before it accepts the first request.

A replica's first prompt is slow: pages are touched, graphs are built, the step-time model knows nothing. So the engine
runs a short and a long prompt, and puts the configured system prompts into the prefix cache for good, before
`/health/ready` answers 200.
"""

from collections.abc import Awaitable, Callable

from headgate.model.clock import Clock
from headgate.policy.batching.estimate import StepTime

Generate = Callable[[list[int], bool], Awaitable[None]]
"""Runs a prompt for one output token; True pins the prompt."""

SHORT = 16
LONG = 512


async def warm_up(
    generate: Generate,
    text: list[int],
    pinned: list[list[int]],
    step_time: StepTime,
    context: int,
    limit_s: float,
    clock: Clock,
) -> None:
    """Runs the warm-up prompts, cut from `text`. The long prompt is as long as fits into the rest of `limit_s`."""
    ends = clock() + limit_s
    await generate(_prompt(text, min(SHORT, context // 2)), False)
    await generate(_prompt(text, min(SHORT, context // 2)), False)  # now from the prefix cache
    left = max(0.0, ends - clock())
    longest = step_time.largest_prefill(left, 0, 0, 0, min(LONG, context // 2))
    if longest > SHORT:
        await generate(_prompt(text[::-1], longest), False)
    for prompt in pinned:
        await generate(prompt, True)


def _prompt(text: list[int], length: int) -> list[int]:
    return (text * (length // len(text) + 1))[:length]
