"""A double of each kind of engine: the endpoints that it has and the way it answers there, as its sources say. It
computes nothing. The pages of metrics are ours, written in the form in which each engine writes its own.

python -m tests.replica.kinds KIND is one in a process of its own; GET /asked tells what it was asked.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from headgate.wire.exchange import Exchange
from tests.wire.serving import serving

ROOT = Path(__file__).parent.parent.parent

MODEL = "m"

METRICS: dict[str, str] = {
    "headgate": """# HELP headgate_engine_sequences_waiting Sequences waiting for a slot
# TYPE headgate_engine_sequences_waiting gauge
headgate_engine_sequences_waiting 3.0
headgate_engine_sequences_running 5.0
headgate_engine_slots 8.0
headgate_engine_kv_usage_ratio 0.25
headgate_engine_preemptions_total{kind="swap"} 2.0
headgate_engine_preemptions_total{kind="recompute"} 1.0
headgate_engine_prefix_evictions_total 7.0
headgate_engine_cold_start_seconds{phase="weights"} 0.5
""",
    "vllm": """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.125
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 9.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
""",
    "sglang": """# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="1"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="0",tp_rank="0"} 3.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="-2",tp_rank="0"} 1.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="0"} 7.0
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.28
# TYPE sglang:num_retracted_reqs gauge
sglang:num_retracted_reqs{engine_type="unified",model_name="m"} 1.0
# TYPE sglang:num_retracted_requests_total counter
sglang:num_retracted_requests_total{engine_type="unified",model_name="m"} 6.0
""",
    "tgi": """# TYPE tgi_request_count counter
tgi_request_count 149

# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 12

# TYPE tgi_batch_current_max_tokens gauge
tgi_batch_current_max_tokens 16384

# TYPE tgi_queue_size gauge
tgi_queue_size 5

# TYPE tgi_request_queue_duration histogram
tgi_request_queue_duration_bucket{le="0.0001"} 1
""",
    "tensorrt_llm": """# HELP trtllm_num_requests_running Number of active requests
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 6.0
# TYPE trtllm_num_requests_waiting gauge
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
# TYPE trtllm_max_num_active_requests gauge
trtllm_max_num_active_requests{engine_type="trtllm",model_name="m"} 64.0
# TYPE trtllm_kv_cache_utilization gauge
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.62
""",
    "triton": """# HELP nv_inference_request_success Number of successful inference requests
nv_inference_request_success{model="m",version="1"} 3
# HELP nv_trt_llm_request_metrics TRT LLM request metrics
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 6
nv_trt_llm_request_metrics{model="m",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 8
nv_trt_llm_request_metrics{model="m",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="m",request_type="active",version="1"} 9
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m",version="1"} 0.75
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m",version="1"} 300
""",
    "llama_cpp": """# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 3
""",
}

OWNERS = {
    "headgate": "headgate",
    "vllm": "vllm",
    "sglang": "sglang",
    "tgi": MODEL,
    "tensorrt_llm": "tensorrt_llm",
    "triton": "Triton Inference Server",
    "llama_cpp": "llamacpp",
    "openai": "somebody",
}
HEALTH = {"headgate": "/health/ready", "triton": "/health/ready"}
DEEP = {"headgate": "/health/deep", "sglang": "/health_generate", "tensorrt_llm": "/health_generate"}
HOLD = 4711
"""A request with this seed is never answered."""
STRICT = ("tensorrt_llm", "triton")
FIELDS = {"model", "messages", "prompt", "max_tokens", "temperature", "stream", "stream_options", "priority"}


@dataclass
class Double:
    kind: str
    signs: bool = True
    """False: a proxy in between has renamed the owner of its models."""
    adapters: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    status: int = 200
    """Status of an answer to a generation."""
    longest: int = 1 << 30
    """Characters of a prompt; more is refused as too long."""
    url: str = ""
    batch: int = 4
    """Requests that it says it computes at once."""
    absurd: Any = None
    """What it describes itself with instead. None: the truth."""

    def paths(self, method: str = "GET") -> list[str]:
        return [path for asked, path in self.asked if asked == method]

    def __call__(self, exchange: Exchange) -> None:
        path = exchange.path
        if path == "/asked":
            exchange.respond(200, msgspec.json.encode({"bodies": self.bodies, "headers": self.headers}))
            return
        self.asked.append((exchange.method, path))
        if exchange.method == "POST":
            self.headers.append(exchange.headers)
            self.post(exchange, path)
            return
        answer = self.pages().get(path)
        if answer is None:
            exchange.respond(404, b'{"detail":"Not Found"}')
        elif path == DEEP.get(self.kind):
            exchange.respond(self.status, b"{}")
        else:
            exchange.respond(200, answer if isinstance(answer, bytes) else msgspec.json.encode(answer))

    def pages(self) -> dict[str, Any]:
        """What it answers to GET."""
        cards = [self.card(MODEL)] + [self.card(name, MODEL) for name in self.adapters]
        pages: dict[str, Any] = {"/v1/models": {"object": "list", "data": cards}}
        pages[HEALTH.get(self.kind, "/health")] = {}
        if self.kind in DEEP:
            pages[DEEP[self.kind]] = {}
        if self.kind == "tensorrt_llm":
            pages |= {"/metrics": [{"gpuMemUsage": 1}], "/prometheus/metrics": METRICS[self.kind].encode()}
        elif self.kind in METRICS:
            pages["/metrics"] = METRICS[self.kind].encode()
        pages |= self.described() if self.absurd is None else dict.fromkeys(self.described(), self.absurd)
        return pages

    def described(self) -> dict[str, Any]:
        """Pages on which it describes itself."""
        if self.kind == "vllm":
            parallel = {"data_parallel_size": 2, "data_parallel_external_lb": False}
            scheduler = {"max_num_seqs": self.batch // 2, "max_num_batched_tokens": 2048}
            return {"/server_info": {"vllm_config": {"parallel_config": parallel, "scheduler_config": scheduler}}}
        if self.kind == "sglang":
            state = {"effective_max_running_requests_per_dp": self.batch, "memory_usage": {"token_capacity": 20480}}
            return {"/get_server_info": {"max_running_requests": None, "dp_size": 1, "internal_states": [state]}}
        if self.kind == "tgi":
            info = {"model_id": MODEL, "router": "text-generation-router", "max_total_tokens": 2048}
            return {"/info": {**info, "max_batch_size": self.batch, "max_batch_total_tokens": 16384}}
        if self.kind == "llama_cpp":
            return {"/props": {"total_slots": self.batch, "model_path": "x.gguf"}}
        return {}

    def card(self, name: str, parent: str | None = None) -> dict[str, Any]:
        card: dict[str, Any] = {"id": name, "object": "model", "owned_by": OWNERS[self.kind] if self.signs else "us"}
        if self.kind in ("vllm", "sglang", "headgate"):
            card["max_model_len"] = 4096
        if self.kind in ("vllm", "sglang"):
            card["parent"] = parent
        return card

    def post(self, exchange: Exchange, path: str) -> None:
        body = msgspec.json.decode(exchange.body)
        if path in ("/v1/load_lora_adapter", "/load_lora_adapter"):
            if path.startswith("/v1") != (self.kind == "vllm") or self.kind not in ("vllm", "sglang"):
                exchange.respond(404, b"{}")
                return
            self.adapters[body["lora_name"]] = body["lora_path"]
            exchange.respond(200, b"Success")
        elif path == "/abort_request" and self.kind == "sglang":
            self.bodies.append(body)
            exchange.respond(200, b"")
        elif path in ("/v1/chat/completions", "/v1/completions"):
            self.bodies.append(body)
            self.generate(exchange, body)
        else:
            exchange.respond(404, b"{}")

    def generate(self, exchange: Exchange, body: dict[str, Any]) -> None:
        unknown = set(body) - FIELDS
        if self.kind in STRICT and unknown:
            exchange.respond(400, msgspec.json.encode({"message": f"extra: {unknown}", "code": 400}))
        elif len(str(body.get("messages") or body.get("prompt"))) > self.longest:
            exchange.respond(400, b'{"error":{"message":"maximum context length","code":400}}')
        elif self.kind in ("vllm", "sglang") and body["model"] not in (MODEL, *self.adapters):
            exchange.respond(404, b'{"error":{"message":"no such model","code":404}}')
        elif body.get("seed") == HOLD:
            pass
        elif self.status != 200:
            exchange.respond(self.status, b'{"error":{"message":"it is broken","code":500}}')
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": "w"}, "finish_reason": "length"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1}
            exchange.respond(200, msgspec.json.encode({"id": "x", "choices": [choice], "usage": usage}))


@contextlib.asynccontextmanager
async def double(kind: str, **settings: Any) -> AsyncIterator[Double]:
    made = Double(kind, **settings)
    async with serving(made) as served:
        made.url = f"http://127.0.0.1:{served.port}"
        yield made


@contextlib.contextmanager
def double_process(kind: str) -> Iterator[str]:
    command = (sys.executable, "-m", "tests.replica.kinds", kind)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def main(kind: str) -> None:
    async with double(kind) as made:
        print(made.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
