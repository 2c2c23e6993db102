"""Counts what the scheduler inside vLLM does, on vLLM's own /metrics.

The scheduler runs in a process of its own beside the server: both need PROMETHEUS_MULTIPROC_DIR, an empty folder, or
the server does not see these. `headgate serve --vllm` gives one to each replica.
"""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

CHUNKS = (0, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
RATIOS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0)


class StepCounters:
    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._steps = Counter("headgate_vllm_steps", "Steps that Headgate chose.", registry=registry)
        self._chunk = Histogram(
            "headgate_vllm_chunk_tokens",
            "Prompt tokens of each step beside streams.",
            buckets=CHUNKS,
            registry=registry,
        )
        self._seconds = Counter("headgate_vllm_step_seconds", "Duration of all steps.", registry=registry)
        self._predicted = Counter(
            "headgate_vllm_step_predicted_seconds", "Predicted duration of all steps.", registry=registry
        )
        self._ratio = Histogram(
            "headgate_vllm_step_ratio", "Duration of each step over the predicted one.", buckets=RATIOS,
            registry=registry,
        )  # fmt: skip
        self._left_out = Counter(
            "headgate_vllm_left_out", "Prompts left out of a step for a more urgent arrival.", registry=registry
        )
        self._relegated = Counter(
            "headgate_vllm_relegated",
            "Requests lowered to the lane of what they really compute: an expected prefix was not cached.",
            registry=registry,
        )
        self._failures = Counter(
            "headgate_vllm_failures", "Steps left to vLLM's own choice after an error in Headgate's.", registry=registry
        )
        self._gap = Gauge(
            "headgate_vllm_gap_target_seconds",
            "Shortest gap between tokens that the latest step was to keep; 0: no stream ran.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self._slots = Gauge(
            "headgate_vllm_slots", "Sequences that may run at once.", registry=registry, multiprocess_mode="mostrecent"
        )

    def slots(self, slots: int) -> None:
        self._slots.set(slots)

    def planned(self, chunk: int, gap_s: float, left_out: int) -> None:
        self._steps.inc()
        self._gap.set(gap_s)
        if gap_s and chunk:
            self._chunk.observe(chunk)
        if left_out:
            self._left_out.inc(left_out)

    def back(self, took_s: float, predicted_s: float) -> None:
        self._seconds.inc(took_s)
        self._predicted.inc(predicted_s)
        self._ratio.observe(took_s / max(predicted_s, 1e-9))

    def relegated(self) -> None:
        self._relegated.inc()

    def failed(self) -> None:
        self._failures.inc()
