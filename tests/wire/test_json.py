"""Only JSON that every parser reads alike is let in, and the flaw's place is named."""

import contextlib
import gc
import json
import math
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.errors import InvalidRequest
from headgate.wire.body.json import decode, parse
from headgate.wire.body.long_json import LONG_BYTES
from headgate.wire.limits import WireLimits
from tests.wire.serving import steady

LIMITS = WireLimits()


def refusal(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        parse(body, LIMITS)
    return raised.value


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (b"", "not JSON: Expecting value at character 0", None),
        (b"{", "not JSON", None),
        (b"{'a': 1}", "not JSON", None),
        (b'{"a": 1} x', "not JSON: Extra data at character 9", None),
        (b'{"a": 01}', "not JSON", None),
        (b'"\n"', "not JSON", None),
        (b"\xef\xbb\xbf{}", "not JSON", None),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7", None),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8", None),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8", None),
        (b'{"model": "a", "model": "b"}', "duplicate key at `$.model`", "model"),
        (b'{"a": [{}, {"b": 1, "b": 2}]}', "duplicate key at `$.a[1].b`", "a"),
        (b'{"a": {"x y": 1, "x y": 1}}', "duplicate key at `$.a['x y']`", "a"),
        (b'{"t": NaN}', "NaN is not JSON at `$.t`", "t"),
        (b'{"t": [1, -Infinity]}', "-Infinity is not JSON at `$.t[1]`", "t"),
        (b'{"t": 1e999}', "number out of range at `$.t`", "t"),
        (b'{"t": 0.' + b"1" * 5000 + b"}", "number out of range at `$.t`", "t"),
        (b'{"seed": 12345678901234567890}', "more than 19 digits at `$.seed`", "seed"),
        (b"[" + b"9" * 5_000 + b"]", "more than 19 digits at `$[0]`", None),
        (b'{"a": NaN, "b": }', "NaN is not JSON at `$`", None),
        (rb'{"messages": [{"content": "\ud800"}]}', "lone surrogate at `$.messages[0].content`", "messages"),
        (rb'{"messages": [{"\uDc00": 1}]}', "lone surrogate at `$.messages[0]`", "messages"),
        (b'{"a": ' + nested(64) + b"}", "nested deeper than 64 at `$.a[0]", "a"),
        (nested(65), "nested deeper than 64 at `$[0][0]", None),
        (nested(100_000), "nested deeper than 64", None),
        (b'{"a":' * 100_000, "nested deeper than 64", None),
    ],
)
def test_what_parsers_disagree_about_is_refused_with_its_place(body: bytes, message: str, param: str | None) -> None:
    error = refusal(body)
    assert message in error.message
    assert error.param == param


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, -2, 0.5, True, None, "é😀"], "b": {}},
        {"a": "[" * 200},
        {"a": '"[' * 200 + "\\"},
        {"a": '\\"[{' * 100},
        [[]] * 100,
        [{"a": [{}]}] * 50,
        9223372036854775807,
        "x",
    ],
)
def test_what_json_can_say_is_read(value: object) -> None:
    assert parse(json.dumps(value).encode(), LIMITS) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode(), LIMITS) == value


def test_exactly_the_allowed_depth_is_allowed() -> None:
    parse(nested(64), LIMITS)
    parse(b'{"a":' * 64 + b"1" + b"}" * 64, LIMITS)


@pytest.mark.parametrize(
    ("flawed", "message"),
    [
        (b'{"a":[%b],"n":1,"n":1}', "duplicate key in the body"),
        (b'{"a":[%b],"n":1,"\\u006e":1}', "duplicate key in the body"),
        (b'{"a":[%b],"s":"\\"::","n":1, "n":1}', "duplicate key in the body"),
        (b"[%b,NaN]", "body is not JSON: invalid character (byte 40"),
        (b"[%b,1e999]", "body is not JSON: Number out of range"),
        (b'[%b,"\\ud800"]', "body is not JSON: "),
        (b'["%b", "\xff"]', "body is not UTF-8 at byte 4000"),
        (b"[%b,12345678901234567890]", "integer of more than 19 digits"),
        (b"[%b," + nested(64) + b"]", "nested deeper than 64"),
    ],
)
def test_a_flaw_in_a_huge_body_is_refused_even_where_its_place_is_not_looked_for(flawed: bytes, message: str) -> None:
    assert message in refusal(flawed.replace(b"%b", b"1," * 20_000 + b"1")).message


FILLED = b'{"a":[1,2.5,{}]},' * 3600


@pytest.mark.parametrize(
    "body",
    [
        b'{"zz":[' + FILLED + b'{}],"n":1,"n":1}',
        b'{"zz":[' + b"1," * 31_000 + b'1],"n":1,"n":1}',
        b'{"zz":[' + b"1.5," * 15_500 + b'1],"n":1,"n":1}',
        b'{"zz":[' + FILLED + b"NaN]}",
        b'{"zz":[' + FILLED + nested(70) + b"]}",
        b'{"zz": [' + FILLED + b"{}]}",
        b'{"zz":[' + (nested(62) + b",") * 480 + nested(70) + b"]}",
    ],
    ids=["objects", "numbers", "fractions", "no number", "depth", "spaces", "deep lists"],
)
def test_no_short_body_holds_the_loop_up(body: bytes) -> None:
    """What takes longer than others should wait for their next token is for a thread, which short ones are not."""
    assert len(body) <= LONG_BYTES
    took: list[float] = []
    for _ in range(10):
        began = time.thread_time()
        with contextlib.suppress(InvalidRequest):
            parse(body, LIMITS)
        took.append(time.thread_time() - began)
    assert min(took) < 0.009


class Message(msgspec.Struct):
    role: str
    content: str


class Chat(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    messages: list[Message]
    temperature: float = 1.0


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (b'{"messages": []}', "missing required field `model`", "model"),
        (b'{"model": "a", "messages": [], "tempratur": 1}', "unknown field `tempratur`", "tempratur"),
        (b'{"model": "a", "messages": [{"role": "u", "content": 1}]}', "`$.messages[0].content`", "messages"),
        (b'{"model": "a", "messages": [{"role": "u"}]}', "missing required field `content` - at", "messages"),
        (b'{"model": 1, "messages": []}', "Expected `str`, got `int` - at `$.model`", "model"),
        (b"[]", "Expected `object`, got `array`", None),
        (b"[", "not JSON", None),
    ],
)
def test_a_body_of_another_shape_names_the_field(body: bytes, message: str, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as raised:
        decode(body, Chat, LIMITS)
    assert message in raised.value.message
    assert raised.value.param == param


def test_a_body_becomes_its_struct() -> None:
    body = b'{"model": "a", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}'
    assert decode(body, Chat, LIMITS) == Chat("a", [Message("user", "hi")], 0.0)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@steady
@given(VALUES)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    assert parse(json.dumps(value).encode(), LIMITS) == value


FRAGMENTS = st.lists(
    st.sampled_from(
        [b"{", b"}", b"[", b"]", b":", b",", b'"', b'"a"', rb'"\ud800"', b"NaN", b"1", b"9" * 30, b"1e999", b"\\"]
    )
).map(b"".join)


@steady
@given(FRAGMENTS | st.binary() | VALUES.map(lambda value: json.dumps(value).encode()[:-1]))
def test_no_bytes_raise_anything_but_invalid_request(body: bytes) -> None:
    try:
        value = parse(body, LIMITS)
    except InvalidRequest:
        return
    msgspec.json.encode(value)  # and what passes, others can be sent
    assert not (isinstance(value, float) and not math.isfinite(value))


@pytest.mark.parametrize(
    "flawed",
    [
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        b'{"a": 1e999}',
        b'{"a": ' + b"1" * 5000 + b"}",
        b'{"a": "\\ud800"}',
        b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"a": ' + b"[" * 100_000,
        b'{"a": tru}',
        b'{"a": "\xff"}',
    ],
)
def test_a_refused_body_is_freed_without_the_garbage_collector(flawed: bytes) -> None:
    """It may be megabytes, and the gateway collects seldom: whatever a cycle holds stays for thousands of requests."""

    def refused() -> None:
        with contextlib.suppress(InvalidRequest):
            parse(flawed, WireLimits())
            raise AssertionError("it was taken")

    refused()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            refused()
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("number", [-(2**63), -1_000_000_000_000_000_000, 2**63])
def test_a_sign_is_no_digit(number: int) -> None:
    assert parse(b'{ "seed": %d}' % number, LIMITS) == {"seed": number}
