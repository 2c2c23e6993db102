"""Configures warm-up, so that no client is the first that a replica answers."""

from dataclasses import dataclass
from typing import Annotated

from headgate.config.hints import Prompt, Seconds, SecondsOrZero, Text, between


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    name: Text
    """The model name that clients ask for."""
    path: Text
    """Where the replica finds the adapter: a folder on its machine, or a repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmConfig:
    before_use: bool = True
    """False: a replica is used as soon as it reports itself healthy."""
    timeout_s: Seconds = 60.0
    """Maximum time for the first token, for each system prompt and for each adapter. A replica without a first token is
    not used."""
    limit_s: SecondsOrZero = 2.0
    """Maximum time for prompts as long as each lane's, the shortest first; those that would take longer are left
    out."""
    longest_tokens: Annotated[int, between(16, 131_072)] = 2048
    """Maximum tokens of such a prompt."""
    system_prompts: tuple[Prompt, ...] = ()
    """System prompts put into every replica's prefix cache before it is used, and again while it is idle."""
    adapters: tuple[AdapterConfig, ...] = ()
    """Adapters for replicas that can load them at run time: vLLM and SGLang."""
    keep_alive_s: SecondsOrZero = 45.0
    """Idle time after which a replica is made to generate a token; 0: never."""
