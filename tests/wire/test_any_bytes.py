"""Whatever the bytes, and however the network cuts them: the same answers, no crash, no hang."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from headgate.wire.exchange import Exchange
from headgate.wire.limits import WireLimits
from headgate.wire.protocol import ServerProtocol
from headgate.wire.state import ServerState
from tests.wire.serving import GET, Recorder, live, post, serving, steady

CHUNKED = b"POST /c?d HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nt: u\r\n\r\n"
UPGRADE = b"GET /u HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"
VALID = [GET, post(b"x" * 300, b"x-long: " + b"y" * 200), CHUNKED, UPGRADE]
LAST = [b"", GET.replace(b"1.1", b"1.0"), b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]


def converse(parts: list[bytes]) -> tuple[list[object], list[bytes], bool]:
    """What the handler saw, what was written, whether the connection was closed."""
    seen: list[object] = []
    loop = asyncio.new_event_loop()

    def handler(exchange: Exchange) -> None:
        seen.append((exchange.method, exchange.path, exchange.query, exchange.headers, exchange.body))
        exchange.respond(200, exchange.body)

    state = ServerState(handler=handler, clock=lambda: 0.0, limits=WireLimits(), new_id=lambda: "id", loop=loop)
    connection = ServerProtocol(state)
    transport = Recorder()
    connection.connection_made(transport)
    for part in parts:
        connection.data_received(part)
    for _ in range(state.limits.pipelined):  # each request that was in hand has its turn
        loop.run_until_complete(asyncio.sleep(0))
    connection.connection_lost(None)
    loop.close()
    return seen, transport.written, transport.ended


@steady
@given(st.data(), st.lists(st.sampled_from(VALID), max_size=4), st.sampled_from(LAST))
def test_however_a_stream_is_cut_it_is_read_the_same(data: st.DataObject, requests: list[bytes], last: bytes) -> None:
    stream = b"".join(requests) + last
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole = converse([stream])
    assert len(whole[0]) >= len(requests)
    assert converse(parts) == whole
    assert converse([bytes([byte]) for byte in stream]) == whole


PIECES = st.sampled_from(
    [
        *VALID,
        b"POST / HTTP/1.1\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"host: a\r\n",
        b"content-length: 5\r\n",
        b"transfer-encoding: chunked\r\n",
        b"upgrade: x\r\nconnection: upgrade\r\n",
        b"expect: 100-continue\r\n",
        b"\r\n",
        b"\n",
        b"0\r\n",
        b"fffffff\r\n",
        b"x" * 20_000,
    ]
)
NOISE = st.lists(st.binary(max_size=40) | PIECES, max_size=12)


@steady
@given(NOISE)
def test_no_bytes_make_the_protocol_raise(parts: list[bytes]) -> None:
    _, written, _ = converse(parts)
    assert all(answer.startswith(b"HTTP/1.1 ") for answer in written)


@steady
@given(NOISE)
@live
async def test_after_any_bytes_the_connection_ends_and_others_are_served(parts: list[bytes]) -> None:
    async with serving(lambda exchange: exchange.respond(200, b"")) as served:
        client = await served.connect()
        for part in parts:
            client.send(part)
        client.writer.write_eof()
        await client.rest()
        assert (await (await served.connect()).ask(GET)).status == 200
