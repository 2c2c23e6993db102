"""Configures the engine: each setting, its meaning and its default."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    step_tokens: int = 512
    """Maximum tokens in one step, decode and prefill together."""
    chunk_limit: int = 512
    """Maximum prompt tokens in one step, however fast the machine."""
    chunk_floor: int = 8
    """Minimum prompt tokens in a step that has any, however tight the running streams: a long prompt keeps moving."""
    step_limit_s: float = 0.5
    """Target for the longest step while no sequence decodes: an arrival waits until the step ends."""
    save_limit_s: float = 0.2
    """Maximum delay of a step for copying cached prefixes to host memory; less if a running stream was promised less.
    Prefixes whose copy would take longer are dropped."""
    queue_limit: int = 1024
    """Maximum waiting sequences; a further arrival is refused at once."""
    headroom: float = 0.2
    """Share of KV memory kept free at admission, for sequences with more output than predicted. A sequence may use
    three quarters of it where less urgent ones hold memory, so that it does not wait for them."""
    starve_after_s: float = 60.0
    """Wait after which a sequence is first in line for a slot and memory, and gets `aged_share` of each step until its
    prompt is prefilled. A sequence with a longer promise waits that long instead."""
    aged_share: float = 0.25
    """Share of a step's prompt tokens for a prompt that its age has lifted past more urgent lanes."""
    ageing_s: float = 2.0
    """Wait that lifts a sequence by one priority; four times its own promise if that is longer."""
    most_yields: int = 2
    """Preemptions, for any reason, after which a sequence no longer makes way for a higher lane; 0: it never does."""
    long_prompt_tokens: int = 512
    """Tokens left to prefill above which a prompt is long."""
    long_prefills: int = 1
    """Long prompts of a lane that are prefilled at a time: two at once would finish no sooner and delay both. Those of
    less urgent lanes do not count."""
    longest_shared: int | None = None
    """Tokens above which a sequence does not share a batch with shorter ones; None: any sequences may share."""
    draft_batch: int = 2
    """Speculative decoding runs only while at most this many sequences decode; 0 turns it off."""
    draft_rest: int = 64
    """Tokens between two drafts while drafting does not pay, so that a change in the text is noticed."""
    first_output_guess: int | None = None
    """Predicted output tokens while a lane's upper quantile is not known; None: as many as the sequence may produce."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    model: Path
    """The GGUF file."""
    model_name: str
    """The model name that clients use and /v1/models lists."""
    bundled: bool = False
    """The model file came with the installation: the engine makes and keeps a faster form of it, where possible."""
    slots: int = 8
    """Sequences that can be in KV memory at once."""
    context: int = 4096
    """Tokens that a slot can hold: the longest prompt plus output."""
    threads: int = 2
    kv_tokens: int | None = None
    """KV memory that the ledger may hand out, in tokens; None: all of it, slots × context."""
    host_tokens: int | None = None
    """Host memory for swapped and cached KV, in tokens; None: half of slots × context."""
    default_max_tokens: int = 512
    """Maximum output tokens of a request that gives no limit."""
    truncate: bool = False
    """Cut an over-long prompt from the left instead of refusing it."""
    loras: tuple[Path, ...] = ()
    chat_template: Path | None = None
    """A Jinja file used instead of the model's own chat template, for example for tools; None: the model's own."""
    system_prompts: tuple[str, ...] = ()
    """Prefilled and pinned in the prefix cache before the engine is ready."""
    warmup_limit_s: float = 3.0
    """Maximum time for warm-up prompts; system prompts and adapters come on top."""
    gap_target_s: float | None = None
    """Overrides every lane's gap target; None: each lane's own."""
    in_order: bool = False
    """True: requests that name no lane are served first come, first served, as in most engines, not by size."""
    batch: BatchConfig = field(default_factory=BatchConfig)


@dataclass(frozen=True, kw_only=True)
class ListenConfig:
    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    """Unix socket path, used instead of host and port; None: host and port."""
    uds_mode: int = 0o600
    """Permissions of the socket file: which users may connect."""
    drain_s: float = 10.0
    """How long running streams may finish after SIGTERM."""
