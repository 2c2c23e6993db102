"""The gateway and the simulator are drivers of the same policies: what goes into both comes out of both alike."""

import hashlib
import itertools
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headgate
from headgate.bench.asker import Asker, Asking
from headgate.config.engine import EngineConfig
from headgate.config.file import parse
from headgate.config.gateway import ClassifyConfig, GatewayConfig, Tenant
from headgate.engine.emulation import emulated_config, emulated_engine
from headgate.engine.intake import Intake
from headgate.engine.openai import ChatBody
from headgate.engine.runner.emulated_tokenizer import EmulatedTokenizer
from headgate.engine.runner.profile_file import find
from headgate.gateway.intake.accept import Accepted
from headgate.machine.profile import Profile
from headgate.model.clock import monotonic
from headgate.model.request import Request
from headgate.model.sequence import Sequence
from headgate.policy.batching.batch import Batcher
from headgate.policy.compose import dispatcher_for
from headgate.replica.dialects import with_promises
from headgate.sim.fleet import Delays, SimGroup, dilated, fleet_from
from headgate.sim.gateway import SimGateway, SimTicket
from headgate.sim.intake import SimIntake
from headgate.sim.replica import SteppedReplica
from headgate.sim.world import World
from headgate.wire.exchange import Exchange
from headgate.wiring.gateway import build_gateway
from headgate.workload.arrival import Arrival
from tests.gateway.test_output import Connection
from tests.wire.serving import live

ROOT = Path(headgate.__file__).parent
CHAT = "/v1/chat/completions"

KEYS = {"shop": "shop-key", "night": "night-key"}


def digest(tenant: str) -> tuple[str, ...]:
    return (hashlib.sha256(KEYS[tenant].encode()).hexdigest(),)


CONFIG = GatewayConfig(
    classify=ClassifyConfig(long_above_tokens=6000, fast_below_tokens=300),
    tenants=(
        Tenant(name="shop", key_sha256=digest("shop"), weight=3.0, trusted=True),
        Tenant(name="night", key_sha256=digest("night"), default_lane="batch", max_tokens=90),
    ),
)


def asked(arrival: Arrival, body: bytes, number: int) -> Exchange:
    exchange = Exchange(Connection(), arrival.at_s)
    exchange.path, exchange.request_id, exchange.body = CHAT, str(number), body
    key = KEYS.get(arrival.tenant or "")
    exchange.headers = {} if key is None else {"authorization": f"Bearer {key}"}
    exchange.headers |= {} if arrival.lane is None else {"x-headgate-lane": arrival.lane}
    exchange.headers |= {} if arrival.session is None else {"x-headgate-session": arrival.session}
    for name, promised_s in (("ttft", arrival.ttft_s), ("tpot", arrival.tpot_s)):
        exchange.headers |= {} if promised_s is None else {f"x-headgate-{name}-ms": f"{promised_s * 1e3:.3f}"}
    return exchange


def plain(request: Request) -> dict[str, Any]:
    """The fields that do not come from the text: a simulated prompt has none, so its hashes are its own."""
    return {name: value for name, value in request.fields().items() if name != "prefix"}


def arrivals(rng: random.Random) -> list[Arrival]:
    return [
        Arrival(
            at_s=float(number),
            prompt_tokens=int(rng.lognormvariate(6.0, 1.5)) + 1,
            output_tokens=rng.randrange(1, 900),
            tenant=rng.choice((None, "shop", "night")),
            stream=rng.random() < 0.7,
            session=rng.choice((None, "a", "b")),
            model=rng.choice((None, "m")),
        )
        for number in range(400)
    ] + [
        Arrival(at_s=500.0, prompt_tokens=20, output_tokens=9, tenant="shop", lane="slow"),
        Arrival(at_s=501.0, prompt_tokens=20, output_tokens=9, tenant="shop", ttft_s=0.25, tpot_s=0.002),
        Arrival(at_s=502.0, prompt_tokens=20, output_tokens=9, tenant="shop", lane="slow", ttft_s=4000.0),
    ]


@live
async def test_the_same_asks_become_the_same_requests_and_teach_the_same() -> None:
    gateway, simulated = build_gateway(CONFIG, monotonic, 1), SimIntake(CONFIG)
    asker, rng = Asker(("http://127.0.0.1:1",), Asking(), monotonic), random.Random(4)
    seen = set()
    for number, arrival in enumerate(arrivals(rng)):
        accepted: Accepted = gateway.acceptor.accept(asked(arrival, asker.prepare(arrival)[2], number))
        request, output = simulated.request(arrival, number, arrival.at_s)
        assert plain(request) == plain(accepted.request)
        assert accepted.allowance is not None
        assert output == accepted.allowance.tokens
        seen.add(request.lane)
        if rng.random() < 0.8:  # the chat template adds twelve tokens, and the answer may end early
            usage = (arrival.prompt_tokens + 12, rng.randrange(1, output + 1))
            gateway.acceptor.learn(accepted, *usage)
            simulated.learn(request, arrival, *usage)
    assert seen == {"fast", "slow", "long", "batch"}
    await asker.close()


# -- batchers ---------------------------------------------------------------------------------------------------


def settings(batcher: Batcher) -> dict[str, Any]:
    """All that a new Batcher is told."""
    ledger, time = batcher.ledger, batcher.step_time
    return {
        "config": batcher.config,
        "memory": (ledger.slots, ledger.slot_tokens, ledger.blocks, ledger.host_blocks, ledger.block_tokens),
        "steps": tuple(time.coefficients),
        "moves": (time.moves.save.token_s, time.moves.load.token_s, time.moves.copy.token_s),
    }


def emulated(profile: Profile, config: EngineConfig, dilation: float = 1.0) -> Batcher:
    rng, sink = random.Random(1), lambda batch: None
    engine, _ = emulated_engine(
        profile, config, clock=monotonic, sink=sink, ids=itertools.count(1), rng=rng, dilation=dilation
    )
    return engine.batcher


def simulated(member: SimGroup) -> Batcher:
    world = World()
    gateway = SimGateway(
        world, dispatcher_for(GatewayConfig(), random.Random(1)), SimIntake(GatewayConfig()), Delays(), lambda *_: None
    )
    return SteppedReplica(world, gateway, "a", member, Delays(), None).batcher


def test_one_config_makes_one_batcher_emulated_and_simulated() -> None:
    profile = find("h100-llama3-8b")
    assert settings(simulated(SimGroup(profile=profile))) == settings(emulated(profile, emulated_config(profile)))
    config = parse("embedded: {longest_shared: 2048, step_limit_s: 0.07}", "x.yaml")
    told = replace(emulated_config(profile), longest_shared=2048, step_limit_s=0.07)
    found = simulated(fleet_from(config, profile).members[0])
    assert settings(found) == settings(emulated(profile, told))
    assert settings(simulated(dilated(profile, 2.0))) == settings(emulated(profile, emulated_config(profile), 2.0))


def waiting(batcher: Batcher) -> Sequence:
    (sequence,) = batcher.waiting.values()
    return sequence


def asked_live(config: GatewayConfig, engine: EngineConfig, accepted: Accepted) -> Sequence:
    """The request as the engine's Batcher has it, sent by the gateway in the engine's dialect."""
    profile, request = find("h100-llama3-8b"), accepted.request
    lanes, tiers = {lane.name: lane for lane in config.lanes}, {tier.name: tier for tier in config.tiers}
    body = with_promises(accepted, lanes[request.lane], tiers[request.tier], "1")
    decoded = msgspec.convert({**body, "model": "m"}, ChatBody)
    intake = Intake(engine, EmulatedTokenizer(), 4096, itertools.count(1), random.Random(1))
    [sequence], _ = intake.sequences(decoded, 0.0)
    batcher = emulated(profile, engine)
    assert batcher.add(sequence) is None
    return waiting(batcher)


def asked_simulated(config: GatewayConfig, arrival: Arrival) -> Sequence:
    """The same as the simulated replica's Batcher has it."""
    world, intake = World(), SimIntake(config)
    gateway = SimGateway(world, dispatcher_for(config, random.Random(1)), intake, Delays(), lambda *_: None)
    (seat,) = fleet_from(config, find("h100-llama3-8b")).seats
    replica = SteppedReplica(world, gateway, seat.replica.id, seat.member, Delays(), None)
    request, output = intake.request(arrival, 1, 0.0)
    sequence = replica._sequence(SimTicket(1, arrival, request, output, 0.0))
    assert replica.batcher.add(sequence) is None
    return waiting(replica.batcher)


@pytest.mark.parametrize(
    ("embedded", "gap_s"),
    [("", 0.2), ("gap_target_s: 0.05", 0.05), ("gap_target_s: 0.5", 0.2), ("in_order: true", 0.2)],
)
@live
async def test_an_engines_gap_target_and_order_count_alike_live_and_simulated(embedded: str, gap_s: float) -> None:
    """The gateway names lane and gap of every request: an engine's own target only makes gaps shorter, and its order
    is for requests without a lane."""
    config = parse(f"embedded: {{slots: 8, {embedded}}}", "x.yaml")
    assert config.embedded is not None
    engine = replace(emulated_config(find("h100-llama3-8b")), model_name="m", **given(config.embedded))
    arrival = Arrival(at_s=0.0, prompt_tokens=20, output_tokens=9)
    asker = Asker(("http://127.0.0.1:1",), Asking(), monotonic)
    gateway = build_gateway(config, monotonic, 1)
    live_one = asked_live(config, engine, gateway.acceptor.accept(asked(arrival, asker.prepare(arrival)[2], 1)))
    simulated_one = asked_simulated(config, arrival)
    told = [(each.lane, each.priority, each.gap_target_s, each.first_token_by) for each in (live_one, simulated_one)]
    assert told == [("fast", 0, gap_s, 0.5)] * 2
    await asker.close()


def given(embedded: EngineConfig) -> dict[str, Any]:
    return {"gap_target_s": embedded.gap_target_s, "in_order": embedded.in_order}


def test_one_module_makes_batchers() -> None:
    making = [
        path
        for path in ROOT.rglob("*.py")
        if re.search(r"(?<!class )\b(Batcher|(Paged)?Ledger)\(", path.read_text("utf-8"))
    ]
    assert [path.relative_to(ROOT).as_posix() for path in making] == ["policy/compose.py"]
