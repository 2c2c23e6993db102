"""The gateway and the simulator are drivers of the same policies: what goes into both comes out of both alike."""

import hashlib
import random
from typing import Any

from headgate.bench.asker import Asker, Asking
from headgate.config.gateway import ClassifyConfig, GatewayConfig, Tenant
from headgate.gateway.intake.accept import Accepted
from headgate.model.clock import monotonic
from headgate.model.request import Request
from headgate.sim.intake import SimIntake
from headgate.wire.exchange import Exchange
from headgate.wiring.gateway import build_gateway
from headgate.workload.arrival import Arrival
from tests.gateway.test_output import Connection
from tests.wire.serving import live

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
    ] + [Arrival(at_s=500.0, prompt_tokens=20, output_tokens=9, tenant="shop", lane="slow")]


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
