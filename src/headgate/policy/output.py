"""How much may an answer say?

A task has a cap: it counts where the client gives no value, or names the task itself (by header, or by a model's
alias). A task that only the operator named, as a tenant's default, leaves an explicit value alone. Every value ends at
the lane's ceiling and the tenant's own. Nothing here ever raises what a client asked for.
"""

from typing import Any, Final

from headgate.model.output_config import OTHER, AliasConfig, OutputConfig, Runaway, TaskConfig

MOST_STOPS: Final = 4
"""OpenAI's limit, which other engines keep too."""
FIELDS: Final = ("max_tokens", "max_completion_tokens")


class Allowance:
    """What one request may say."""

    # Written out, not a dataclass, whose constructor would stay interpreted where this is compiled.
    __slots__ = ("runaway", "stop", "task", "tokens", "why")

    def __init__(self, task: str, tokens: int | None, why: str, stop: tuple[str, ...], runaway: Runaway) -> None:
        self.task = task
        """Empty: caps are off for it."""
        self.tokens = tokens
        """None: nobody says, so it is the engine's own limit."""
        self.why = why
        """The cap that applied, in words for a header; empty: the client's own value, or none."""
        self.stop = stop
        self.runaway: Runaway = runaway


class UnknownTask:
    """A refusal: it names a task that is not there."""

    __slots__ = ("known", "task")

    def __init__(self, task: str, known: tuple[str, ...]) -> None:
        self.task = task
        self.known = known


class Output:
    def __init__(self, config: OutputConfig) -> None:
        self.tasks: dict[str, TaskConfig] = config.tasks
        self._caps = config.caps
        self._long_prompt_tokens = config.long_prompt_tokens
        self._long_prompt_max_tokens = config.long_prompt_max_tokens
        self._aliases: dict[str, AliasConfig] = {alias.name: alias for alias in config.aliases}

    def alias(self, model: str) -> AliasConfig | None:
        """What else a model's name says."""
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
    ) -> Allowance | UnknownTask:
        """`named`: the task by the client's own word; `default`: the tenant's. `ceiling` is the lane's, `most` the
        tenant's; `caps`: whether the tenant has any."""
        task = named or default or OTHER
        config = self.tasks.get(task)
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


def _least(tokens: int | None, why: str, cap: int | None, name: str) -> tuple[int | None, str]:
    if cap is None or (tokens is not None and tokens <= cap):
        return tokens, why
    return cap, f"{cap}; {name}"


def apply(allowance: Allowance, body: dict[str, Any]) -> bool:
    """Write it into the body that goes to the engine. Whether that changes anything."""
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
    if allowance.stop:
        changed = _add_stops(allowance.stop, body) or changed
    return changed


def _add_stops(more: tuple[str, ...], body: dict[str, Any]) -> bool:
    given = body.get("stop")
    if given is not None and not isinstance(given, str | list):
        return False  # whatever it is, the engine is the one to refuse it
    stops = [given] if isinstance(given, str) else given or []
    new = [stop for stop in more if stop not in stops][: max(0, MOST_STOPS - len(stops))]
    if new:
        body["stop"] = [*stops, *new]
    return bool(new)
