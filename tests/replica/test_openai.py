import msgspec
import pytest

from headgate.model.record import EngineTimings
from headgate.replica.openai import (
    MOST_QUOTED,
    MOST_S,
    decode_event,
    flaw_in,
    is_error,
    mended_event,
    quoted,
    read_answer,
    read_error,
    read_mended,
    read_usage,
    room_in_s,
)
from headgate.replica.shape import Usage

USAGE = b'"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}'


@pytest.mark.parametrize(
    ("timings", "understood"),
    [
        (b"", None),
        (b',"timings":null', None),
        (b',"timings":{"queue_ms":1.5,"prefill_chunks":2,"more":true}', EngineTimings(queue_ms=1.5, prefill_chunks=2)),
        (b',"timings":{"prompt_n":7,"prompt_ms":3.5}', EngineTimings()),  # llama.cpp's, of a prompt alone
        (b',"timings":{"prompt_ms":3.5,"predicted_ms":9.0}', EngineTimings(prefill_ms=3.5, decode_ms=9.0)),
        (b',"timings":{"predicted_ms":"long"}', EngineTimings()),
        (
            b',"metrics":{"queue_time_ms":2,"time_to_first_token_ms":40.5,"generation_time_ms":900,"mean_itl_ms":9}',
            EngineTimings(queue_ms=2.0, prefill_ms=40.5, decode_ms=900.0),  # vLLM's
        ),
        (b',"metrics":{"time_to_first_token_ms":40.5,"generation_time_ms":null}', EngineTimings(prefill_ms=40.5)),
        (b',"metrics":{"queue_time_ms":2}', None),
        (b',"metrics":null', None),
        (b',"metrics":[1,2,3]', None),
        (b',"timings":"soon"', None),
        (b',"timings":{"queue_ms":1.5},"metrics":{"time_to_first_token_ms":40.5}', EngineTimings(queue_ms=1.5)),
        (b',"timings":{"queue_ms":"long"}', None),
    ],
)
def test_usage_is_read_whatever_is_said_about_timings(timings: bytes, understood: EngineTimings | None) -> None:
    for alone, choices in ((True, b"[]"), (False, b'[{"index":0}]')):
        said = read_usage(b'{"choices":' + choices + b"," + USAGE + timings + b"}")
        assert said == (Usage(7, 2, 4, understood), alone)


DEEP = b'{"error":' * 5000 + b"1" + b"}" * 5000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"usage":null}',
        b'{"usage":7}',
        b"\xff",
        b'{"usage":{"prompt_tokens":"x"}}',
        b'{"usage":{"prompt_tokens":-1,"completion_tokens":2}}',
        b'{"usage":{"prompt_tokens":7,"completion_tokens":-2}}',
        b'{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":-1}}}',
        b'{"usage":{"prompt_tokens":7,"completion_tokens":9000000000000000000}}',
        DEEP,
    ],
)
def test_what_says_nothing_about_usage_gives_none(data: bytes) -> None:
    assert read_usage(data) == (None, False)


@pytest.mark.parametrize(
    ("headers", "room_s"),
    [
        ({}, None),
        ({"retry-after": "5"}, 5.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "5", "retry-after-ms": "439"}, 0.439),
        ({"retry-after": "5", "retry-after-ms": "soon"}, 5.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e300"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:10 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:10 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 10.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:28:10 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 9026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:28:10 GMT"}, MOST_S),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 -0000", "date": "Wed, 21 Oct 2026 07:28:10 GMT"}, None),
        ({"retry-after": "5, 7"}, None),
    ],
)
def test_when_a_replica_says_it_will_have_room(headers: dict[str, str], room_s: float | None) -> None:
    assert room_in_s(headers) == (None if room_s is None else pytest.approx(room_s))


def test_an_error_that_nests_deeper_than_anybody_reads_is_quoted_as_it_is() -> None:
    assert quoted(read_error(DEEP)).startswith('{"error":{"error":')


def test_what_is_quoted_of_an_engine_is_one_bounded_line() -> None:
    assert quoted(read_error(b'{"error":{"message":"a\\n\\tb \\u0000c \\u001b[31m"}}')) == "a b c [31m"
    long = quoted(read_error(b'{"message":"' + b"x " * 9000 + b'"}'))
    assert len(long) == MOST_QUOTED
    assert long.endswith("…")


# -- a whole answer, in one look ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "wanted", "flaw", "told"),
    [
        (b'{"choices":[1],"usage":{"prompt_tokens":3,"completion_tokens":2}}', "choices", "", (3, 2)),
        (b'{"data":[1],"usage":{"prompt_tokens":3}}', "data", "", (3, 0)),
        (b'{"output":[],"usage":{"input_tokens":3,"output_tokens":2}}', "output", "", (3, 2)),
        (b'{"choices":[1]}', "choices", "", None),
        # What is wrong with its usage is not wrong with it.
        (b'{"choices":[1],"usage":"many"}', "choices", "", None),
        (b'{"choices":[1],"usage":{"prompt_tokens":-1}}', "choices", "", None),
        (b'{"choices":[1],"usage":{"prompt_tokens":%s}}' % (b"9" * 400), "choices", "", None),
        (b'{"choices":{},"usage":{"prompt_tokens":3}}', "choices", "answered without choices", None),
        (b'{"error":{"message":"no"}}', "choices", "answered 200 with an error: no", None),
        (b'{"choices":[1]}', "data", "answered without data", None),
        (b'{"any":1}', "", "", None),
        (b"", "choices", "answered with nothing", None),
        (b"<html>", "choices", "answered with something that is no JSON object", None),
        (b'{"choices":["\xff"]}', "choices", "answered with something that is no JSON object", None),
        (b'{"choices":' + b"[" * 5000, "choices", "answered with something that is no JSON object", None),
    ],
)
def test_a_whole_answer_is_judged_and_counted(
    body: bytes, wanted: str, flaw: str, told: tuple[int, int] | None
) -> None:
    found, usage = read_answer(body, wanted)
    assert found == flaw
    assert found == flaw_in(body, wanted)
    assert (None if usage is None else (usage.prompt, usage.output)) == told


def test_what_is_no_number_is_null_and_what_is_cut_off_is_nothing() -> None:
    assert decode_event(b'{"choices":[],"timings":1e999}')["choices"] == []
    assert decode_event(b'{"choices":[],"timings":NaN}') == {"choices": [], "timings": None}
    for flawed in (b'{"timings":', b"\xff", b"[" * 5000):
        with pytest.raises(msgspec.DecodeError):
            decode_event(flawed)


def test_a_list_of_which_nothing_is_left_when_it_is_mended_is_none() -> None:
    assert read_mended(b'{"choices":[{"index":0,"logprob":NaN}]}', "choices")[1] == ""
    assert read_mended(b'{"choices":[NaN]}', "choices")[1] == "answered without choices"
    assert read_mended(b'{"choices":[NaN]}', "")[1] == ""


def test_an_event_is_mended_if_it_is_one_afterwards() -> None:
    for data, wanted, told in (
        (b'{"choices":[{"index":NaN}]}', "choices", b'{"choices":[{"index":null}]}'),
        (b'{"choices":[{"index":NaN}]}', "", b'{"choices":[{"index":null}]}'),
        (b'{"choices":[NaN]}', "choices", b'{"choices":[NaN]}'),
        (b'{"choices":[NaN]}', "", b'{"choices":[null]}'),
        (b'{"choices":[NaN]', "", b'{"choices":[NaN]'),
    ):
        assert mended_event(data, wanted) == told


def test_what_the_gateway_has_estimated_is_not_read_as_if_a_replica_had_counted() -> None:
    """It was learned from: the estimate confirmed itself."""
    counts = b'"usage":{"prompt_tokens":7,"completion_tokens":2},"headgate_usage":"estimated"'
    assert read_answer(b'{"choices":[{}],' + counts + b"}", "choices") == ("", None)
    assert read_usage(b'{"choices":[],' + counts + b"}") == (None, True)


@pytest.mark.parametrize("data", [b'{"error":{}}', b'{"error":"x"}', b'{ "error" : {"message":"x"}}', b'{"error":""}'])
def test_an_event_that_begins_with_an_error_is_one(data: bytes) -> None:
    assert is_error(data)


@pytest.mark.parametrize("data", [b'{"error":null,"choices":[]}', b'{"error": null}', b'{"choices":[]}', b"", b" "])
def test_one_that_says_that_it_has_none_is_not(data: bytes) -> None:
    assert not is_error(data)
