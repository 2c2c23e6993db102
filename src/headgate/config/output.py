"""Configures how much output an answer may have, and when it is ended early."""

from dataclasses import dataclass, field
from typing import Literal

from headgate.config.hints import Count, Name, Prompt, Text

Runaway = Literal["off", "safe", "quick"]
"""When an answer that only repeats itself is ended: never; when there is hardly a doubt; or on about half of that
evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    max_tokens: Count = 256
    """Maximum output tokens, where the client gives no value of its own or names this task."""
    stop: tuple[Prompt, ...] = ()
    """Stop sequences, added to the client's as far as there is room: OpenAI allows four in all. Never added to a
    request for several answers, with tools, or with a required format."""
    runaway: Runaway = "off"
    """When an answer that only repeats itself is ended."""


CHAT = "chat"
"""The task of a chat that names none."""
OTHER = "other"
"""The task of any other request that names none."""
TURNS = ("<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|endoftext|>")
"""Marks with which models' templates end a turn. A model whose end token its engine does not know writes one out and
continues to talk to itself. No label contains such a mark; any other answer may, if the mark is its subject."""
TASKS: dict[str, TaskConfig] = {
    CHAT: TaskConfig(max_tokens=384, runaway="safe"),
    "extract": TaskConfig(max_tokens=96),
    "classify": TaskConfig(max_tokens=96, stop=TURNS),
    "reason": TaskConfig(max_tokens=768),
    "code": TaskConfig(max_tokens=768),
    OTHER: TaskConfig(),
}
"""The default tasks. Configuration may change every field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasConfig:
    name: Text
    """A model name as clients write it."""
    task: Name
    """The task that clients mean by it."""
    model: Text | None = None
    """The model name that replicas are asked for; None: the same name."""


ALIASES: tuple[AliasConfig, ...] = tuple(
    AliasConfig(name=task, task=task, model="default") for task in TASKS if task != OTHER
)
"""The five tasks as model names of their own, served by any model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    caps: bool = True
    """False: no task and no lane limits any tenant's output; a tenant's own max_tokens still does."""
    long_prompt_tokens: Count = 4000
    """Prompt tokens above which a tighter cap replaces the task's."""
    long_prompt_max_tokens: Count = 256
    """Maximum output tokens after such a prompt."""
    tasks: dict[str, TaskConfig] = field(default_factory=lambda: dict(TASKS))
    """The six default tasks, changed or not, and any that were added."""
    aliases: tuple[AliasConfig, ...] = ALIASES
    """Model names that stand for a task."""
