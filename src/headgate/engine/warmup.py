"""What has to happen before the first request may come?

A replica that has never run a prompt is slow once, for whoever comes first: pages are touched, graphs are built,
the step-time model knows nothing. So a short and a long prompt are run, and configured system prompts are put into
the prefix cache for good, before `/health/ready` says 200.
"""

from collections.abc import Awaitable, Callable

from headgate.model.clock import Clock
from headgate.policy.batching.estimate import StepTime

Generate = Callable[[list[int], bool], Awaitable[None]]
"""Run a prompt for one output token; True pins it."""

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
    """`text` is any prompt to cut from. The long prompt is as long as fits what is left of `limit_s`."""
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
