"""What is no JSON beside an answer is null; what is JSON stays as it is, byte by byte."""

import json
import time

import pytest

from headgate.replica.mend import MOST_BYTES, MOST_DEPTH, mended


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b'{"a":NaN,"b":[-Infinity, Infinity]}', b'{"a":null,"b":[null, null]}'),
        (b'{"a":nan,"b":-inf}', b'{"a":null,"b":null}'),
        (b'{"a":"NaN Infinity [[["}', b'{"a":"NaN Infinity [[["}'),
        (b'{"a":"\\\\ud83d \\" NaN"}', b'{"a":"\\\\ud83d \\" NaN"}'),
        (b'{"a":"\\ud83d\\ude00\\ud83d","b":"\\uDE00"}', b'{"a":"\\ud83d\\ude00\\ufffd","b":"\\ufffd"}'),
        (b'{"a":1e999}', b'{"a":1e999}'),
    ],
)
def test_what_it_makes_of_it(said: bytes, told: bytes) -> None:
    assert mended(said) == told


def test_what_is_too_deep_is_null_and_what_is_beside_it_stays() -> None:
    deep = b"[" * 5000 + b'"]"' + b"]" * 5000
    told = json.loads(mended(b'{"a":%b,"b":NaN,"c":[{}]}' % deep))
    assert (told["b"], told["c"]) == (None, [{}])
    depth, inner = 0, told["a"]
    while isinstance(inner, list):
        depth, inner = depth + 1, inner[0]
    assert (depth, inner) == (MOST_DEPTH - 1, None)


@pytest.mark.parametrize("said", [b"[" * 500, b'{"a":NaN', b"]" * 300, b'"NaN', b"[DONE]", b""])
def test_what_is_cut_off_stays_so(said: bytes) -> None:
    assert mended(said) is said


def test_it_takes_no_longer_than_the_answer_is_long() -> None:
    began = time.process_time()
    for said in (b'"\\' * 200_000, b"[{" * 200_000, b'"' + b"\\u" * 200_000, b"-" * 400_000):
        mended(said)
    assert mended(b"[" * (MOST_BYTES + 1)) == b"[" * (MOST_BYTES + 1)
    assert time.process_time() - began < 4
