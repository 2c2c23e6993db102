"""SIGTERM while clients that keep their connections go on asking: every request is answered, and no connection is
reset."""

import asyncio
import json
import signal
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed

from tests.engine.process import headgate
from tests.gateway.test_gateway import chat, double
from tests.wire.hammer import Tally, hammer

pytestmark = pytest.mark.timeout(60)


def gateway_file(folder: Path, *engines: str, **config: Any) -> str:
    path = folder / "headgate.yaml"
    replicas = [{"url": url, "slots": 64} for url in engines]
    path.write_text(json.dumps({"replicas": replicas, "listen": {"port": 0}, **config}))
    return str(path)


def asked(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    lines = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return f"{lines}content-length: {len(data)}\r\n\r\n".encode() + data


SHORT, STREAM = asked(chat("n=2")), asked(chat("ttft=5 itl=5 n=10", stream=True))


@pytest.mark.parametrize("pause_s", [0.0, 0.05, 1.5], ids=["busy", "now and then", "seldom"])
def test_no_request_is_cut_while_clients_hammer_on_kept_connections(tmp_path: Path, pause_s: float) -> None:
    with double() as (_, engine), headgate("serve", "--config", gateway_file(tmp_path, engine)) as (process, url):
        where = urlsplit(url)
        tally = Tally()

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection(where.hostname, where.port)

        async def run() -> None:
            clients = [hammer(connect, STREAM if n % 3 == 0 else SHORT, tally, pause_s, n) for n in range(24)]
            tasks = [asyncio.create_task(client) for client in clients]
            await asyncio.sleep(0.7)
            assert not tally.closes
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                await asyncio.gather(*tasks)

        asyncio.run(run())
        began = time.monotonic()
        assert process.wait(10) == 0
        assert time.monotonic() - began < 5
    assert tally.cut == []
    assert set(tally.answers) <= {200}
    assert tally.answers[200] >= 12
    assert tally.refused == 24
    if pause_s < 0.5:
        assert tally.closes >= 24  # everybody was told, and nobody had to find out


def test_pipelined_requests_that_are_in_hand_are_all_answered(tmp_path: Path) -> None:
    with double() as (_, engine), headgate("serve", "--config", gateway_file(tmp_path, engine)) as (process, url):
        where = urlsplit(url)
        with socket.create_connection((where.hostname, where.port)) as client:
            client.sendall(asked(chat("ttft=400 n=1")) * 4)
            time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            received = b""
            while data := client.recv(65536):
                received += data
        assert received.count(b"HTTP/1.1 200") == 4
        assert received.count(b"connection: close") == 1
        assert received.rindex(b"connection: close") > received.rindex(b"HTTP/1.1 200")
        assert process.wait(10) == 0


def test_a_stream_that_began_before_goes_on_to_its_end_and_then_its_connection_closes(tmp_path: Path) -> None:
    with double() as (_, engine), headgate("serve", "--config", gateway_file(tmp_path, engine)) as (process, url):
        where = urlsplit(url)
        with socket.create_connection((where.hostname, where.port)) as client:
            client.sendall(asked(chat("itl=50 n=50", stream=True)))
            received = client.recv(65536)
            assert b"connection: close" not in received
            process.send_signal(signal.SIGTERM)
            time.sleep(1.5)
            client.sendall(SHORT)  # behind a stream that is under way: it is answered too
            while data := client.recv(65536):
                received += data
        assert received.count(b"[DONE]") == 1
        assert received.count(b"HTTP/1.1 200") == 2
        assert received.count(b"connection: close") == 1
        assert process.wait(10) == 0


def test_a_body_that_is_on_its_way_arrives_and_is_answered(tmp_path: Path) -> None:
    with double() as (_, engine), headgate("serve", "--config", gateway_file(tmp_path, engine)) as (process, url):
        where = urlsplit(url)
        with socket.create_connection((where.hostname, where.port)) as client:
            client.sendall(SHORT[:-5])
            time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            time.sleep(1.5)
            client.sendall(SHORT[-5:])
            received = b""
            while data := client.recv(65536):
                received += data
        assert received.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in received
        assert process.wait(10) == 0


def test_websockets_get_their_answers_and_are_then_told_goodbye(tmp_path: Path) -> None:
    with double() as (_, engine), headgate("serve", "--config", gateway_file(tmp_path, engine)) as (process, url):

        async def listen(messages: int) -> tuple[int, int | None]:
            """Finished answers, and the code of the close."""
            done = 0
            where = f"{url.replace('http', 'ws', 1)}/v1/chat/completions"
            async with connect_websocket(where) as client:
                for _ in range(messages):
                    await client.send(json.dumps(chat("ttft=900 itl=10 n=10", stream=True)))
                try:
                    while True:
                        done += await client.recv() == "[DONE]"
                except ConnectionClosed:
                    return done, client.close_code

        async def run() -> list[tuple[int, int | None]]:
            listening = [asyncio.create_task(listen(messages)) for messages in (0, 1, 3)]
            await asyncio.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*listening)

        # Of several messages the one that is being answered is; the code says that the others are not.
        assert asyncio.run(run()) == [(0, 1001), (1, 1001), (1, 1001)]
        assert process.wait(10) == 0


def test_an_engine_that_stops_answers_or_refuses_everybody_and_resets_nobody() -> None:
    with headgate("engine", "--emulate", "h100-llama3-8b", "--port", "0") as (process, url):
        where = urlsplit(url)
        tally = Tally()

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection(where.hostname, where.port)

        async def run() -> None:
            whole, stream = asked(chat("hello", max_tokens=3)), asked(chat("hello", max_tokens=8, stream=True))
            clients = [hammer(connect, stream if n % 3 == 0 else whole, tally, 0.02, n) for n in range(12)]
            tasks = [asyncio.create_task(client) for client in clients]
            await asyncio.sleep(0.7)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                await asyncio.gather(*tasks)

        asyncio.run(run())
        assert process.wait(10) == 0
    assert tally.cut == []
    assert set(tally.answers) <= {200, 503}
    assert tally.answers[200] >= 12


def test_what_outlasts_the_grace_gets_an_explicit_error(tmp_path: Path) -> None:
    with double() as (_, engine):
        config = gateway_file(tmp_path, engine, listen={"port": 0, "drain_s": 0.5})
        with headgate("serve", "--config", config) as (process, url):
            where = urlsplit(url)
            with socket.create_connection((where.hostname, where.port)) as client:
                client.sendall(asked(chat("itl=50 n=2000", stream=True)))
                received = client.recv(65536)
                process.send_signal(signal.SIGTERM)
                while data := client.recv(65536):
                    received += data
            assert b"shutting down" in received
            assert b"[DONE]" not in received
            assert received.endswith(b"0\r\n\r\n")
            assert process.wait(10) == 0
