"""Limits the output tokens of an answer, by its task, lane and tenant.

A task has a cap, which applies where the client gives no value, or names the task itself (by header, or by a model's
alias). A task that only the operator named, as a tenant's default, leaves an explicit value alone. A chat without a
task is a `chat`; a text completion without one is `other`. Each value is capped by the lane's limit, where caps are on,
and by the tenant's. Nothing here ever raises the value that a client asked for.
"""

from collections.abc import Mapping
from typing import Any, Final

from headgate.config.output import CHAT, OTHER, TASKS, AliasConfig, OutputConfig, Runaway, TaskConfig

MOST_STOPS: Final = 4
"""Maximum stop sequences: OpenAI's limit, which other engines keep too."""
FIELDS: Final = ("max_tokens", "max_completion_tokens")
FORMS: Final = (
    "tools", "functions", "tool_choice", "function_call", "response_format", "structured_outputs", "grammar",
    "json_schema", "regex", "ebnf", "structural_tag", "format",
)  # fmt: skip
"""Fields, besides those that begin with GUIDED, that give the answer a form: half of such an answer is worth
nothing."""
GUIDED: Final = "guided_"


class Allowance:
    """The output limits of one request."""

    # Written out, not a dataclass, whose constructor would stay interpreted where this is compiled.
    __slots__ = ("runaway", "stop", "task", "tokens", "why")

    def __init__(self, task: str, tokens: int | None, why: str, stop: tuple[str, ...], runaway: Runaway) -> None:
        self.task = task
        """The task whose cap applies; empty: caps are off for the request."""
        self.tokens = tokens
        """Maximum output tokens per choice; None: only the engine's own limit applies."""
        self.why = why
        """The cap that applied, as the text of a header; empty: the client's own value, or no limit."""
        self.stop = stop
        self.runaway: Runaway = runaway


class UnknownTask:
    """A refusal: the request names a task that does not exist."""

    __slots__ = ("known", "task")

    def __init__(self, task: str, known: tuple[str, ...]) -> None:
        self.task = task
        self.known = known


class Output:
    def __init__(self, config: OutputConfig, plain_tokens: int | None = None) -> None:
        """`plain_tokens`: the operator's cap for requests that name neither a limit nor a task; None: there is none."""
        self.tasks: dict[str, TaskConfig] = config.tasks
        self._plain_chat: TaskConfig | None = plain_chat(config.tasks, plain_tokens)
        self._caps = config.caps
        self._long_prompt_tokens = config.long_prompt_tokens
        self._long_prompt_max_tokens = config.long_prompt_max_tokens
        self._aliases: dict[str, AliasConfig] = {alias.name: alias for alias in config.aliases}

    def alias(self, model: str) -> AliasConfig | None:
        """The alias with this name, which may set model and task; None: the name is no alias."""
        return self._aliases.get(model)

    def allow(
        self,
        named: str | None,
        default: str | None,
        asked: int | None,
        prompt_tokens: int,
        ceiling: int,
        most: int | None,
        caps: bool,
        chat: bool = False,
    ) -> Allowance | UnknownTask:
        """The limits of one request. `named`: the task that the client names; `default`: the tenant's task. `asked`:
        tokens that the client asks for; None: it does not say. `ceiling` is the lane's limit, `most` the tenant's
        (None: none). `caps`: whether caps are on for the tenant. `chat`: whether a request without a task is a chat."""
        task = named or default
        config = self.tasks.get(task) if task else None
        if not task:
            config, task = (self._plain_chat, CHAT) if chat else (None, OTHER)
            if config is None:
                config, task = self.tasks.get(OTHER), OTHER
        if config is None:
            return UnknownTask(task, tuple(self.tasks))
        if not (caps and self._caps):
            tokens, why = _least(asked, "", most, "tenant")
            return Allowance("", tokens, why, (), "off")
        tokens, why = asked, ""
        if asked is None or named is not None:
            tokens, why = _least(tokens, why, config.max_tokens, f"task={task}")
            if prompt_tokens > self._long_prompt_tokens:
                tokens, why = _least(tokens, why, self._long_prompt_max_tokens, f"task={task}; long prompt")
        tokens, why = _least(tokens, why, ceiling, "lane")
        tokens, why = _least(tokens, why, most, "tenant")
        return Allowance(task, tokens, why, config.stop, config.runaway)


def plain_chat(tasks: Mapping[str, TaskConfig], plain_tokens: int | None) -> TaskConfig | None:
    """The task of a chat that names none: the operator's values for chats; where those are defaults, the operator's
    values for requests without a task. None: there is no task `chat`."""
    chat, other = tasks.get(CHAT), tasks.get(OTHER)
    if chat is None or other is None:
        return chat
    usual, usual_other = TASKS[CHAT], TASKS[OTHER]
    tokens, stop, runaway = chat.max_tokens, chat.stop, chat.runaway
    if tokens == usual.max_tokens:
        if other.max_tokens != usual_other.max_tokens:
            tokens = other.max_tokens
        elif plain_tokens is not None:
            tokens = plain_tokens
    if stop == usual.stop:
        stop = other.stop
    if runaway == usual.runaway and other.runaway != usual_other.runaway:
        runaway = other.runaway
    return TaskConfig(max_tokens=tokens, stop=stop, runaway=runaway)


def _least(tokens: int | None, why: str, cap: int | None, name: str) -> tuple[int | None, str]:
    if cap is None or (tokens is not None and tokens <= cap):
        return tokens, why
    return cap, f"{cap}; {name}"


def apply(allowance: Allowance, body: dict[str, Any], choices: int = 1) -> bool:
    """Writes the limits into the body for the engine. Returns whether that changed the body."""
    tokens, changed = allowance.tokens, False
    if tokens is not None:
        given = False
        for name in FIELDS:
            value = body.get(name)
            if value is not None:
                given = True
                if value > tokens:
                    body[name] = tokens
                    changed = True
        if not given:
            body["max_tokens"] = tokens
            changed = True
    if allowance.stop and choices == 1 and not has_form(body):
        changed = _add_stops(allowance.stop, body) or changed
    return changed


def has_form(body: dict[str, Any]) -> bool:
    """Whether the answer must have a form, or may be a tool call: a stop sequence could cut it in two."""
    return any(value and (name in FORMS or name.startswith(GUIDED)) for name, value in body.items())


def _add_stops(more: tuple[str, ...], body: dict[str, Any]) -> bool:
    given = body.get("stop")
    if given is not None and not isinstance(given, str | list):
        return False  # not a valid type: the engine refuses it
    stops = [given] if isinstance(given, str) else given or []
    new = [stop for stop in more if stop not in stops][: max(0, MOST_STOPS - len(stops))]
    if new:
        body["stop"] = [*stops, *new]
    return bool(new)
