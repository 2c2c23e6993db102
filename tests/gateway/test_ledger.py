"""Nothing is held when no request is under way, and what is held all the same is found."""

import json
import socket
from collections.abc import Callable
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headgate.model.lane import LANES
from headgate.model.request import Request
from headgate.policy.dispatch.passage import Passage
from headgate.policy.tenants.limits import TenantLimits
from tests import ledger
from tests.engine.process import ask
from tests.gateway.test_gateway import chat, double, gateway
from tests.gateway.versions import Scene, awaited, scene
from tests.ledger import not_zero
from tests.wire.serving import until

pytestmark = pytest.mark.timeout(60)
LIMITS = TenantLimits(tokens_per_min=1000)
LOST = Request(
    id="lost", arrived=0.0, model="chat-1", lane=next(iter(LANES)), priority=0, wait_until=inf, first_token_by=inf
)


def a_passage(it: Scene) -> None:
    dispatcher = it.gateway.dispatcher
    dispatcher.passages["lost"] = Passage(LOST, None, dispatcher.queues.of(LOST))


def a_place_in_a_queue(it: Scene) -> None:
    it.gateway.dispatcher.queues.of(LOST).queue.push(LOST)


def a_slot(it: Scene) -> None:
    it.gateway.dispatcher.index.loads["chat-1"].requests += 1


def a_slot_twice_given_back(it: Scene) -> None:
    it.gateway.dispatcher.index.loads["chat-1"].requests -= 1


def some_tokens(it: Scene) -> None:
    it.gateway.dispatcher.index.loads["chat-2"].decode_tokens += 5


def a_prompt(it: Scene) -> None:
    it.gateway.dispatcher.index.loads["chat-2"].prefill_tokens += 5


def a_lanes_count(it: Scene) -> None:
    next(iter(next(iter(it.gateway.dispatcher.model_queues.values())).tallies.values())).running += 1


def a_prefill(it: Scene) -> None:
    next(iter(next(iter(it.gateway.dispatcher.model_queues.values())).lanes.values())).prefills += 1


def a_reservation(it: Scene) -> None:
    it.gateway.dispatcher.gate.limits.take("t", LIMITS, 10, 0.0)


def a_record(it: Scene) -> None:
    it.gateway.account.open()


@pytest.mark.parametrize(
    ("leak", "entry"),
    [
        (a_passage, "passages"),
        (a_place_in_a_queue, "waiting"),
        (a_slot, "room"),
        (a_slot_twice_given_back, "room"),
        (some_tokens, "decode_tokens"),
        (a_prompt, "prefill_tokens"),
        (a_lanes_count, "running"),
        (a_prefill, "prefills"),
        (a_reservation, "reservations"),
        (a_record, "records_open"),
    ],
)
@awaited
async def test_what_is_never_given_back_is_found(leak: Callable[[Scene], None], entry: str) -> None:
    async def leaking() -> None:
        async with scene() as it:
            assert (await it.ask("n=2")).status == 200
            await ledger.settled(it.ledger)
            leak(it)
            await ledger.settled(it.ledger, 0.05)

    with pytest.raises(AssertionError, match=rf"'{entry}': -?\d"):
        await leaking()


@awaited
async def test_what_a_request_under_way_holds_is_counted_and_comes_back_when_its_client_leaves() -> None:
    async with scene() as it:
        body = {"model": "chat", "messages": [{"role": "user", "content": "n=500 itl=20"}], "stream": True}
        client = await it.send("POST", "/v1/chat/completions", body)
        assert (await client.head())[0] == 200
        held = not_zero(it.ledger)
        assert {held[name] for name in ("client_connections", "tickets", "records_open", "passages", "running")} == {1}
        assert {held["room"], held["room_indexed"], held["replica_connections"]} == {1}
        assert held["decode_tokens"] > 0
        client.leave()
        await until(lambda: not not_zero(it.ledger))


def test_a_gateway_process_is_asked(tmp_path: Path) -> None:
    with double() as (_, engine), gateway(tmp_path, {}, engine) as url:
        assert ask(f"{url}/v1/chat/completions", chat("n=2"))[0] == 200
        ledger.check(url)
        where = urlsplit(url)
        body = json.dumps(chat("n=500 itl=20", stream=True)).encode()
        with socket.create_connection((where.hostname, where.port)) as client:
            lines = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            client.sendall(f"{lines}content-length: {len(body)}\r\n\r\n".encode() + body)
            assert client.recv(15).startswith(b"HTTP/1.1 200")
            with pytest.raises(AssertionError, match="'tickets': 1"):
                ledger.check(url, 0.1)
        ledger.check_all()
