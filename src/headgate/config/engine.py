"""What can be set, what it means, and what it is when nobody sets it."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    step_tokens: int = 512
    """Most tokens in one step, decodes and prefill together."""
    chunk_limit: int = 512
    """Most prompt tokens in one step, however fast the machine."""
    chunk_floor: int = 8
    """Fewest prompt tokens in a step that has any, however tight the running streams: keeps a long prompt moving."""
    step_limit_s: float = 0.5
    """Longest step to aim for when nobody is decoding: an arrival can't be seen to before the step ends."""
    save_limit_s: float = 0.2
    """Longest that a step may be held up to keep copies of cached prefixes in host memory; less if a running stream was
    promised less. Longer ones are dropped."""
    queue_limit: int = 1024
    """Most waiting sequences; beyond it an arrival is refused at once."""
    headroom: float = 0.2
    """Share of KV memory kept free at admission, for sequences that talk longer than predicted. A sequence may use
    three quarters of it where less urgent ones hold memory, so that it does not wait for them."""
    starve_after_s: float = 60.0
    """A sequence that has waited this long, or as long as its own promise if that is longer, is the first to be given
    a slot and memory, and has `aged_share` of each step until its prompt is prefilled."""
    aged_share: float = 0.25
    """Share of a step's prompt tokens for a prompt that its age has lifted past more urgent lanes."""
    ageing_s: float = 2.0
    """Waiting this long, or four times its own promise if that is longer, lifts a sequence by one priority."""
    most_yields: int = 2
    """How often a sequence may be swapped out to make way for a higher lane; 0: never."""
    long_prompt_tokens: int = 512
    """A prompt with more than this left to prefill is long."""
    long_prefills: int = 1
    """Long prompts of a lane prefilled at a time: two at once would finish no sooner and delay both. Those of less
    urgent lanes do not count."""
    longest_shared: int | None = None
    """Sequences longer than this do not share a batch with shorter ones; None: any may."""
    draft_batch: int = 2
    """Speculative decoding only while at most this many sequences decode; 0 turns it off."""
    draft_rest: int = 64
    """Tokens between two tries while drafting does not pay, so that a change in the text is noticed."""
    first_output_guess: int | None = None
    """Predicted output length while a lane's upper quantile is not known; None: as much as the sequence may say."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    model: Path
    """The GGUF file."""
    model_name: str
    """The name clients use and /v1/models lists."""
    bundled: bool = False
    """The file came with the installation: a faster form of it is made and kept, if that can be."""
    slots: int = 8
    """Sequences that can be in KV memory at once."""
    context: int = 4096
    """Tokens a slot can hold: the longest prompt plus output."""
    threads: int = 2
    kv_tokens: int | None = None
    """KV memory the ledger may hand out, in tokens; None: all of it, slots × context."""
    host_tokens: int | None = None
    """Host memory for swapped and cached KV, in tokens; None: half of slots × context."""
    default_max_tokens: int = 512
    """Output limit of a request that names none."""
    truncate: bool = False
    """Cut an over-long prompt from the left instead of refusing it."""
    loras: tuple[Path, ...] = ()
    chat_template: Path | None = None
    """A Jinja file that is used instead of the model's own template, as for tools; None: the model's own."""
    system_prompts: tuple[str, ...] = ()
    """Prefilled and pinned in the prefix cache before the engine is ready."""
    warmup_limit_s: float = 3.0
    """Most time warm-up prompts may take; system prompts and adapters come on top."""
    gap_target_s: float | None = None
    """Overrides every lane's gap target; None: the lane's own."""
    in_order: bool = False
    """Requests that name no lane go first come, first served, as most engines do it, not by size."""
    batch: BatchConfig = field(default_factory=BatchConfig)


@dataclass(frozen=True, kw_only=True)
class ListenConfig:
    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    """A Unix socket path; used instead of host and port."""
    uds_mode: int = 0o600
    """Permissions of the socket file: who may connect."""
    drain_s: float = 10.0
    """How long running streams may finish after SIGTERM."""
