"""Says for each branch of the diagnosis what is wrong and which setting to change.

A setting is a key of the config file, a flag of an engine, or an action of the operator. `{lane}` is the lane's name.
"""

from typing import Literal

from headgate.explain.explanation import Kind
from headgate.model.outcome import Outcome

Severity = Literal["critical", "warning", "note"]

GROUPS: dict[Kind, str] = {
    "queue": "queue", "flood": "queue", "long_prefill": "long_prefill", "cold_replica": "cold",
    "asleep": "asleep",
    "killed_replica": "failing", "refused_replica": "failing", "retry": "failing", "eviction": "eviction",
    "gave_way": "gave_way",
    "gc_pause": "gateway", "loop_lag": "gateway", "slow_client": "slow_client", "own_prompt": "own_prompt",
    "generation": "batch", "unknown": "unknown",
}  # fmt: skip
"""The branch that each cause belongs to. `ordinary` has none."""

KV_HEADROOM = (
    "more KV memory or fewer sequences at once: replicas[].slots; our engine: --kv-tokens, --host-tokens, --slots; "
    "vLLM: --gpu-memory-utilization, --max-num-seqs"
)
WARM_UP = (
    "warm them up before they are used (warm.before_use, warm.system_prompts, warm.longest_tokens), and keep one warm; "
    "health.ramp_s sends them less at first"
)
READERS = "look for a proxy that buffers; lanes.{lane}.slow_client and timeouts.slow_client_grace_s"
CHUNKS = (
    "smaller prefill chunks (our engine: --step-limit-ms, --gap-target-ms; vLLM: --max-num-batched-tokens), or "
    "replicas of their own for long prompts: replicas[].lanes, classify.long_above_tokens"
)
ANSWERS: dict[str, tuple[str, str]] = {
    "queue": (
        "requests wait for room at the replicas",
        "add replicas (replicas:, --replica); lanes.{lane}.weight or .reserve gives this lane more of them",
    ),
    "long_prefill": ("long prompts of others are prefilled in the way", CHUNKS),
    "cold": ("requests meet cold replicas", WARM_UP),
    "asleep": (
        "requests wait for sleeping replicas to wake up",
        "a longer fleet.scale.sleep_after_s, a higher fleet.scale.min, or fleet.scale.forecast: true, which wakes them "
        "ahead of the demand",
    ),
    "failing": (
        "time is lost on replicas that fail or refuse before another is asked",
        "repair or remove them; timeouts.connect_s and health.failures give up on them sooner",
    ),
    "eviction": ("requests are evicted in the middle and start over", KV_HEADROOM),
    "gave_way": (
        "requests give their slots up to more urgent ones, and get them back later",
        "more slots (our engine: --slots) or more replicas; replicas[].lanes gives a lane some of its own",
    ),
    "gateway": ("this gateway itself pauses", "give it a core of its own, or run several gateways"),
    "slow_client": ("clients send or read slowly", READERS),
    "own_prompt": (
        "the prompts themselves take that long to prefill",
        "shared prefixes first, so that they are cached (routing.algorithm: prefix); a lower "
        "classify.fast_below_tokens puts longer prompts into another lane",
    ),
    "batch": (
        "tokens come slowly: the batch is larger than this lane's promise allows",
        "fewer sequences at once: replicas[].slots; or more replicas",
    ),
    "long_context": (
        "long contexts share a batch with these requests and slow every step down",
        "cap what may share one (our engine: --longest-shared), or replicas of their own: replicas[].lanes",
    ),
    "ballooning": (
        "a few answers are far longer than the rest",
        "cap them: max_tokens, tenants.*.max_tokens, embedded.default_max_tokens; stop sequences; a time limit",
    ),
    "unknown": (
        "the replicas are slow, and nothing seen from here says why",
        "look at one of them: headgate slow --lane {lane}, then headgate why ID; and at the replicas' own figures",
    ),
}

REFUSALS: dict[Outcome, tuple[Severity, str, str]] = {
    Outcome.OVER_LIMIT: (
        "note", "tenants are over their limits", "tenants.*.requests_per_min, .tokens_per_min and .concurrency",
    ),
    Outcome.LANE_FULL: (
        "warning", "the lane's queue is full", "add replicas; lanes.{lane}.queue_limit",
    ),
    Outcome.WOULD_WAIT_TOO_LONG: (
        "warning", "requests would wait longer than their lane allows", "add replicas; lanes.{lane}.wait_bound_s",
    ),
    Outcome.WAITED_TOO_LONG: (
        "warning", "requests waited as long as their lane allows", "add replicas; lanes.{lane}.wait_bound_s",
    ),
    Outcome.QUEUE_FULL: (
        "warning", "a replica's own queue is full", "replicas[].slots: fewer than it can take",
    ),
    Outcome.NOT_READY: (
        "warning", "requests come while nothing is ready", "send traffic once /health/ready says 200",
    ),
}  # fmt: skip
