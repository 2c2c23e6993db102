import pytest

from headgate.model.record import EngineTimings
from headgate.replica.openai import read_usage
from headgate.replica.shape import Usage

USAGE = b'"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}'


@pytest.mark.parametrize(
    ("timings", "understood"),
    [
        (b"", None),
        (b',"timings":null', None),
        (b',"timings":{"queue_ms":1.5,"prefill_chunks":2,"more":true}', EngineTimings(queue_ms=1.5, prefill_chunks=2)),
        (b',"timings":{"prompt_n":7,"prompt_ms":3.5}', EngineTimings()),  # llama.cpp's
        (b',"timings":"soon"', None),
        (b',"timings":{"queue_ms":"long"}', None),
    ],
)
def test_usage_is_read_whatever_is_said_about_timings(timings: bytes, understood: EngineTimings | None) -> None:
    for alone, choices in ((True, b"[]"), (False, b'[{"index":0}]')):
        said = read_usage(b'{"choices":' + choices + b"," + USAGE + timings + b"}")
        assert said == (Usage(7, 2, 4, understood), alone)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"usage":null}', b'{"usage":7}', b"\xff", b'{"usage":{"prompt_tokens":"x"}}']
)
def test_what_says_nothing_about_usage_gives_none(data: bytes) -> None:
    assert read_usage(data) == (None, False)
