"""Chooses the model for a request: the first rule that fits, or another model while that one is full.

Every choice carries its reason, for the operator who asks why the small model answered this request.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headgate.config.models import ModelConfig, RuleConfig

IMAGE_PARTS = frozenset(("image_url", "image", "input_image"))
"""Types of message parts that contain an image, in the dialects there are."""


class RequestTraits(msgspec.Struct, frozen=True, gc=False):
    """The properties of a request that rules can test."""

    task: str = ""
    prompt_tokens: int = 1
    tools: bool = False
    images: bool = False
    response_format: str = "text"
    headers: Mapping[str, str] = {}


class Room(msgspec.Struct, frozen=True, gc=False):
    """The room at the replicas of a model."""

    limit: int
    """Maximum requests at once; 0: no replica is usable."""
    used: int
    waiting: int = 0

    def full(self, above: float) -> bool:
        return self.limit <= 0 or self.used >= above * self.limit or self.waiting > 0


class ModelChoice(msgspec.Struct, frozen=True, gc=False):
    model: str
    reason: str


def ask_of(body: Mapping[str, Any], headers: Mapping[str, str], task: str, prompt_tokens: int) -> RequestTraits:
    """The properties of a body that rules can test."""
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
    """Chooses by the rules of `model`. `room` is called only where another model could be used instead."""
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
    """What made the rule fit, in a few words. Header values are left out: they may identify a person."""
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
