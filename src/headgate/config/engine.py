"""Configures the engine: each setting, its meaning and its default.

EngineConfig is the section `embedded` of a gateway's file, and config/forms/flags.py makes the flags of `headgate
engine` of its fields. Metadata of a field: `group`, the heading of its flag in --help; `flag`, where that is not the
field's name.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from headgate.config.hints import GIGA, Count, CountOrZero, Prompt, Seconds, Text, between

ENGINE_PORT = 8001
"""Port on which an engine by itself listens."""
BUNDLED_NAME = "smollm2-135m-instruct"
"""Name of the model that comes with an installation."""
MODEL, MEMORY, BATCHING = {"group": "Model"}, {"group": "Memory"}, {"group": "Batching"}
Tokens = Annotated[int, between(32, GIGA)]
"""At least two blocks of KV memory."""
KvType = Literal["f16", "q8_0", "q4_0"]


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    step_tokens: int = 512
    """Maximum tokens in one step, decode and prefill together."""
    chunk_limit: int = 512
    """Maximum prompt tokens in one step, however fast the machine."""
    chunk_floor: int = 8
    """Minimum prompt tokens in a step that has any, however tight the running streams: a long prompt keeps moving."""
    gap_target_s: float | None = None
    """Target for the longest gap between two tokens, for sequences that name none or a longer one; None: their own."""
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
    model: Path | None = field(default=None, metadata=MODEL)
    """The GGUF file to serve, or a Hugging Face folder, for PyTorch; None: the bundled SmolLM2-135M-Instruct."""
    device: Literal["cuda", "cpu"] | None = field(default=None, metadata=MODEL)
    """Where a Hugging Face folder is computed; None: on a GPU if PyTorch finds one."""
    model_name: Text | None = field(default=None, metadata=MODEL)
    """The model name that clients use and /v1/models lists; None: the file's."""
    loras: tuple[Path, ...] = field(default=(), metadata={**MODEL, "flag": "lora"})
    """LoRA adapter (GGUF) to apply."""
    chat_template: Path | None = field(default=None, metadata=MODEL)
    """Jinja file used instead of the model's own chat template, for example for tools; None: the model's own."""
    system_prompts: tuple[Prompt, ...] = field(default=(), metadata={**MODEL, "flag": "system_prompt"})
    """System prompt to prefill and to pin in the prefix cache before the engine is ready."""
    default_max_tokens: Count | None = field(default=None, metadata={**MODEL, "flag": "max_tokens"})
    """Maximum output tokens of a request that gives neither a limit nor a task; None: 512, and in a gateway the limits
    of the tasks `chat` (384) and `other` (256)."""
    truncate: bool = field(default=False, metadata=MODEL)
    """Cut an over-long prompt from the left instead of refusing it."""
    slots: Annotated[int, between(1, 100_000)] = field(default=8, metadata=MEMORY)
    """Sequences that can be in KV memory at once."""
    context: Tokens = field(default=4096, metadata=MEMORY)
    """Tokens that a slot can hold: the longest prompt plus output."""
    kv_tokens: Tokens | None = field(default=None, metadata=MEMORY)
    """KV memory to hand out, in tokens; None: all of it, slots × context."""
    host_tokens: CountOrZero | None = field(default=None, metadata=MEMORY)
    """Host memory for swapped and cached KV, in tokens; None: half of slots × context."""
    threads: Annotated[int, between(1, 1024)] | None = field(default=None, metadata=MEMORY)
    """Threads that compute; None: one per core."""
    gpu_layers: Annotated[int, between(0, 10_000)] = field(default=0, metadata=MEMORY)
    """Layers that a GPU computes and keeps, for builds of llama.cpp with CUDA, ROCm, Vulkan or Metal; a number above
    the model's own is all of them."""
    kv_type: KvType = field(default="q8_0", metadata=MEMORY)
    """Precision of KV memory: f16, q8_0 or q4_0. With f16 an answer may depend on what is computed beside it."""
    gap_target_s: Seconds | None = field(default=None, metadata=BATCHING)
    """Target for the longest gap between two tokens of a running stream; a shorter one in the request goes before it;
    None: its lane's, 200 ms."""
    step_limit_s: Seconds | None = field(default=None, metadata=BATCHING)
    """Target for the longest step while no sequence decodes; None: 500 ms."""
    longest_shared: Count | None = field(default=None, metadata=BATCHING)
    """Tokens above which a sequence does not share a batch with shorter ones; None: any sequences may share."""
    in_order: bool = field(default=False, metadata=BATCHING)
    """Serve requests that name no lane first come, first served, as most engines do. Otherwise short ones go first."""
    draft_batch: CountOrZero | None = field(default=None, metadata=BATCHING)
    """Speculative decoding runs only while at most this many sequences decode, 0 turns it off; None: 2."""

    @property
    def served_name(self) -> str:
        """The model name that clients use."""
        if self.model_name or self.model is None:
            return self.model_name or BUNDLED_NAME
        return self.model.stem if self.model.suffix == ".gguf" else self.model.name

    def batch(self, usual: BatchConfig) -> BatchConfig:
        """Returns the batch settings: those given here, and otherwise the machine's `usual` ones."""
        names = {one.name for one in fields(self)} & {one.name for one in fields(usual)}
        given: dict[str, Any] = {name: getattr(self, name) for name in sorted(names)}
        return replace(usual, **{name: value for name, value in given.items() if value is not None})


def contradictions(config: EngineConfig) -> Iterator[tuple[str, str]]:
    """Yields (field, problem) for values that are valid alone."""
    asked = config.default_max_tokens
    if asked is not None and asked > config.context:
        told = f"a slot holds {config.context} tokens, prompt and output together"
        yield "default_max_tokens", f"expected no more than context, got {asked}: {told}; raise context or lower this"
