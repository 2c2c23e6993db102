"""Configures what clients' model names stand for: versions with weights, or rules that choose a model.

policy/rollout/rollout.py and policy/rollout/capability.py read these settings.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from headgate.config.hints import (
    Count,
    CountOrZero,
    HttpUrl,
    Name,
    Seconds,
    Share,
    ShareAboveZero,
    Text,
    between,
)

Sticky = Literal["session", "tenant", "request"]
Format = Literal["text", "json_object", "json_schema"]
WhenUnsure = Literal["rollback", "hold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionConfig:
    name: Name
    """The version's name in records, figures and commands."""
    model: Text
    """The model whose replicas serve the version: their `model`, or one of their `models`."""
    weight: Annotated[float, between(0, 1_000_000)] = 0.0
    """Relative share of the requests; 0: none, but the version is kept warm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerConfig:
    """What scores the answers that copies of requests get from both versions. Give one of the two."""

    command: tuple[Text, ...] = ()
    """Program and arguments: gets JSON on its input, and prints JSON; empty: `url` is asked."""
    url: HttpUrl | None = None
    """Address that gets the same JSON in a POST; None: `command` is run."""
    concurrency: Annotated[int, between(1, 64)] = 2
    """Maximum pairs of answers that are scored at once; further ones are not scored."""
    timeout_s: Seconds = 30.0
    """Maximum seconds for one pair; past it there is no score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityConfig:
    """Scores of answers, from 0 to 1: posted to /admin/rollout/NAME/scores, or given by a scorer in a shadow."""

    acceptable: Share = 0.01
    """Points by which the new version's mean score may be below the old one's. Proven to be more: rolled back."""
    unacceptable: ShareAboveZero = 0.03
    """Points below the old one's mean score that would be too many. Promoted only if proven to be less."""
    scorer: ScorerConfig | None = None
    """What scores a shadow's answers; None: only posted scores count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryConfig:
    """How a new version is tried out. The verdict compares it with the old version over the same time."""

    steps: tuple[ShareAboveZero, ...] = (0.05, 0.2, 0.5)
    """Shares of the requests that the new version gets, in this order, before all of them."""
    step_requests: Count = 1000
    """Minimum requests of both versions together in each step."""
    min_samples: Count = 50
    """Minimum requests of the new version among them."""
    limit_requests: Count = 20_000
    """Requests of both versions after which a rollout without proof counts as unsure."""
    when_unsure: WhenUnsure = "rollback"
    """What an unsure rollout does: return to the old version, or hold until an operator decides."""
    acceptable: Annotated[float, between(1, 100)] = 1.05
    """Acceptable latency of the new version, as a multiple of the old one's. Proven to be above it: rolled back."""
    unacceptable: Annotated[float, between(1, 100)] = 1.2
    """Unacceptable latency of the new version, as a multiple of the old one's. Proven to be below it: promoted."""
    longer: Annotated[float, between(1.01, 100)] = 1.25
    """Answers this many times as long, or as short, are a different behaviour. Proven: rolled back."""
    error_margin: ShareAboveZero = 0.01
    """Share by which the new version's failures may exceed the old one's: promoted only if proven to be below it."""
    quality: QualityConfig | None = None
    """Scores that must not be worse; None: quality is not judged."""
    soak_s: Annotated[float, between(0, 30 * 86_400, duration=True)] = 86_400.0
    """Minimum time at the last step, with everything proven, before the new version gets all requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowConfig:
    """Copies of requests to a version whose answers no client sees: they are measured and discarded."""

    share: ShareAboveZero = 0.05
    """Share of the requests that are copied."""
    concurrency: Annotated[int, between(1, 10_000)] = 8
    """Maximum copies at once; further ones are not made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleConfig:
    """A rule that chooses a model. All of its conditions must fit."""

    name: Name
    """The rule's name, for the reason on records."""
    use: Text
    """The model that the rule chooses: another name of this section, or one that replicas serve."""
    when_full: Text | None = None
    """The model chosen instead while `use` has no room and this one has; None: requests wait."""
    tasks: frozenset[Name] = frozenset()
    """The request has one of these tasks; empty: any."""
    prompt_tokens_above: CountOrZero | None = None
    """The prompt has more tokens than this; None: any."""
    prompt_tokens_below: Count | None = None
    """The prompt has fewer tokens than this; None: any."""
    tools: bool | None = None
    """The request has tools, or has none; None: either."""
    images: bool | None = None
    """The request has images, or has none; None: either."""
    response_format: frozenset[Format] = frozenset()
    """The request asks for one of these formats (text: for none); empty: any."""
    headers: dict[Name, Text] = field(default_factory=dict)
    """The request has these headers with these values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A model name that clients use, with either versions, or rules and `use`."""

    name: Text
    """The name that clients ask for."""
    versions: tuple[VersionConfig, ...] = ()
    """The versions among which requests are divided; empty: the name stands for rules."""
    sticky: Sticky = "session"
    """What stays with one version: a session (a request without one stands alone), a tenant, or nothing."""
    canary: CanaryConfig = field(default_factory=CanaryConfig)
    """How a new version is tried out."""
    shadow: ShadowConfig = field(default_factory=ShadowConfig)
    """How many requests are copied to a version in shadow mode."""
    rules: tuple[RuleConfig, ...] = ()
    """Rules, of which the first that fits counts."""
    use: Text | None = None
    """The model for requests that fit no rule; None: the model has versions."""
    when_full: Text | None = None
    """The model used instead of `use` while that has no room and this one has; None: requests wait."""
    full_above: ShareAboveZero = 1.0
    """Share of the replicas' room in use from which they count as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    state: Path | None = None
    """File with each version's share, so that a restart changes nothing; None: memory only."""


def contradictions(
    models: Sequence[ModelConfig], served: frozenset[str] | None, path: str = "models"
) -> Iterator[tuple[str, str]]:
    """Yields (path, problem) for values that are valid alone. `served`: the models that replicas name; None: not known
    before the replicas have been asked."""
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
    quality = canary.quality
    if quality is not None and quality.acceptable >= quality.unacceptable:
        yield f"{at}.quality.acceptable", "expected less than unacceptable: between the two either is right"
    scorer = None if quality is None else quality.scorer
    if scorer is not None and bool(scorer.command) == bool(scorer.url):
        yield f"{at}.quality.scorer", "expected either a command or a url"
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
