"""Describes each kind of engine in one table: how it is recognised, asked, continued, and what its metrics are called.

Read from the engines' own sources (vLLM a014e35, SGLang cce0a12, TGI db931fc, llama.cpp b21e4de, Triton's OpenAI
frontend e1db8a6, TensorRT-LLM's `serve/` and `metrics/`), not from memory. All of them stop a generation when its
connection closes, and the gateway cancels that way; anything beyond that is in the table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal

Continue = Literal["pieces", "flags", "flag", "message", "trimmed"]
"""How an engine continues a reply that broke off. `pieces`: it takes the pieces in which the reply came, makes exactly
the tokens of them that were said, and counts them itself. Otherwise the text is the last message, with these
differences:

flags    continue_final_message, without the generation prompt
flag     continue_final_message alone
message  nothing more: the engine continues a last message of the assistant's
trimmed  the same, but white space at its end is lost, so there must be none
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """The highest values that are accepted: what OpenAI documents, unless an engine is known to accept more."""

    temperature: float = 2.0
    n: int = 128
    stops: int = 4
    text_logprobs: int = 5
    """`logprobs` of a text completion; a chat's `top_logprobs` are 20 everywhere."""
    tools: int = 128


XARGS: Final = {
    "priority": "headgate_priority",
    "ttft_ms": "headgate_ttft_ms",
    "gap_ms": "headgate_gap_ms",
    "uncached_tokens": "headgate_uncached_tokens",
}
"""Names of what a request wishes of an engine that takes free fields, which our scheduler inside vLLM reads
(`vllm/wishes.py`). Other schedulers ignore them."""

OPENAI_RANGES: Final = Ranges()
MANY_STOPS: Final = Ranges(temperature=inf, stops=1024, text_logprobs=20, tools=1024)
"""For engines that bound none of these themselves. The lane's own bounds apply too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepCalls:
    """How an engine is put to sleep and woken."""

    sleep: tuple[str, bytes]
    """Path and body of the POST that puts it to sleep; what runs must end first, and not be lost."""
    wake: tuple[str, bytes]
    asked: str | None = None
    """Path that says `is_sleeping`, true until the engine is wholly awake; None: the answer to the POST must do."""
    requests: str | None = None
    """Path that counts its requests, where telling it to sleep with any of them running would break it; None: it lets
    them end first."""
    hint: str = ""
    """What to start the engine with so that it can sleep."""


VLLM_SLEEP: Final = SleepCalls(
    sleep=("/sleep?level=1&mode=wait", b""),  # the mode is named: vLLM's own default aborts what runs
    wake=("/wake_up", b""),
    asked="/is_sleeping",
    hint="start it with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode",
)
SGLANG_SLEEP: Final = SleepCalls(
    sleep=("/release_memory_occupation", b'{"tags":["kv_cache","weights"]}'),
    wake=("/resume_memory_occupation", b'{"tags":["kv_cache","weights"]}'),
    requests="/v1/loads",
    hint="start it with --enable-memory-saver",
)
EMULATED_SLEEP: Final = SleepCalls(
    sleep=VLLM_SLEEP.sleep, wake=VLLM_SLEEP.wake, asked=VLLM_SLEEP.asked, hint="only an emulated one can"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    kind: str
    name: str
    """Name for messages."""
    owned_by: str | None = None
    """The owner in the engine's list of models, by which the engine is recognised; None: it has no such name."""
    health: tuple[str, ...] = ("/health", "/v1/models")
    """Paths that say whether the engine can be used; the first that exists is asked."""
    live: str | None = None
    """Path that is cheaper to ask every second than its health; None: the health path is cheap."""
    deep: str | None = None
    """Path that generates a token; None, or not there: a completion of one token is requested."""
    metrics: str | None = "/metrics"
    """Path of metrics in Prometheus's text form; None: there are none to look for."""
    prefix: str | None = None
    """Prefix of the engine's metric names; None: unknown."""
    head: bytes = b""
    """Header lines for every request."""
    session: bytes | None = None
    """Header for a stable name of the conversation."""
    priority: Callable[[int], float] | None = None
    """Converts our priority, where 0 goes first, to its own. Only for replicas configured to heed it: others refuse
    it."""
    strict: bool = False
    """Whether the engine refuses a request with a field that it does not know."""
    abort: str | None = None
    """Path for telling that a request is cancelled; None: closing its connection is enough."""
    chat_continued: Continue | None = None
    """How the engine continues a chat; None: it cannot. A text completion can always be continued: its prompt is the
    original one plus the text so far."""
    load_adapter: str | None = None
    """Path that takes lora_name and lora_path; None: adapters are given at its start, or with each request."""
    warms_itself: bool = False
    """Whether the engine's health is good only after its own warm-up."""
    embeddings: bool = True
    """Whether the engine has /v1/embeddings, or that is unknown. The engine refuses if its model cannot embed."""
    ranges: Ranges = OPENAI_RANGES
    """The highest values that the engine accepts, where they go beyond OpenAI's."""
    keeps_bounds: bool = False
    """Whether the engine takes lane, priority and targets of a request as fields, and the bounds of its answer (time,
    repetition), which it then keeps itself."""
    wishes: str | None = None
    """Field of a body for free values, in which priority, deadline, gap target and expected tokens are told to our
    scheduler inside the engine (XARGS); the engine's own scheduler ignores them. None: there is none."""
    takes_default: bool = False
    """Whether the engine takes `default` for its model."""
    any_model: bool = False
    """Whether the engine serves models that its list does not name, such as adapters."""
    guarded: tuple[str, ...] = ()
    """Fields of a body that only trusted keys may send: where its KV goes to and comes from, which files and code it
    loads, which of its slots is used, and objects in which the engine would again find values that the gateway
    bounds."""
    gauges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Our name → the engine's names for the gauge, the newest first. A label in braces has to match."""
    rank_header: str | None = None
    """Header, in lower case, that names one of several data-parallel ranks behind an address; None: there is none."""
    about: tuple[str, ...] = ()
    """Paths at which the engine describes itself; the first that answers counts."""
    says: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What the description says, as `replica/description.py` names it → places in its JSON, the first that is there.
    Names and numbers of a place are separated by dots."""
    counts_chats: bool = False
    """Whether the engine's /tokenize takes a chat, and tells how many tokens its template makes of it."""
    steps: str | None = None
    """Path that tells the engine's latest steps; None: it has none."""
    sleeps: SleepCalls | None = None
    """How the engine is put to sleep, which gives its GPU's memory back; None: it can't be."""
    responses: bool | None = True
    """Whether the engine has /v1/responses; None: unknown. Engines that are not known to have it get a chat instead,
    where that means the same."""


DIALECTS: Final[dict[str, Dialect]] = {
    one.kind: one
    for one in (
        Dialect(
            kind="headgate", name="Headgate's engine", owned_by="headgate", health=("/health/ready",),
            deep="/health/deep", steps="/steps", prefix="headgate_engine_", head=b"x-headgate-timings: 1\r\n",
            chat_continued="pieces", warms_itself=True, embeddings=False, responses=False, keeps_bounds=True,
            counts_chats=True, takes_default=True, sleeps=EMULATED_SLEEP,
            ranges=Ranges(stops=16, text_logprobs=20, tools=1024),
            guarded=("continued", "generation_limit_ms", "runaway"),
            gauges={
                "emulated": ("headgate_engine_emulated",),
                "waiting": ("headgate_engine_sequences_waiting",),
                "batch_size": ("headgate_engine_sequences_running",),
                "batch_limit": ("headgate_engine_slots",),
                "kv_ratio": ("headgate_engine_kv_usage_ratio",),
                "preemptions": ("headgate_engine_preemptions_total",),
                "evictions": ("headgate_engine_prefix_evictions_total",),
                "cold_start_process_s": ('headgate_engine_cold_start_seconds{phase="process"}',),
                "cold_start_weights_s": ('headgate_engine_cold_start_seconds{phase="weights"}',),
                "cold_start_kv_s": ('headgate_engine_cold_start_seconds{phase="KV"}',),
                "cold_start_warm_up_s": ('headgate_engine_cold_start_seconds{phase="warm-up"}',),
            },
        ),
        Dialect(
            # Any priority but 0 is an error without --scheduling-policy priority. Adapters can be loaded only where
            # VLLM_ALLOW_RUNTIME_LORA_UPDATING is set.
            kind="vllm", name="vLLM", owned_by="vllm", prefix="vllm:", session=b"x-session-id",
            priority=lambda ours: ours, chat_continued="flags", load_adapter="/v1/load_lora_adapter",
            counts_chats=True, ranges=MANY_STOPS, wishes="vllm_xargs", sleeps=VLLM_SLEEP,
            guarded=(
                "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "logits_processors",
                "mm_processor_kwargs", "media_io_kwargs", "prompt_embeds", "chat_template",
                "request_id", "data_parallel_rank",
            ),
            gauges={
                "waiting": ("vllm:num_requests_waiting",),
                "batch_size": ("vllm:num_requests_running",),
                "kv_ratio": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
                "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
            },
            rank_header="x-data-parallel-rank",
            about=("/server_info?config_format=json",),  # there with VLLM_SERVER_DEV_MODE=1
            says={
                "batch_each": ("vllm_config.scheduler_config.max_num_seqs",),
                "step_tokens": ("vllm_config.scheduler_config.max_num_batched_tokens",),
                "ranks": ("vllm_config.parallel_config.data_parallel_size",),
                "kv_blocks": ("vllm_config.cache_config.num_gpu_blocks",),
                "block_tokens": ("vllm_config.cache_config.block_size",),
                "alone": ("vllm_config.parallel_config.data_parallel_external_lb",),
            },
        ),
        Dialect(
            # Its /health generates too, and takes at least a second. Higher priorities go first. A closed connection is
            # noticed only every 4 s unless the answer is streamed, so that cancelling is also told to /abort_request.
            kind="sglang", name="SGLang", owned_by="sglang", live="/v1/models", deep="/health_generate",
            prefix="sglang:", session=b"x-smg-routing-key", priority=lambda ours: -ours, abort="/abort_request",
            chat_continued="flag", load_adapter="/load_lora_adapter", ranges=MANY_STOPS,
            sleeps=SGLANG_SLEEP,
            guarded=(
                "lora_path", "lora_id", "custom_logit_processor", "custom_params", "bootstrap_host",
                "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "decode_tp_size",
                "routed_dp_rank", "disagg_prefill_dp_rank", "session_params", "input_embeds",
                "image_data", "video_data", "audio_data", "rid", "extra_key", "return_hidden_states",
                "return_routed_experts", "custom_labels", "sampling_params",
            ),
            gauges={
                "waiting": ("sglang:num_queue_reqs",),
                "batch_size": ("sglang:num_running_reqs",),
                "kv_ratio": ("sglang:token_usage",),
                "preemptions": ("sglang:num_retracted_requests_total",),
            },
            about=("/server_info", "/get_server_info"),
            says={
                "batch_each": ("internal_states.0.effective_max_running_requests_per_dp",),
                "batch": ("max_running_requests",),
                "step_tokens": ("chunked_prefill_size",),
                "kv_tokens": ("internal_states.0.memory_usage.token_capacity", "max_total_num_tokens"),
                "ranks": ("dp_size",),
            },
        ),
        Dialect(  # Its list of models gives the model's own name as owner: /info tells. `model` names an adapter.
            kind="tgi", name="TGI", prefix="tgi_", chat_continued="trimmed", embeddings=False, responses=False,
            any_model=True,
            guarded=("parameters", "adapter_id"),
            gauges={
                "waiting": ("tgi_queue_size",),
                "batch_size": ("tgi_batch_current_size",),
            },
            about=("/info",),
            says={
                "batch": ("max_batch_size",),
                "step_tokens": ("max_batch_prefill_tokens",),
                "kv_tokens": ("max_batch_total_tokens",),
            },
        ),
        Dialect(
            # /metrics are statistics of iterations, which are gone once read. Priorities are 0 to 1, higher first.
            # Adapters are a field of each request (lora_request).
            kind="tensorrt_llm", name="TensorRT-LLM", owned_by="tensorrt_llm", deep="/health_generate",
            metrics="/prometheus/metrics", prefix="trtllm_", session=b"x-session-id", strict=True,
            priority=lambda ours: min(1.0, max(0.0, 0.5 - ours / 200)),
            guarded=(
                "lora_request", "disaggregated_params", "scheduling_params", "prompt_token_ids",
                "conversation_params", "agent_hierarchy", "multi_modal_data", "py_executor_args",
            ),
            gauges={
                "waiting": ("trtllm_num_requests_waiting",),
                "batch_size": ("trtllm_num_requests_running",),
                "batch_limit": ("trtllm_max_num_active_requests",),
                "kv_ratio": ("trtllm_kv_cache_utilization",),
            },
        ),
        Dialect(  # Adapters are models with a name of their own, given at its start.
            kind="triton", name="Triton", owned_by="Triton Inference Server",
            health=("/health/ready", "/v2/health/ready", "/health", "/v1/models"), prefix="nv_", strict=True,
            responses=False,
            guarded=("nvext",),
            gauges={
                "waiting": ('nv_trt_llm_request_metrics{request_type="waiting"}',),
                "batch_size": ('nv_trt_llm_request_metrics{request_type="scheduled"}',),
                "batch_limit": ('nv_trt_llm_request_metrics{request_type="max"}',),
                "kv_ratio": ('nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',),
            },
        ),
        Dialect(  # 503 while it loads. Adapters are given at its start, and their scale is set at /lora-adapters.
            kind="llama_cpp", name="llama.cpp's server", owned_by="llamacpp", prefix="llamacpp:",
            chat_continued="message", ranges=MANY_STOPS,
            guarded=("id_slot", "slot_id", "lora", "n_keep", "n_discard", "response_fields"),
            gauges={
                "waiting": ("llamacpp:requests_deferred",),
                "batch_size": ("llamacpp:requests_processing",),
                "kv_ratio": ("llamacpp:kv_cache_usage_ratio",),
            },
            about=("/props",),
            says={"batch": ("total_slots",)},
        ),
        Dialect(
            kind="openai", name="an OpenAI server", metrics=None, responses=None,
            guarded=("options", "generation_config", "generation_kwargs", "extra_args", "engine_params"),
        ),
    )
}  # fmt: skip
PLAIN: Final = DIALECTS["openai"]


def dialect_of_kind(kind: str | None) -> Dialect:
    """The dialect of this kind; while it is unknown, that of a plain OpenAI server."""
    return DIALECTS.get(kind or "", PLAIN)
