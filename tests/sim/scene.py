"""A small machine and small workloads for simulations in tests."""

import random

from headgate.config.engine import BatchConfig
from headgate.config.gateway import GatewayConfig
from headgate.machine.profile import Profile, StepCost
from headgate.sim.fleet import Delays, Failure, SimFleet, SimGroup
from headgate.sim.run import Level, Simulated, run
from headgate.workload.arrival import Arrival

NO_DELAYS = Delays(accept_s=0.0, send_s=0.0, back_s=0.0)
CONFIG = GatewayConfig()


def machine(**changes: object) -> Profile:
    """10 ms a step, 0.1 ms for each prompt token, 0.2 ms for each sequence."""
    fields: dict[str, object] = {
        "name": "small",
        "model": "a test's",
        "cost": StepCost(fixed=0.01, per_prefill=0.0001, per_decode=0.0002, per_context=1e-7),
        "slots": 16,
        "context": 4096,
        "kv_tokens": 32_768,
        "host_tokens": 16_384,
        "load_bytes_per_s": 1e10,
        "save_bytes_per_s": 1e10,
        "step_tokens": 528,
        "chunk_limit": 512,
    }
    return Profile(**{**fields, **changes})  # type: ignore[arg-type]


def poisson(seed: int, rate: float, count: int, prompt: tuple[int, int] = (20, 800), **fields: object) -> list[Arrival]:
    rng, now, made = random.Random(seed), 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        output = rng.randint(1, 60)
        made.append(Arrival(now, rng.randint(*prompt), output, stream=rng.random() < 0.9, **fields))  # type: ignore[arg-type]
    return made


def simulated(
    arrivals: list[Arrival],
    *,
    level: Level = "step",
    replicas: int = 1,
    seed: int = 1,
    config: GatewayConfig = CONFIG,
    failures: tuple[Failure, ...] = (),
    delays: Delays = NO_DELAYS,
    batch: BatchConfig | None = None,
    **changes: object,
) -> Simulated:
    member = SimGroup(profile=machine(**changes), count=replicas, batch=batch)
    return run(config, arrivals, SimFleet(members=(member,), failures=failures, delays=delays), seed, level)
