"""The events that are in the bytes of a stream."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.errors import ReplicaFailed
from headgate.replica.sse import EventSplitter
from tests.wire.serving import steady


def reference(stream: bytes) -> list[bytes]:
    """The standard's own words, all at once and slowly."""
    events: list[bytes] = []
    data: list[bytes] = []
    lines = re.split(rb"\r\n|\r|\n", stream)
    for line in lines[:-1]:  # what no line break ends is not a line
        if line == b"":
            if data:
                events.append(b"\n".join(data))
            data = []
        elif line == b"data" or line.startswith(b"data:"):
            value = line[5:]
            data.append(value[1:] if value[:1] == b" " else value)
    return events


PIECES = [b"data: ", b"data:", b"data", b'{"a":1}', b"x", b": ping", b"event: e", b"id: 1", b" ", b":"]
PIECES += [b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n", b'data: {"b":2}\n\n', b"data: [DONE]\n\n", b"\xc3\xa9"]
STREAMS = st.lists(st.sampled_from(PIECES) | st.binary(max_size=4), max_size=30).map(b"".join)


@steady
@given(STREAMS, st.data())
def test_however_a_stream_is_cut_its_events_are_the_same(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    splitter, bytewise = EventSplitter(), EventSplitter()
    expected = reference(stream)
    assert [event for part in parts for event in splitter.feed(part)] == expected
    assert [event for byte in stream for event in bytewise.feed(bytes([byte]))] == expected


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\rdata: b\n\n", [b"a\nb"]),
        (b"event: x\nid: 7\nretry: 1\ndata:a\n\n", [b"a"]),
        (b": ping\n\n", []),
        (b"data: a\n\n: ping\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:  two spaces\n\n", [b" two spaces"]),
        (b"data\n\n", [b""]),
        (b"data: a\n\n\n\n", [b"a"]),
        (b"data: not complete\n", []),
    ],
)
def test_what_is_an_event(stream: bytes, events: list[bytes]) -> None:
    assert EventSplitter().feed(stream) == events
    assert reference(stream) == events


@pytest.mark.parametrize(
    "parts",
    [
        [b"data: " + b"x" * 200 + b"\n\n"],
        [b"data: ", *[b"x" * 30] * 4],
        [b"data: xxxxxxxxx\n"] * 11,
        [b"data\n"] * 101,
        [b"y" * 101],
    ],
    ids=["at once", "one line", "many lines", "empty lines", "no field"],
)
def test_an_event_beyond_the_limit_is_the_replicas_failure(parts: list[bytes]) -> None:
    splitter = EventSplitter(limit=100)
    for part in parts[:-1]:
        splitter.feed(part)
    with pytest.raises(ReplicaFailed, match="more than 100 bytes"):
        splitter.feed(parts[-1])


def test_the_limit_is_for_one_event_and_not_for_a_stream() -> None:
    splitter = EventSplitter(limit=100)
    for part in [b"data: " + b"x" * 60, b"\n\n", b": " + b"y" * 70, b"\n", b"data: z\n\n" * 50]:
        splitter.feed(part)
    assert splitter.feed(b"data: a\n\n") == [b"a"]


@pytest.mark.parametrize("size", [1, 4, 99])
def test_a_byte_order_mark_before_the_first_event_is_no_part_of_it(size: int) -> None:
    said = b"\xef\xbb\xbfdata: a\n\ndata: b\n\n"
    splitter = EventSplitter()
    assert [one for at in range(0, len(said), size) for one in splitter.feed(said[at : at + size])] == [b"a", b"b"]
