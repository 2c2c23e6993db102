"""What do the names that clients ask for stand for? Versions with weights, or rules that choose a model.

See policy/rollout/rollout.py and policy/rollout/capability.py, which read it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Sticky = Literal["session", "tenant", "request"]
Format = Literal["text", "json_object", "json_schema"]
WhenUnsure = Literal["rollback", "hold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionConfig:
    name: str
    """What it is called in records, figures and commands."""
    model: str
    """The model whose replicas serve it: their `model`, or one of their `models`."""
    weight: float = 0.0
    """Its share of the requests, relative to the others'; 0: none, but it is kept warm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryConfig:
    """How a new version is tried out. The verdict compares it with what the old one does at the same time."""

    steps: tuple[float, ...] = (0.05, 0.2, 0.5)
    """Shares it gets one after the other, before all."""
    step_requests: int = 1000
    """Requests, of both versions, that each step takes at least."""
    min_samples: int = 50
    """Of them, those of the new version at least."""
    limit_requests: int = 20_000
    """Of both versions: if it is not known by then whether the new one is fine, that is the answer."""
    when_unsure: WhenUnsure = "rollback"
    """What is done then: back to the old one, or hold until somebody decides."""
    acceptable: float = 1.05
    """Up to this many times the old version's latency is fine: more than this, proven, and it is rolled back."""
    unacceptable: float = 1.2
    """From this many times on it must not go on: less than this, proven, and it is promoted."""
    longer: float = 1.25
    """Answers this many times as long, or as short, are another behaviour: proven, and it is rolled back."""
    error_margin: float = 0.01
    """It is promoted only if so much more of its requests fail at most, proven."""
    soak_s: float = 86_400.0
    """At the last step at least so long, with everything proven, before it gets all requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowConfig:
    """Copies of requests for a version that nobody waits for: its answers are measured and thrown away."""

    share: float = 0.05
    """Of the requests, those copied."""
    concurrency: int = 8
    """Copies under way at once; further ones are not made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleConfig:
    """All that it says must fit."""

    name: str
    """For the reason on records."""
    use: str
    """The model it chooses: another name of this section, or one that replicas serve."""
    when_full: str | None = None
    """Instead, while the replicas of `use` have no room and these have; None: requests wait."""
    tasks: frozenset[str] = frozenset()
    """One of these tasks."""
    prompt_tokens_above: int | None = None
    """A prompt of more tokens."""
    prompt_tokens_below: int | None = None
    """A prompt of fewer tokens."""
    tools: bool | None = None
    """It brings tools, or brings none."""
    images: bool | None = None
    """It shows images, or shows none."""
    response_format: frozenset[Format] = frozenset()
    """It asks for one of these formats; text: for none."""
    headers: dict[str, str] = field(default_factory=dict)
    """It has these headers, with these values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Either versions, or rules with `use`."""

    name: str
    """What clients ask for."""
    versions: tuple[VersionConfig, ...] = ()
    sticky: Sticky = "session"
    """What stays with one version: a session (a request without one is by itself), a tenant, or nothing."""
    canary: CanaryConfig = field(default_factory=CanaryConfig)
    shadow: ShadowConfig = field(default_factory=ShadowConfig)
    rules: tuple[RuleConfig, ...] = ()
    """The first that fits counts."""
    use: str | None = None
    """Where no rule fits."""
    when_full: str | None = None
    """Instead of `use`, while its replicas have no room and these have."""
    full_above: float = 1.0
    """Share of the replicas' room in use from which they count as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    state: Path | None = None
    """Where it is written which version gets what, so that a restart changes nothing; None: only in memory."""


def contradictions(
    models: Sequence[ModelConfig], served: frozenset[str] | None, path: str = "models"
) -> Iterator[tuple[str, str]]:
    """(path, what is wrong) for values that are fine alone. `served`: the models that replicas name; None: that is not
    known before they have been asked."""
    named: dict[str, int] = {}
    for index, model in enumerate(models):
        at = f"{path}[{index}]"
        first = named.setdefault(model.name, index)
        if first != index:
            yield f"{at}.name", f"{model.name} is already the name of {path}[{first}]"
        if served is not None and model.name in served:
            yield f"{at}.name", f"replicas serve {model.name} under that name themselves: give one of the two another"
        if bool(model.versions) == bool(model.rules or model.use):
            yield at, "expected either versions, or rules and use"
        elif model.versions:
            yield from _versions(model, served, at)
        else:
            yield from _rules(model, {one.name: bool(one.versions) for one in models}, served, at)


def _versions(model: ModelConfig, served: frozenset[str] | None, at: str) -> Iterator[tuple[str, str]]:
    names = [version.name for version in model.versions]
    targets = [version.model for version in model.versions]
    for index, version in enumerate(model.versions):
        if names.index(version.name) != index:
            yield f"{at}.versions[{index}].name", f"there are two versions {version.name}"
        if targets.index(version.model) != index:
            other = names[targets.index(version.model)]
            yield f"{at}.versions[{index}].model", f"its replicas are {other}'s too: they could not be told apart"
        if served is not None and version.model not in served:
            yield f"{at}.versions[{index}].model", _unserved(version.model, served)
    if not any(version.weight > 0 for version in model.versions):
        yield f"{at}.versions", "expected at least one with a weight above 0"
    yield from _canary(model.canary, f"{at}.canary")


def _canary(canary: CanaryConfig, at: str) -> Iterator[tuple[str, str]]:
    steps = canary.steps
    if not steps or list(steps) != sorted(set(steps)) or steps[-1] >= 1:
        yield f"{at}.steps", "expected shares that grow, each below 1"
    if canary.acceptable >= canary.unacceptable:
        yield f"{at}.acceptable", "expected less than unacceptable: between the two either is right"
    if canary.limit_requests <= canary.step_requests * len(steps):
        yield f"{at}.limit_requests", f"expected more than {len(steps)} steps of step_requests take"


def _rules(
    model: ModelConfig, named: dict[str, bool], served: frozenset[str] | None, at: str
) -> Iterator[tuple[str, str]]:
    if model.use is None:
        yield f"{at}.use", "expected a model for requests that no rule fits"
    chosen: list[tuple[str, str | None]] = [(f"{at}.use", model.use), (f"{at}.when_full", model.when_full)]
    for index, rule in enumerate(model.rules):
        here = f"{at}.rules[{index}]"
        chosen += [(f"{here}.use", rule.use), (f"{here}.when_full", rule.when_full)]
        above, below = rule.prompt_tokens_above, rule.prompt_tokens_below
        if above is not None and below is not None and below <= above + 1:
            yield f"{here}.prompt_tokens_below", "expected more than prompt_tokens_above: nothing fits both"
    for path, target in chosen:
        if target is None or named.get(target):
            continue
        if target in named:
            yield path, f"{target} has rules of its own: name what it would choose"
        elif served is not None and target not in served:
            yield path, _unserved(target, served | {name for name, versioned in named.items() if versioned})


def _unserved(model: str, served: Iterable[str]) -> str:
    return f"no replica serves {model}; there is {', '.join(sorted(served)) or 'none with a name'}"
