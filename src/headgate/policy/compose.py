"""Builds the policies of a config. Gateway, engine and simulator build them here, so that they can't differ."""

import random
from dataclasses import replace

from headgate.config.engine import BatchConfig
from headgate.config.gateway import GatewayConfig, Tenant
from headgate.config.output import OTHER, TASKS
from headgate.model.lane import Lane
from headgate.model.tier import Tier
from headgate.policy.answers.output import Output
from headgate.policy.batching.batch import Batcher
from headgate.policy.batching.blocks import Ledger
from headgate.policy.batching.estimate import StepTime
from headgate.policy.batching.ledger import KvLedger
from headgate.policy.batching.move_time import MoveTime
from headgate.policy.batching.paged import PagedLedger
from headgate.policy.dispatch.dispatcher import Dispatcher, DispatchSettings
from headgate.policy.dispatch.hedge import Hedger
from headgate.policy.dispatch.intake import CachedTokens, Classifier, RequestIntake
from headgate.policy.dispatch.retry import RetryBudget
from headgate.policy.replicas.health import Health
from headgate.policy.tenants.limits import TenantLimits
from headgate.policy.tenants.standing_room import NamedTenants

BLOCK_TOKENS = 16
"""Tokens per block of KV memory."""


def dispatcher_for(config: GatewayConfig, rng: random.Random) -> Dispatcher:
    return Dispatcher(
        dispatch_settings(config),
        Health(config.health),
        rng,
        retries=RetryBudget(config.retry),
        hedger=Hedger(config.hedge) if config.hedge.enabled else None,
        no_replica_wait_s=config.timeouts.no_replica_wait_s,
    )


def reconfigure(dispatcher: Dispatcher, config: GatewayConfig) -> None:
    """Applies as much of a new config as a running dispatcher takes. Raises ValueError, with the reason, if it takes
    none."""
    dispatcher.reconfigure(dispatch_settings(config))


def dispatch_settings(config: GatewayConfig) -> DispatchSettings:
    return DispatchSettings(
        lanes={lane.name: lane for lane in config.lanes},
        tenants=tenant_limits(config),
        routing=config.routing,
        tiers=tiers(config),
        expected=expected(config),
    )


def batcher_for(
    *,
    slots: int,
    slot_tokens: int,
    kv_tokens: int | None = None,
    host_tokens: int | None = None,
    block_tokens: int = BLOCK_TOKENS,
    paged: bool = False,
    batch: BatchConfig | None = None,
    step_s: tuple[float, float, float, float] | None = None,
    move_s: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> Batcher:
    """Builds the batcher of every engine: real, emulated and simulated. `kv_tokens` None: all that the slots hold.
    `host_tokens` None: half of what the slots hold. `paged`: sequences that begin alike share memory. `step_s`: the
    first values of StepTime's coefficients; None: the defaults. `move_s`: seconds assumed for saving, loading and
    copying the KV of a token, before any is moved."""
    physical = slots * slot_tokens
    ledger = (PagedLedger if paged else Ledger)(
        slots=slots,
        slot_tokens=slot_tokens,
        blocks=(physical if kv_tokens is None else kv_tokens) // block_tokens,
        host_blocks=host_tokens_of(slots, slot_tokens, host_tokens) // block_tokens,
        block_tokens=block_tokens,
    )
    return batcher_over(ledger, batch or BatchConfig(), step_s, move_s)


def batcher_over(
    ledger: KvLedger,
    batch: BatchConfig,
    step_s: tuple[float, float, float, float] | None = None,
    move_s: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> Batcher:
    """The same over a ledger that the engine has made, because its memory is laid out by it."""
    moves = MoveTime(*move_s)
    return Batcher(batch, ledger, StepTime(moves=moves) if step_s is None else StepTime(step_s, moves))


def host_tokens_of(slots: int, slot_tokens: int, host_tokens: int | None) -> int:
    """Returns the host memory for swapped and cached KV, in tokens: as asked for, or half of what the slots hold."""
    return slots * slot_tokens // 2 if host_tokens is None else host_tokens


def intake_for(config: GatewayConfig, lanes: dict[str, Lane], cached: CachedTokens | None = None) -> RequestIntake:
    """Builds the intake of a gateway or a simulation. `lanes`: the dispatcher's dictionary, which a new config changes
    in place. `cached`: the dispatcher's knowledge of caches; None: every prompt is computed whole."""
    return RequestIntake(lanes, classifier(config), output_of(config), cached, config.promises)


def classifier(config: GatewayConfig) -> Classifier:
    lines = config.classify
    return Classifier(lines.long_above_tokens, lines.fast_below_tokens)


def output_of(config: GatewayConfig) -> Output:
    """Returns the output caps. The embedded engines' `default_max_tokens`, if the operator sets it, is the cap of the
    task `other` and of chats that name no task, unless those have a cap of their own."""
    chosen, embedded = config.output, config.embedded
    told = None if embedded is None else embedded.default_max_tokens
    other = chosen.tasks.get(OTHER)
    if told is not None and other is not None and other.max_tokens == TASKS[OTHER].max_tokens:
        chosen = replace(chosen, tasks={**chosen.tasks, OTHER: replace(other, max_tokens=told)})
    return Output(chosen, told)


def capped(tenant: Tenant, config: GatewayConfig) -> Tenant:
    """Returns the tenant with its tier's output ceiling, where that is lower."""
    ceilings = [tier.max_tokens for tier in config.tiers if tier.name == tenant.tier and tier.max_tokens is not None]
    own = [] if tenant.max_tokens is None else [tenant.max_tokens]
    return replace(tenant, max_tokens=min(ceilings + own, default=None))


def tiers(config: GatewayConfig) -> dict[str, Tier]:
    return {tier.name: tier for tier in config.tiers}


def expected(config: GatewayConfig) -> NamedTenants:
    tenants = (*config.tenants, config.anonymous)
    return NamedTenants(
        {tenant.name: tenant.weight for tenant in config.tenants if tenant.allowed},
        {tenant.name: tenant.concurrency for tenant in tenants if tenant.concurrency is not None},
        {tenant.name: tenant.lanes for tenant in tenants if tenant.lanes},
    )


def tenant_limits(config: GatewayConfig) -> dict[str, TenantLimits]:
    """Returns the rate limits of the tenants that have any."""
    return {
        tenant.name: TenantLimits(
            requests_per_min=tenant.requests_per_min,
            tokens_per_min=tenant.tokens_per_min,
            uncached=tenant.count_tokens == "uncached",
        )
        for tenant in (*config.tenants, config.anonymous)
        if tenant.requests_per_min is not None or tenant.tokens_per_min is not None
    }
