"""Files of traces: what can be read, and the line that can't."""

import gzip
from pathlib import Path

import msgspec
import pytest

from headgate.model.outcome import Outcome
from headgate.model.record import OwnPromise, Record
from headgate.publish.journal import Journal
from headgate.workload.arrival import WorkloadError
from headgate.workload.load import load

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.4799600,110,0\n"
)
MOONCAKE = '{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [3, 4]}\n'
HEADER = '{"headgate":"0.1.0","schema":1,"wall":1000.0,"prompts":false}\n'


def record(at: float, **more: object) -> str:
    given = {"id": "x", "at": at, "wall": at + 900, "lane": "fast", "tenant": "acme", "model": "m", "prompt_tokens": 9}
    made = msgspec.convert({**given, "outcome": Outcome.COMPLETED, **more}, Record)
    return msgspec.json.encode(made).decode() + "\n"


def test_azures_format_also_zipped(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    first, second = load(f"file:{path}")
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (0.0, 4808, 10)
    assert (round(second.at_s, 6), second.prompt_tokens, second.output_tokens) == (1.5, 110, 1)
    path.write_bytes(gzip.compress(AZURE.encode()))
    assert list(load(f"file:{path}")) == [first, second]


def test_a_zone_in_azures_times(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00+00:00,5,6\n2024-05-10 00:00:02.5+00:00,7,8\n"
    )
    assert [arrival.at_s for arrival in load(f"file:{path}")] == [0.0, 2.5]


def test_mooncakes_format(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE + MOONCAKE.replace("1000", "4000").replace("[3, 4]", "[3, 5]") + "\n")
    first, second = load(f"file:{path}")
    assert (first.at_s, second.at_s) == (0.0, 3.0)
    assert (first.prefix, second.prefix) == ((3, 4), (3, 5))


def test_lengths_only_need_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n10,5\n20,6\n8,7\n")
    with pytest.raises(WorkloadError, match="how many a second"):
        load(f"file:{path}")
    assert {a.prompt_tokens for a in load(f"file:{path}", rate=50)} == {10, 20, 8}


def test_our_own_records_are_in_order_of_arrival_across_restarts(tmp_path: Path) -> None:
    path = tmp_path / "records"
    prompt = record(103.0, lane="slow")[:-2] + ',"prompt":"hi"}\n'
    later = record(7.0, wall=1010.0, lane="batch", stream=True, output_tokens=40)
    path.write_text(HEADER + record(102.0, output_tokens=4) + record(100.0, output_tokens=3) + prompt + HEADER + later)
    arrivals = list(load(f"file:{path}"))
    assert [round(a.at_s, 6) for a in arrivals] == [0.0, 2.0, 3.0, 10.0]
    assert [a.lane for a in arrivals] == ["fast", "fast", "slow", "batch"]
    assert [a.output_tokens for a in arrivals][:2] == [3, 4]
    assert arrivals[2].prompt == "hi"
    assert arrivals[3].stream
    assert (arrivals[0].tenant, arrivals[0].model) == ("acme", "m")


def test_what_a_recorded_request_promised_is_promised_again(tmp_path: Path) -> None:
    path = tmp_path / "records"
    promise = OwnPromise(ttft_s=0.4, tpot_s=0.05, ttft_kept=False)
    path.write_text(HEADER + record(1.0, promise=promise) + record(2.0))
    assert [(a.ttft_s, a.tpot_s) for a in load(f"file:{path}")] == [(0.4, 0.05), (None, None)]
    assert [(a.ttft_s, a.tpot_s) for a in load(f"file:{path},ttft=2")] == [(2.0, 0.05), (2.0, None)]


def test_what_the_journal_writes_can_be_played(tmp_path: Path) -> None:
    path = tmp_path / "records"
    journal = Journal(path, 1 << 20, 2, prompts=True)
    journal.keep_prompt("x", {"messages": [{"role": "user", "content": "hello"}]})
    made = msgspec.json.decode(record(5.0, output_tokens=3, stream=True), type=Record)
    journal.take([made], 0.0)
    journal.close()
    (arrival,) = load(f"file:{path}")
    assert (arrival.lane, arrival.prompt_tokens, arrival.output_tokens, arrival.stream) == ("fast", 9, 3, True)
    assert arrival.prompt == [{"role": "user", "content": "hello"}]


def test_what_was_refused_would_have_said_as_much_as_others_of_its_lane(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_text(
        HEADER
        + record(1.0, output_tokens=11)
        + record(2.0, lane="batch", output_tokens=500)
        + record(3.0, outcome=Outcome.LANE_FULL)
        + '{"cut off in the middle'
    )
    assert [a.output_tokens for a in load(f"file:{path}")] == [11, 500, 11]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (AZURE + "2023-11-16 18:17:06,ten,5\n", 4),
        (AZURE + "yesterday,10,5\n", 4),
        (AZURE + "2023-11-16 18:17:06,10\n", 4),
        (AZURE + "2023-11-16 18:17:06,-3,5\n", 4),
        (AZURE + "\n", 4),
        (MOONCAKE * 2 + '{"timestamp": 5}\n', 3),
        (MOONCAKE + "{not json}\n", 2),
        (MOONCAKE + '{"timestamp": -1, "input_length": 6, "output_length": 5}\n', 2),
        ("num_prefill_tokens,num_decode_tokens\n1,2\n3\n", 3),
        (HEADER + record(1.0) + "{}\n", 3),
        (HEADER.replace('"schema":1', '"schema":9'), 1),
        ("when,what\n1,2\n", 1),
        ("\x00\x01", 1),
        ("", 1),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=f"line {line}: ") as caught:
        load(f"file:{path},rate=1")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_a_malformed_line_too(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(AZURE.encode() + b"\xff\xfe,1,2\n")
    with pytest.raises(WorkloadError, match="line 4: "):
        load(f"file:{path}")


def test_no_file_no_rows_and_half_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with pytest.raises(WorkloadError, match="No such file"):
        load(f"file:{path}")
    path.write_text(AZURE.split("\n")[0] + "\n")
    with pytest.raises(WorkloadError, match="no requests"):
        load(f"file:{path}")
    path.write_bytes(gzip.compress(AZURE.encode() * 100)[:-20])
    with pytest.raises(WorkloadError, match=r"can't be read|line"):
        load(f"file:{path}")


def test_a_trace_of_ones_own_in_a_format_that_is_named(tmp_path: Path) -> None:
    azure, mooncake = tmp_path / "a.csv.gz", tmp_path / "m.jsonl"
    azure.write_bytes(gzip.compress(AZURE.encode()))
    mooncake.write_text(MOONCAKE + MOONCAKE.replace("1000", "4000"))
    assert [a.prompt_tokens for a in load(f"azure:file={azure}")] == [4808, 110]
    assert [a.prefix for a in load(f"mooncake:file={mooncake}")] == [(3, 4), (3, 4)]
    assert len(list(load(f"mooncake:file={mooncake},rate=10", duration_s=2.0))) == 20
    mixed = list(load(f"a=azure:file={azure},rate=1; b=mooncake:rate=1", duration_s=10.0))
    assert {a.name for a in mixed} == {"a", "b"}


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("azure", "", "line 1: it is empty; azure has TIMESTAMP,ContextTokens,GeneratedTokens"),
        ("mooncake", "\n", "line 1: it is empty; mooncake has timestamp, input_length, output_length, hash_ids"),
        ("azure", "TIMESTAMP,Tokens\n", "line 1: expected TIMESTAMP,ContextTokens,GeneratedTokens, got 'TIMESTAMP,Tok"),
        ("azure", MOONCAKE, "not azure's format"),
        ("mooncake", AZURE, "not mooncake's format"),
        ("mooncake", HEADER, "not mooncake's format"),
        ("azure", AZURE.split("\n")[0] + "\n", "has no requests in it"),
        ("azure", AZURE + "2023-11-16 18:17:06,ten,5\n", "line 4: expected TIMESTAMP,ContextTokens,GeneratedTokens"),
        (
            "mooncake",
            MOONCAKE + '{"timestamp": 5}\n',
            "line 2: expected timestamp, input_length, output_length, hash_ids",
        ),
    ],
)
def test_a_file_of_another_kind_or_without_rows_is_told_in_one_line(
    tmp_path: Path, kind: str, text: str, said: str
) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        load(f"{kind}:file={path}")
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"nowhere\.jsonl can't be read: No such file"):
        load(f"mooncake:file={tmp_path / 'nowhere.jsonl'}")
