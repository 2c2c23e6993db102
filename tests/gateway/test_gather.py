"""What is put together of a stream is the same whether its events are told by their bytes or read one by one."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.gateway.answer.gathered import GatheredAnswer
from headgate.replica.openai import decode_event

HEAD = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def event(choice: dict[str, Any], ascii: bool = False, **more: Any) -> bytes:
    whole = {**HEAD, **more, "choices": [{"index": 0, "finish_reason": None, **choice}]}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=ascii).encode()


def gathered(events: list[bytes], *, one_by_one: bool = False) -> tuple[dict[str, Any], int]:
    whole = GatheredAnswer()
    for one in events:
        if one_by_one:
            whole._before = whole._behind = b""
        whole.add(one)
    body: dict[str, Any] = json.loads(whole.body("", "", 1))
    return body, whole.events


PIECES = st.one_of(
    st.text(max_size=6).map(lambda text: event({"delta": {"content": text}})),
    st.text(max_size=6).map(lambda text: event({"delta": {"content": text}}, ascii=True)),
    st.sampled_from(['"', "\\", '\\"', 'a"content":"b', "\n", "}", '"}', "\U0001f600"]).map(
        lambda text: event({"delta": {"content": text}})
    ),
    st.just(event({"delta": {"role": "assistant", "content": ""}})),
    st.just(event({"delta": {"content": "a"}, "text": "b"})),
    st.just(event({"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}})),
    st.just(event({"delta": {"content": "b", "reasoning_content": "hm"}})),
    st.just(event({"delta": {"content": "c"}, "index": 1})),
    st.just(event({"delta": {"content": "d"}}, created=2)),
    st.just(event({"text": "e"})),
    st.just(event({"text": "f"})),
    st.just(event({"delta": {}, "finish_reason": "stop"})),
    st.just(event({"delta": {"content": "g"}}, usage={"prompt_tokens": 1, "completion_tokens": 2})),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=12))
def test_it_is_the_same_either_way(events: list[bytes]) -> None:
    assert gathered(events) == gathered(events, one_by_one=True)


def test_most_events_of_a_stream_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def counted(data: bytes) -> Any:
        read.append(data)
        return decode_event(data)

    monkeypatch.setattr("headgate.gateway.answer.gathered.decode_event", counted)
    words = [f" word{number}" for number in range(100)]
    events = [event({"delta": {"role": "assistant", "content": ""}})]
    events += [event({"delta": {"content": word}}) for word in words]
    events.append(event({"delta": {}, "finish_reason": "stop"}))
    body, told = gathered(events)
    assert body["choices"][0]["message"]["content"] == "".join(words)
    assert told == 100
    assert len(read) == 5  # who speaks, the first token and a trial of its bytes, the other 99, and why it ends


@pytest.mark.parametrize("text", [b"\x01", b"\xff", b"\\x", b"\\u12"])
def test_what_is_no_text_is_found_at_the_latest_when_it_is_joined(text: bytes) -> None:
    whole = GatheredAnswer()
    whole.add(event({"delta": {"content": "a"}}))
    whole.add(event({"delta": {"content": "TEXT"}}).replace(b"TEXT", text))
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        whole.add(event({"delta": {}, "finish_reason": "stop"}))


def test_an_event_shorter_than_what_is_around_a_text_is_read_by_itself() -> None:
    whole = GatheredAnswer()
    whole.add(event({"delta": {"content": "a"}}))
    before, behind = whole._before, whole._behind
    with pytest.raises((msgspec.DecodeError, LookupError, TypeError)):
        whole.add(before + behind[1:])
