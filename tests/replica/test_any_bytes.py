"""Whatever a replica sends, and however the network cuts it: the same is heard, one end comes, and nothing raises."""

import socket
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headgate.model.clock import Clock
from headgate.replica.connection import Call, Connection, PoolLimits
from headgate.wire.connection import Outbox
from tests.replica.engine import END, HEAD, STREAM, Heard, chunk, event, whole
from tests.wire.serving import Recorder, steady

GOOD = [
    whole(b'{"a":1}'),
    whole(b"no", 503),
    STREAM + event(b"1") + event(b"2") + END,
    STREAM + chunk(b"data: 1\n\nda") + chunk(b"ta: 2\r\n\r\n: x\n\n") + END,
    b"HTTP/1.1 100 Continue\r\n\r\n" + whole(b"", 204),
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\ndata: 2",
]
PIECES = [*GOOD, STREAM, END, event(b"x"), b"HTTP/1.1 200 OK\r\n", b"content-length: 4\r\n", b"\r\n", b"\n", b"0\r\n"]
PIECES += [b"transfer-encoding: chunked\r\n", b"content-encoding: gzip\r\n", b"ffffffff\r\n", b"x" * 2000]
PIECES += [b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"]


class Wire(Recorder):
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return SimpleNamespace(family=socket.AF_UNIX)

    def is_closing(self) -> bool:
        return self.ended

    def abort(self) -> None:
        self.ended = True


class Home:
    """A pool that keeps one connection, and never tries again."""

    def __init__(self) -> None:
        self.url = "http://test"
        self.limits = PoolLimits(header_bytes=1500, body_bytes=1000, event_bytes=1000)
        self.clock: Clock = lambda: 0.0
        self.outbox = Outbox()
        self.secrets: tuple[bytes, ...] = ()
        self.denials = 0
        self.kept = False

    def opened(self, connection: Connection) -> None:
        pass

    def lost(self, connection: Connection) -> None:
        pass

    def keep(self, connection: Connection) -> bool:
        self.kept = True
        return True

    def try_again(self, call: Call) -> bool:
        return False


def listen(parts: list[bytes]) -> tuple[Heard, bool]:
    """What is heard of these, and whether the connection could be used again."""
    home, wire, heard = Home(), Wire(), Heard()
    connection = Connection(home)
    connection.connection_made(wire)
    connection.begin(Call(HEAD, b"", heard))
    for part in parts:
        if not wire.ended:
            connection.data_received(part)
    reusable = home.kept and not wire.ended
    connection.connection_lost(None)
    assert heard.over.is_set()
    assert heard.done is (heard.failed is None)
    return heard, reusable


@steady
@given(st.sampled_from(GOOD), st.data())
def test_however_an_answer_is_cut_it_is_heard_the_same(answer: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=12)))
    parts = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    whole, reusable = listen([answer])
    assert whole.done
    for cut in (parts, [bytes([byte]) for byte in answer]):
        heard, again = listen([part for part in cut if part])
        assert (heard.head, heard.events, heard.body) == (whole.head, whole.events, whole.body)
        assert again is reusable


@steady
@given(st.lists(st.binary(min_size=1, max_size=40) | st.sampled_from(PIECES), max_size=12))
def test_any_bytes_come_to_one_end(parts: list[bytes]) -> None:
    listen(parts)
