"""Names what a gateway tells others of its requests, and asks them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headgate.gateway.trace_context import Contexts
from headgate.model.event import Command, Event
from headgate.model.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayHooks:
    """What else is told of requests, or asked about them."""

    events: Callable[[Event, float, list[Command]], None] | None = None
    """Records each event with its commands; None: events are not recorded."""
    contexts: Contexts | None = None
    """None: traces are not collected, and the client's trace context is passed on as it came."""
    keep_prompt: Callable[[str, dict[str, Any]], None] | None = None
    """Records the prompt of each request; None: prompts are not recorded."""
    hold: Callable[[Request], bool] | None = None
    """Whether an arrival has to wait for its tenant's share of the limits; None: no other gateway shares the limits."""


NO_HOOKS: Final = GatewayHooks()
