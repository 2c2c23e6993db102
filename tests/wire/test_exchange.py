"""Which bytes go out, and in how many writes."""

import msgspec
import pytest

from headgate.model.errors import EngineFailed, QueueFull, ServeError, SlowClient
from headgate.wire.exchange import Exchange


class Wire:
    """A connection of which only the writes matter."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.writable = True
        self.draining = False
        self.kept: bool | None = None

    @property
    def transport(self) -> "Wire":
        return self

    def send(self, data: bytes) -> None:
        self.writes.append(data)

    def get_extra_info(self, name: str, /) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        raise AssertionError

    def answered(self, keep_alive: bool) -> None:
        self.kept = keep_alive


def exchange_on(wire: Wire, method: str = "GET", *, http10: bool = False) -> Exchange:
    exchange = Exchange(wire, 0.0)
    exchange.method, exchange.http10, exchange.keep_alive, exchange.request_id = method, http10, True, "id"
    return exchange


def test_an_answer_is_one_write() -> None:
    wire = Wire()
    exchange_on(wire).respond(200, b"{}", headers=(("x-a", "b"),))
    assert wire.writes == [
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
        b"x-request-id: id\r\nx-a: b\r\n\r\n{}"
    ]


def test_a_stream_is_one_write_per_event_its_head_with_the_first_and_its_end_with_done() -> None:
    wire = Wire()
    exchange = exchange_on(wire)
    exchange.stream((("x-a", "b"),))
    assert not exchange.started
    exchange.event(b"one")
    exchange.event(b"two")
    exchange.end(b"[DONE]")
    assert exchange.done
    assert wire.kept is True
    assert wire.writes == [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
        b"x-request-id: id\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\nx-a: b\r\n\r\n"
        b"b\r\ndata: one\n\n\r\n",
        b"b\r\ndata: two\n\n\r\n",
        b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
    ]


@pytest.mark.parametrize("breaks", [b"\n", b"\r", b"\r\n"])
def test_a_line_break_in_the_data_starts_no_event(breaks: bytes) -> None:
    wire = Wire()
    exchange = exchange_on(wire, http10=True)
    exchange.stream()
    exchange.event(b"a" + breaks + breaks + b"data: b" + breaks)
    assert wire.writes[0].endswith(b"\r\n\r\ndata: a\ndata: \ndata: data: b\ndata: \n\n")


def test_an_empty_stream_is_head_and_end() -> None:
    wire = Wire()
    exchange = exchange_on(wire)
    exchange.stream()
    exchange.end()
    assert len(wire.writes) == 1
    assert wire.writes[0].endswith(b"\r\n\r\n0\r\n\r\n")


def test_http10_streams_end_with_the_connection() -> None:
    wire = Wire()
    exchange = exchange_on(wire, http10=True)
    exchange.stream()
    exchange.event(b"x")
    exchange.end(b"[DONE]")
    head, _, body = b"".join(wire.writes).partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"chunked" not in head
    assert body == b"data: x\n\ndata: [DONE]\n\n"
    assert wire.kept is False


@pytest.mark.parametrize("streamed", [False, True])
def test_head_gets_the_head_only(streamed: bool) -> None:
    wire = Wire()
    exchange = exchange_on(wire, "HEAD")
    if streamed:
        exchange.stream()
        exchange.event(b"x")
        exchange.end(b"[DONE]")
    else:
        exchange.respond(200, b"12345")
        assert b"content-length: 5" in wire.writes[0]
    assert len(wire.writes) == 1
    assert wire.writes[0].endswith(b"\r\n\r\n")


def test_a_failure_before_the_first_event_gets_its_own_status() -> None:
    wire = Wire()
    exchange = exchange_on(wire)
    exchange.stream()
    exchange.fail(QueueFull("come back"))
    assert wire.writes[0].startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\nretry-after-ms: 1000\r\n" in wire.writes[0]
    assert wire.kept is True


@pytest.mark.parametrize(
    ("error", "code", "kept"),
    [(EngineFailed("broke"), "engine_failed", True), (SlowClient("it does not read"), "slow_client", False)],
)
def test_a_failure_after_the_first_event_is_an_event_without_done(error: ServeError, code: str, kept: bool) -> None:
    """Its head has promised that the connection goes on, so it does: the client may have sent its next request already.
    Only one that does not read is not waited for."""
    wire = Wire()
    exchange = exchange_on(wire)
    exchange.stream()
    exchange.event(b"x")
    exchange.fail(error)
    last = wire.writes[-1]
    payload = last[last.index(b"data: ") + 6 : last.index(b"\n\n")]
    assert msgspec.json.decode(payload)["error"]["code"] == code
    assert last.endswith(b"\n\n\r\n0\r\n\r\n")
    assert b"[DONE]" not in last
    assert wire.kept is kept


def test_after_the_end_nothing_more_is_written() -> None:
    wire = Wire()
    exchange = exchange_on(wire)
    exchange.respond(200, b"")
    exchange.respond(500, b"")
    exchange.event(b"x")
    exchange.end()
    exchange.fail(EngineFailed("late"))
    assert len(wire.writes) == 1


def test_calls_in_an_impossible_order_are_errors() -> None:
    exchange = exchange_on(Wire())
    with pytest.raises(RuntimeError):
        exchange.event(b"x")
    exchange.stream()
    exchange.event(b"x")
    with pytest.raises(RuntimeError):
        exchange.respond(200, b"")


def test_a_header_value_can_not_smuggle_a_header() -> None:
    with pytest.raises(ValueError, match="line break"):
        exchange_on(Wire()).respond(200, b"", headers=(("x", "a\r\nset-cookie: b"),))
