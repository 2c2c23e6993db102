"""Long bodies are read as short ones are, counted first, and written again as they were."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.errors import InvalidRequest
from headgate.wire.body.json import SEARCHED_BYTES, parse
from headgate.wire.body.long_json import LONG_BYTES, SLICE, count, lightened, parse_long, parse_middling, whole
from headgate.wire.limits import WireLimits
from tests.wire.serving import steady
from tests.wire.test_json import FRAGMENTS, VALUES

LIMITS = WireLimits()
MB = 1 << 20


def refusal(body: bytes, limits: WireLimits = LIMITS) -> str:
    with pytest.raises(InvalidRequest) as raised:
        parse_long(body, limits)
    return raised.value.message


@steady
@given(VALUES)
def test_a_value_is_read_as_it_was(value: Any) -> None:
    assert parse_long(json.dumps(value).encode(), LIMITS) == value
    assert parse_long(json.dumps(value, ensure_ascii=False, indent=1).encode(), LIMITS) == value


@steady
@given(FRAGMENTS | st.binary() | VALUES.map(lambda value: json.dumps(value).encode()[:-1]))
def test_what_a_short_body_would_be_refused_for_a_long_one_is_too(body: bytes) -> None:
    try:
        strict = parse(body, LIMITS)
    except InvalidRequest:
        strict = None
        refused = True
    else:
        refused = False
    try:
        value = parse_long(body, LIMITS)
    except InvalidRequest:
        assert refused or b"." in body or b"e" in body  # a fraction of so many digits that no short body may have them
    else:
        assert not refused
        assert value == strict


@steady
@given(FRAGMENTS | st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_a_body_of_any_length_is_read_alike(body: bytes) -> None:
    """Padded, it is too long for the parser that searches for flaws, and too short for the one that counts first."""
    try:
        strict = parse(body, LIMITS)
    except InvalidRequest:
        with pytest.raises(InvalidRequest):
            parse_middling(body + b" " * SEARCHED_BYTES, LIMITS)
    else:
        assert parse(body + b" " * SEARCHED_BYTES, LIMITS) == parse_middling(body, LIMITS) == strict


@pytest.mark.parametrize("shift", range(8))
@pytest.mark.parametrize("unit", [b"\\\\", b'\\"', b"\\n", b'\\\\\\"', b"[{", b"12345678901234567890"])
def test_where_a_slice_ends_makes_no_difference(unit: bytes, shift: int) -> None:
    text = b"a" * shift + unit * (3 * SLICE // len(unit))
    body = b'{"a":"%b","b":[{"c":[]}]}' % text
    assert count(body, LIMITS) == (2, 3)
    assert parse_long(body, LIMITS) == json.loads(body)


def test_a_number_over_the_end_of_a_slice_is_measured_whole() -> None:
    for before in range(SLICE - 24, SLICE):
        number = b"1234567890123456789"
        padded = b"[" + b" " * before
        assert parse_long(padded + number + b"]", LIMITS) == [int(number)]
        assert "more than 19 digits" in refusal(padded + number + b"0]")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 8 * MB, "nested deeper than 64"),
        (b'{"a":' * MB, "nested deeper than 64"),
        (b"[" + b"[]," * MB + b"[]]", "more than 30000 objects, arrays"),
        (b"[" + b"{}," * MB + b"{}]", "more than 30000 objects, arrays"),
        (b"[" + b"1.5," * MB + b"1]", "more than 30000 objects, arrays, fractions"),
        (b"[" + b"1e1," * MB + b"1]", "more than 30000 objects, arrays, fractions"),
        (b'{"a":1,' + b'"b":1,' * MB + b'"c":1}', "more than 60000 keys"),
        (b"[" + b"1," * MB + b"1]", "more than 500000 values"),
        (b"[" + b'"",' * MB + b'""]', "more than 500000 values"),
        (b"{%b}" % b",".join(b'"k%d":1' % n for n in range(2000)), "body has 2000 fields, at most 1000"),
        (b'{"a":1,' + b" " * MB + b'"a":1}', "duplicate key"),
        (b'{"a":[{"b":1,"b":2}]}' + b" " * MB, "duplicate key"),
        (b'{"a":{"b":{}},"a":{}}' + b" " * MB, "duplicate key"),
        (b'{"a":' + b"9" * MB + b"}", "more than 19 digits"),
        (b"[1,1e999]" + b" " * MB, "not JSON"),
        (b"[1,NaN]" + b" " * MB, "not JSON"),
        (b'["' + b"a" * MB + b'\xff"]', f"not UTF-8 at byte {MB + 2}"),
        (b'["' + b"a" * MB + b'\\ud800"]', "not JSON"),
        (b'["' + b"a" * MB, "not JSON"),
        (b" " * MB, "not JSON"),
    ],
)
def test_what_is_too_much_or_in_doubt_is_refused(body: bytes, message: str) -> None:
    assert message in refusal(body)


def test_limits_are_the_servers_own() -> None:
    few = WireLimits(json_values=3, json_containers=2, json_depth=2)
    assert parse_long(b"[1,2,3,4]", few) == [1, 2, 3, 4]
    assert "more than 3 values" in refusal(b"[1,2,3,4,5]", few)
    assert "more than 2 objects" in refusal(b"[[],[]]", few)
    assert "deeper than 2" in refusal(b"[[[]]]", few)


def test_what_people_send_is_within_the_limits() -> None:
    """Token ids of a long context, a long conversation, many tools, a picture."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}
    message = {"role": "user", "content": 'Hello, [world]! {"a": 1.5e9, true}\n' * 20}
    for body in (
        {"prompt": [list(range(100_000, 128_000))] * 12},
        {"messages": [message] * 8000, "tools": [tool] * 500},
        {"input": ["text " * 100] * 2048},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:," + "A" * 6 * MB}}]}
            ]
        },
    ):
        assert parse(json.dumps(body).encode(), LIMITS) == body


def test_long_fields_are_kept_as_they_are_written_and_can_be_read_again() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "é" * LONG_BYTES}],
        "tools": [{"a": "b" * 9000}],
        "n": 1,
    }
    light = lightened(body)
    assert {name for name, value in light.items() if isinstance(value, msgspec.Raw)} == {"messages", "tools"}
    assert msgspec.json.decode(msgspec.json.encode(light)) == body
    assert whole(light) == body
