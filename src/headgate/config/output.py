"""How much may an answer say, and when is it ended early? What can be set, and what it is when nobody sets it."""

from dataclasses import dataclass, field
from typing import Literal

Runaway = Literal["off", "safe", "quick"]
"""Whether an answer that only repeats itself is ended: never; when there is hardly a doubt; or on about half of that
evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    max_tokens: int = 256
    """Most output tokens, where the client gives no value of its own or names this task."""
    stop: tuple[str, ...] = ()
    """Stop sequences, added to the client's as far as there is room: OpenAI allows four in all. Never to a request
    for several answers, with tools, or whose answer must have a form."""
    runaway: Runaway = "off"
    """Whether an answer that only repeats itself is ended."""


CHAT = "chat"
"""The task of a chat that names none."""
OTHER = "other"
"""The task of any other request that names none."""
TURNS = ("<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|endoftext|>")
"""Marks by which models' templates end a turn. A model whose end token its engine does not know spells one out and
goes on to talk to itself. No label has such a mark in it; any other answer may, if that is what it is about."""
TASKS: dict[str, TaskConfig] = {
    CHAT: TaskConfig(max_tokens=384, runaway="safe"),
    "extract": TaskConfig(max_tokens=96),
    "classify": TaskConfig(max_tokens=96, stop=TURNS),
    "reason": TaskConfig(max_tokens=768),
    "code": TaskConfig(max_tokens=768),
    OTHER: TaskConfig(),
}
"""The defaults. All of it is config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasConfig:
    name: str
    """A model's name as clients write it."""
    task: str
    """What they mean by it."""
    model: str | None = None
    """The name that replicas are asked for; None: the same."""


ALIASES: tuple[AliasConfig, ...] = tuple(
    AliasConfig(name=task, task=task, model="default") for task in TASKS if task != OTHER
)
"""The five tasks as models of their own, on whatever is served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    caps: bool = True
    """False: no task and no lane limits anybody's output; a tenant's own max_tokens still does."""
    long_prompt_tokens: int = 4000
    """Prompts above this have a tighter cap, whatever the task."""
    long_prompt_max_tokens: int = 256
    """That cap."""
    tasks: dict[str, TaskConfig] = field(default_factory=lambda: dict(TASKS))
    """The default six, changed or not, and whatever was added."""
    aliases: tuple[AliasConfig, ...] = ALIASES
    """Models' names that name a task."""
