"""Which model is this request for? Rules over what it asks, the first that fits; another model while that one is full.

Every choice says why: somebody will ask why the small model answered this one.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headgate.config.models import ModelConfig, RuleConfig

IMAGE_PARTS = frozenset(("image_url", "image", "input_image"))
"""What the parts of a message are called that show a picture, in the dialects there are."""


class RequestTraits(msgspec.Struct, frozen=True, gc=False):
    """What of a request rules can be about."""

    task: str = ""
    prompt_tokens: int = 1
    tools: bool = False
    images: bool = False
    response_format: str = "text"
    headers: Mapping[str, str] = {}


class Room(msgspec.Struct, frozen=True, gc=False):
    """Of the replicas of a model."""

    limit: int
    """Requests they may have at once; 0: none is usable."""
    used: int
    waiting: int = 0

    def full(self, above: float) -> bool:
        return self.limit <= 0 or self.used >= above * self.limit or self.waiting > 0


class ModelChoice(msgspec.Struct, frozen=True, gc=False):
    model: str
    reason: str


def ask_of(body: Mapping[str, Any], headers: Mapping[str, str], task: str, prompt_tokens: int) -> RequestTraits:
    """What a body asks for, as far as rules can be about it."""
    wanted = body.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    return RequestTraits(
        task=task,
        prompt_tokens=prompt_tokens,
        tools=bool(body.get("tools") or body.get("functions")),
        images=_shows_images(body.get("messages")) or _shows_images(body.get("input")),
        response_format=kind if isinstance(kind, str) else "text",
        headers=headers,
    )


def choose(model: ModelConfig, ask: RequestTraits, room: Callable[[str], Room]) -> ModelChoice:
    """`model` has rules. `room` is asked only where something could be used instead."""
    rule = next((rule for rule in model.rules if fits(rule, ask)), None)
    if rule is None:
        use, instead, because = model.use or "", model.when_full, "no rule fits" if model.rules else "the only choice"
    else:
        use, instead, because = rule.use, rule.when_full, f"rule {rule.name}{_about(rule, ask)}"
    if instead is None:
        return ModelChoice(use, because)
    theirs = room(use)
    if not theirs.full(model.full_above):
        return ModelChoice(use, because)
    if room(instead).full(model.full_above):
        return ModelChoice(use, f"{because}; {use} is full, and {instead} too")
    return ModelChoice(instead, f"{because}; {use} is full ({theirs.used} of {theirs.limit}, {theirs.waiting} waiting)")


def fits(rule: RuleConfig, ask: RequestTraits) -> bool:
    if rule.tasks and ask.task not in rule.tasks:
        return False
    if rule.prompt_tokens_above is not None and ask.prompt_tokens <= rule.prompt_tokens_above:
        return False
    if rule.prompt_tokens_below is not None and ask.prompt_tokens >= rule.prompt_tokens_below:
        return False
    if rule.tools is not None and ask.tools is not rule.tools:
        return False
    if rule.images is not None and ask.images is not rule.images:
        return False
    if rule.response_format and ask.response_format not in rule.response_format:
        return False
    return all(ask.headers.get(name.lower()) == value for name, value in rule.headers.items())


def _about(rule: RuleConfig, ask: RequestTraits) -> str:
    """What it was about this request, in a few words. Headers are not repeated: they may say who somebody is."""
    parts = []
    if rule.tasks:
        parts.append(f"task {ask.task}")
    if rule.prompt_tokens_above is not None or rule.prompt_tokens_below is not None:
        parts.append(f"{ask.prompt_tokens} prompt tokens")
    if rule.tools is not None:
        parts.append("tools" if ask.tools else "no tools")
    if rule.images is not None:
        parts.append("images" if ask.images else "no images")
    if rule.response_format:
        parts.append(f"format {ask.response_format}")
    parts += [f"header {name}" for name in rule.headers]
    return f": {', '.join(parts)}" if parts else ""


def _shows_images(messages: Any) -> bool:
    if not isinstance(messages, list):
        return False
    return any(
        isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in IMAGE_PARTS
        for message in messages
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for part in message["content"]
    )
