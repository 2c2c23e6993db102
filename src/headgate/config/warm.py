"""What is done so that no client is the first whom a replica answers?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    name: str
    """What clients ask for as the model."""
    path: str
    """Where the replica finds it: a folder on its machine, or a repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmConfig:
    before_use: bool = True
    """False: a replica is used as soon as it says that it is well."""
    timeout_s: float = 60.0
    """For the first token, each system prompt and each adapter. Without a first token a replica is not used."""
    limit_s: float = 2.0
    """For prompts as long as each lane's, the shortest first; what would take longer is left out."""
    longest_tokens: int = 2048
    """Of such a prompt."""
    system_prompts: tuple[str, ...] = ()
    """Put into every replica's prefix cache before it is used, and again while it is idle."""
    adapters: tuple[AdapterConfig, ...] = ()
    """For replicas that can load them while they run: vLLM and SGLang."""
    keep_alive_s: float = 45.0
    """A replica that nobody has asked for so long is made to generate a token; 0: never."""
