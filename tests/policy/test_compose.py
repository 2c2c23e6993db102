"""What a config says is what the policies made from it do."""

import random

import pytest

from headgate.config.engine import BatchConfig, EngineConfig
from headgate.config.gateway import (
    ClassifyConfig,
    GatewayConfig,
    HealthConfig,
    RetryConfig,
    RoutingConfig,
    Tenant,
    TimeoutsConfig,
)
from headgate.config.output import TASKS, OutputConfig, TaskConfig
from headgate.model.tier import Tier
from headgate.policy.answers.output import Allowance
from headgate.policy.compose import batcher_for, capped, classifier, dispatcher_for, output_of, reconfigure

CONFIG = GatewayConfig(
    classify=ClassifyConfig(long_above_tokens=1000, fast_below_tokens=100),
    tenants=(Tenant(name="limited", key_sha256=("0" * 64,), requests_per_min=7), Tenant(name="free of limits")),
    tiers=(Tier(name="premium", weight=9.0, max_tokens=50), Tier(name="free")),
    routing=RoutingConfig(algorithm="token_aware", bounded_load_epsilon=0.5, exploration=0.5),
    timeouts=TimeoutsConfig(no_replica_wait_s=3.0),
    health=HealthConfig(failures=5, successes=4, cooldown_s=2.0, ramp_s=9.0),
    retry=RetryConfig(ratio=0.3, attempts=2),
)


def test_a_dispatcher_has_all_that_its_config_says() -> None:
    made = dispatcher_for(CONFIG, random.Random(1))
    assert list(made.lanes) == ["fast", "slow", "long", "batch"]
    assert made.tiers["premium"].weight == 9.0
    assert list(made.gate.tenants) == ["limited"]
    assert made.gate.tenants["limited"].requests_per_min == 7
    assert made.health.config is CONFIG.health
    assert (made.retries.ratio, made.retries.attempts) == (0.3, 2)
    assert made._sending.routing is CONFIG.routing
    assert made._refusals.no_replica_wait_s == 3.0


def test_a_running_one_takes_a_new_config_as_far_as_it_can() -> None:
    made = dispatcher_for(GatewayConfig(), random.Random(1))
    reconfigure(made, CONFIG)
    assert made.gate.tenants["limited"].requests_per_min == 7
    with pytest.raises(ValueError, match="start again"):
        reconfigure(made, GatewayConfig(routing=RoutingConfig(algorithm="round_robin")))


def test_lanes_are_told_apart_where_the_config_draws_the_lines() -> None:
    lane_of = classifier(CONFIG).lane_of
    assert [lane_of(tokens, True, False) for tokens in (99, 100, 1000, 1001)] == ["fast", "slow", "slow", "long"]
    assert lane_of(99, True, True) == "batch"


def test_a_tenant_may_say_no_more_than_its_tier() -> None:
    assert capped(Tenant(name="a", tier="premium"), CONFIG).max_tokens == 50
    assert capped(Tenant(name="a", tier="premium", max_tokens=20), CONFIG).max_tokens == 20
    assert capped(Tenant(name="a", tier="premium", max_tokens=90), CONFIG).max_tokens == 50
    assert capped(Tenant(name="a"), CONFIG).max_tokens is None


def test_memory_is_what_slots_hold_unless_less_is_said() -> None:
    whole = batcher_for(slots=4, slot_tokens=256)
    assert (whole.ledger.blocks, whole.ledger.host_blocks) == (64, 32)
    part = batcher_for(slots=4, slot_tokens=256, kv_tokens=512, host_tokens=0, batch=BatchConfig(step_tokens=99))
    assert (part.ledger.blocks, part.ledger.host_blocks, part.config.step_tokens) == (32, 0, 99)


@pytest.mark.parametrize(
    ("config", "most"),
    [
        (GatewayConfig(), 256),
        (GatewayConfig(embedded=EngineConfig()), 256),
        (GatewayConfig(embedded=EngineConfig(default_max_tokens=600)), 600),
        (
            GatewayConfig(
                embedded=EngineConfig(default_max_tokens=600),
                output=OutputConfig(tasks={**TASKS, "other": TaskConfig(runaway="quick")}),
            ),
            600,
        ),
        (
            GatewayConfig(
                embedded=EngineConfig(default_max_tokens=600),
                output=OutputConfig(tasks={**TASKS, "other": TaskConfig(max_tokens=90)}),
            ),
            90,
        ),
    ],
)
def test_an_operators_limit_for_requests_that_name_none_is_the_cap_of_the_task_other(
    config: GatewayConfig, most: int
) -> None:
    made = output_of(config)
    assert made.tasks["other"].max_tokens == most
    assert made.tasks["chat"] == TASKS["chat"]


@pytest.mark.parametrize(
    ("told", "tasks", "most"),
    [
        (None, {}, 384),
        (600, {}, 600),
        (256, {}, 256),
        (600, {"other": TaskConfig(max_tokens=90)}, 90),
        (600, {"chat": TaskConfig(max_tokens=500)}, 500),
    ],
)
def test_an_operators_limit_counts_for_a_chat_that_names_no_task(
    told: int | None, tasks: dict[str, TaskConfig], most: int
) -> None:
    made = output_of(
        GatewayConfig(embedded=EngineConfig(default_max_tokens=told), output=OutputConfig(tasks={**TASKS, **tasks}))
    )
    found = made.allow(None, None, None, 10, 4096, None, True, True)
    assert isinstance(found, Allowance)
    assert (found.tokens, found.task) == (most, "chat")
