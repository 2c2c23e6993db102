"""Which requests leave a trace, and that it is a true one."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from headgate.config.gateway import ObserveConfig
from headgate.gateway.trace_context import Contexts, TraceContext, context_of, outgoing
from headgate.measure import figures as gateway_figures
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.quantile import Sketch
from headgate.model.record import Ahead, Attempt, ConsideredReplica, EngineTimings, Gap, Record
from headgate.publish.otlp import Make
from headgate.publish.spans import add_spans
from headgate.publish.traces import Traces
from tests.wire.serving import steady

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
MS = 1_000_000


def record(outcome: Outcome = Outcome.COMPLETED, **more: Any) -> Record:
    about: dict[str, Any] = {"id": "r1", "at": 5.0, "wall": 1.7e9, "lane": "fast", "tenant": "acme", "model": "m"}
    return Record(outcome=outcome, **{**about, **more})


# -- W3C trace context ----------------------------------------------------------------------------------------


def test_a_traceparent_is_understood() -> None:
    assert context_of({"traceparent": PARENT}) == TraceContext(TRACE, SPAN, 1)
    assert context_of({"traceparent": PARENT[:-2] + "00", "tracestate": "a=1"}) == TraceContext(TRACE, SPAN, 0, "a=1")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "hello",
        PARENT.upper(),
        PARENT + "-00",
        " " + PARENT,
        PARENT + "\n",
        f"{PARENT}, {PARENT}",
        "01" + PARENT[2:],
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
    ],
)
def test_anything_but_a_traceparent_begins_a_trace_of_its_own(header: str) -> None:
    assert context_of({"traceparent": header, "tracestate": "a=1"}) is None
    hop = Contexts(0.0, random.Random(1)).of({"traceparent": header, "tracestate": "a=1"})
    assert TRACE not in hop.traceparent
    assert hop.parent_id == ""
    assert b"tracestate" not in hop.lines


@pytest.mark.parametrize(
    ("sent", "passed_on"),
    [
        ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        ("a=1, b=2 ,\t,1tenant@vendor=x y", "a=1,b=2,1tenant@vendor=x y"),
        ("a=1,a=2", ""),
        ("a", ""),
        ("A=1", ""),
        ("a=", ""),
        ("a=b=c", ""),
        ("a=ü", ""),
        ("a=1\r\nx-evil: 1", ""),
        (",".join(f"k{n}=1" for n in range(33)), ""),
        (",".join(f"k{n}={'v' * 95}" for n in range(9)), ",".join(f"k{n}={'v' * 95}" for n in range(5))),
        ("", ""),
    ],
)
def test_tracestate_is_passed_on_if_it_makes_sense(sent: str, passed_on: str) -> None:
    context = context_of({"traceparent": PARENT, "tracestate": sent})
    assert context is not None  # whatever the other header says
    assert context.state == passed_on
    lines = outgoing(context, "1" * 16).decode().split("\r\n")
    assert lines[1:] == ([f"tracestate: {passed_on}", ""] if passed_on else [""])


def test_the_replica_is_told_our_span_and_only_flags_that_are_known() -> None:
    context = TraceContext(TRACE, SPAN, 0xFF)
    assert outgoing(context, "00f067aa0ba902b7") == f"traceparent: 00-{TRACE}-00f067aa0ba902b7-03\r\n".encode()


def test_a_request_stays_in_its_clients_trace_under_a_span_of_ours() -> None:
    hop = Contexts(0.0, random.Random(1)).of({"traceparent": PARENT, "tracestate": "a=1"})
    assert hop.lines == f"traceparent: {hop.traceparent}\r\ntracestate: a=1\r\n".encode()
    understood = context_of({"traceparent": hop.traceparent})
    assert understood is not None
    assert (understood.trace_id, understood.flags, hop.parent_id) == (TRACE, 1, SPAN)
    assert understood.parent_id != SPAN


def test_requests_without_a_trace_get_one_each() -> None:
    contexts = Contexts(0.25, random.Random(1))
    found = [context_of({"traceparent": contexts.of({}).traceparent}) for _ in range(4000)]
    assert len({context.trace_id for context in found if context is not None}) == 4000
    assert len({context.parent_id for context in found if context is not None}) == 4000
    assert 900 < sum(context.flags for context in found if context is not None) < 1100


def test_who_samples_more_samples_the_same_and_more() -> None:
    headers = [{"traceparent": f"00-{random.Random(n).getrandbits(128):032x}-{SPAN}-00"} for n in range(1000)]
    few, more, every = (
        {h["traceparent"] for h in headers if Contexts(share, random.Random(n)).of(h).traceparent.endswith("-01")}
        for n, share in enumerate((0.02, 0.2, 1.0))
    )
    assert few < more < every
    assert len(every) == 1000
    # As OpenTelemetry has it: the last seven bytes, kept at or above the threshold.
    at, below = f"{'1' * 18}c0000000000000", f"{'f' * 18}bfffffffffffff"
    for trace_id, flags in ((at, "01"), (below, "00")):
        hop = Contexts(0.25, random.Random(1)).of({"traceparent": f"00-{trace_id}-{SPAN}-00"})
        assert hop.traceparent.endswith(flags)


# -- which are kept ---------------------------------------------------------------------------------------------


class Figures:
    """Percentiles of what it is given, for one lane."""

    def __init__(self, *values_s: float) -> None:
        self.asked: list[tuple[str, float]] = []
        self.e2e = Sketch()
        for value_s in values_s:
            self.e2e.add(value_s)

    def sketch(self, figure: str, window_s: int, now: float, *, lane: str | None = None) -> Sketch:
        assert (window_s, lane) == (300, "fast")
        self.asked.append((figure, now))
        return self.e2e if figure == "e2e" else Sketch()


class Outbox:
    def __init__(self) -> None:
        self.makes: list[Make] = []

    def put(self, make: Make) -> None:
        self.makes.append(make)

    def reasons(self) -> list[str]:
        return [values(spans_of(make)[0])["headgate.sampled"] for make in self.makes]


def spans_of(make: Make) -> list[Span]:
    into = ScopeSpans()
    make(into)
    return list(into.spans)


def traces(figures: Figures, share: float = 0.0) -> tuple[Traces, Outbox]:
    outbox = Outbox()
    return Traces({"fast": LANES["fast"]}, share, outbox, random.Random(1), figures), outbox


def test_every_failure_and_refusal_is_kept() -> None:
    kept, outbox = traces(Figures())
    kept.take([record(outcome) for outcome in Outcome], 0.0)
    expected = [outcome.kind for outcome in Outcome if outcome.kind in ("failed", "refused")]
    assert outbox.reasons() == expected
    assert kept.kept == {"failed": 5, "refused": 6}


def test_a_request_that_another_replica_had_to_save_is_kept() -> None:
    kept, outbox = traces(Figures())
    for busy in (True, False):
        failed = Attempt("a:1", 0.0, 0.1, Outcome.REPLICA_FAILED, busy, "no")
        kept.take([record(failed=(failed,), attempts=2)], 0.0)
    assert outbox.reasons() == ["retried"]


def test_those_slower_than_their_lanes_p99_are_kept() -> None:
    kept, outbox = traces(Figures(*(n / 100 for n in range(1, 201))))  # p99: 1.98 s
    kept.take([record(id=str(e2e), e2e_s=e2e) for e2e in (0.1, 1.9, 1.97, 2.1, 10.0)], 0.0)
    assert [values(spans_of(make)[0])["headgate.request_id"] for make in outbox.makes] == ["2.1", "10.0"]
    assert outbox.reasons() == ["slow", "slow"]


def test_a_slow_first_token_is_enough() -> None:
    figures = Figures(*[1.0] * 200)
    figures.sketch = lambda *_, **__: figures.e2e  # type: ignore[method-assign]
    kept, outbox = traces(figures)
    kept.take([record(e2e_s=0.9, ttft_s=ttft) for ttft in (None, 0.5, 1.5)], 0.0)
    assert len(outbox.makes) == 1


@pytest.mark.parametrize("value_s", [0.001, 0.1, 0.123, 1.0, 7.7])
def test_where_all_take_the_same_time_none_is_slow(value_s: float) -> None:
    kept, outbox = traces(Figures(*[value_s] * 1000))
    kept.take([record(e2e_s=value_s)] * 10, 0.0)
    assert outbox.makes == []


def test_the_gateways_own_figures_are_what_is_looked_at() -> None:
    figures, outbox = gateway_figures.Figures(LANES, ObserveConfig(), 0.0), Outbox()
    kept = Traces(LANES, 0.0, outbox, random.Random(1), figures)
    usual = [record(at=1.0, e2e_s=0.1, ttft_s=0.05)] * 500
    for now in (2.0, 3.0):
        figures.take(usual, now)
        kept.take(usual, now)
    slow = [record(at=3.0, e2e_s=0.2, ttft_s=0.05), record(at=3.0, e2e_s=0.1, ttft_s=0.09)]
    kept.take([*slow, record(at=3.0, lane="slow", e2e_s=9.0)], 3.5)
    assert outbox.reasons() == ["slow", "slow"]


def test_too_few_requests_have_no_p99() -> None:
    kept, outbox = traces(Figures(*[0.1] * 99))
    kept.take([record(e2e_s=100.0)], 0.0)
    assert outbox.makes == []


def test_percentiles_are_looked_up_at_most_once_a_second() -> None:
    figures = Figures(*[0.1] * 200)
    kept, _ = traces(figures)
    for now in (10.0, 10.25, 10.99, 11.0, 11.5, 12.5):
        kept.take([record()] * 50, now)
    assert [now for figure, now in figures.asked if figure == "e2e"] == [10.0, 11.0, 12.5]
    kept.take([], 20.0)
    kept.take([record(lane="unheard-of")], 20.0)
    assert len(figures.asked) == 6


def test_what_the_client_samples_is_kept_and_our_share_of_the_rest() -> None:
    kept, outbox = traces(Figures(), share=0.02)
    kept.take([record(trace=f"00-{'1' * 32}-{SPAN}-{flags}") for flags in ("00", "01", "02", "03")], 0.0)
    assert outbox.reasons() == ["parent", "parent"]
    kept.take([record(trace=f"00-{'f' * 32}-{SPAN}-00")], 0.0)
    assert outbox.reasons() == ["parent", "parent", "share"]
    kept.take([record()] * 5000, 0.0)  # without a trace: one is made up
    assert 60 < kept.kept["share"] < 150


def test_spans_cost_nothing_until_they_are_sent() -> None:
    kept, outbox = traces(Figures())
    kept.take([record(Outcome.REPLICA_FAILED, message="\ud800")], 0.0)  # what protobuf can't take
    with pytest.raises(ValueError, match=r"surrogate|UTF-8|utf-8"):
        spans_of(outbox.makes[0])


# -- what is in one ---------------------------------------------------------------------------------------------


def values(of: Span | Span.Event) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in of.attributes:
        assert isinstance(attribute, KeyValue)
        assert attribute.key not in found
        found[attribute.key] = getattr(attribute.value, attribute.value.WhichOneof("value") or "")
    return found


def tree(of: Record, replicas: dict[str, str] | None = None, why: Any = "slow") -> dict[str, Span]:
    """By name; a second of one name is name2."""
    spans: dict[str, Span] = {}
    for span in spans_of(lambda into: add_spans(of, of.trace or PARENT, why, (replicas or {}).get, into)):
        number = sum(other.name == span.name for other in spans.values())
        spans[span.name + (str(number + 1) if number else "")] = span
    return spans


def times(spans: dict[str, Span]) -> dict[str, tuple[int, int]]:
    """Milliseconds from the beginning of the first."""
    begin = next(iter(spans.values())).start_time_unix_nano
    return {
        name: (round((s.start_time_unix_nano - begin) / MS), round((s.end_time_unix_nano - begin) / MS))
        for name, s in spans.items()
    }


STREAM = record(
    stream=True, replica="gpu-1", version="v2", tier="premium", attempts=1, reason="longest prefix",
    prompt_tokens=100, cached_tokens=64, output_tokens=11, accept_s=0.001, queue_s=0.2, first_s=0.3, stream_s=1.0,
    end_s=0.01, ttft_s=0.501, tpot_s=0.1, e2e_s=1.511, stalled_s=0.005, gaps=(Gap(0.6, 0.25), Gap(1.0, 0.15)),
    ahead=Ahead(4, 900, "noisy", 3, 800),
    seen=(ConsideredReplica("gpu-1", 0.9, 1.0, 0.5, False), ConsideredReplica("gpu-2", 0.25, 3.0, 0.0, True)),
    trace=PARENT, parent="00f067aa0ba902b7",
)  # fmt: skip


def test_stages_of_a_stream() -> None:
    spans = tree(STREAM, {"gpu-1": "http://10.0.0.7:8000"})
    assert times(spans) == {
        "chat m": (0, 1511),
        "accept": (0, 1),
        "queue": (1, 201),
        "route": (201, 201),
        "prefill": (201, 501),
        "decode": (501, 1501),
        "relay": (1501, 1511),
    }
    root = spans.pop("chat m")
    assert root.start_time_unix_nano == 1_700_000_000_000_000_000
    assert (root.trace_id.hex(), root.span_id.hex(), root.parent_span_id.hex()) == (TRACE, SPAN, "00f067aa0ba902b7")
    assert root.kind == Span.SPAN_KIND_SERVER
    assert root.status.code == Status.STATUS_CODE_UNSET
    assert {span.parent_span_id for span in spans.values()} == {root.span_id}
    assert {span.trace_id for span in spans.values()} == {root.trace_id}
    assert len({span.span_id for span in spans.values()} | {root.span_id}) == 7
    assert values(root) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headgate",
        "gen_ai.system": "headgate",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "m",
        "gen_ai.response.time_to_first_chunk": 0.501,
        "gen_ai.server.time_to_first_token": 0.501,
        "gen_ai.server.time_per_output_token": 0.1,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 11,
        "gen_ai.usage.cache_read.input_tokens": 64,
        "http.response.status_code": 200,
        "server.address": "10.0.0.7",
        "server.port": 8000,
        "headgate.request_id": "r1",
        "headgate.lane": "fast",
        "headgate.tenant": "acme",
        "headgate.tier": "premium",
        "headgate.version": "v2",
        "headgate.replica": "gpu-1",
        "headgate.outcome": "completed",
        "headgate.reason": "longest prefix",
        "headgate.attempts": 1,
        "headgate.sampled": "slow",
    }
    assert values(spans["queue"])["headgate.ahead.tenant"] == "noisy"
    assert values(spans["route"])["headgate.candidates"] == "gpu-1 0.900, gpu-2 0.250"
    assert values(spans["relay"]) == {"headgate.stalled_s": 0.005}
    events = spans["decode"].events
    begin = root.start_time_unix_nano
    assert [(e.name, (e.time_unix_nano - begin) // MS, values(e)) for e in events] == [
        ("gap", 600, {"headgate.gap_s": 0.25}),
        ("gap", 1000, {"headgate.gap_s": 0.15}),
    ]


def test_what_our_own_engine_says_is_told_apart() -> None:
    timings = EngineTimings(
        queue_ms=50, tokenize_ms=10, prefill_ms=200, decode_ms=990, detokenize_ms=30, prefill_chunks=4, preemptions=1
    )
    spans = tree(Record(**{f: getattr(STREAM, f) for f in STREAM.__struct_fields__} | {"engine": timings}))
    assert {name: when for name, when in times(spans).items() if name not in times(tree(STREAM))} == {
        "engine queue": (251, 301),
        "tokenize": (251, 261),
        "detokenize": (1471, 1501),
    }
    assert times(spans)["prefill"] == (301, 501)
    assert times(spans)["decode"] == (501, 1501)
    assert spans["detokenize"].parent_span_id == spans["decode"].span_id
    assert values(spans["prefill"])["headgate.prefill_chunks"] == 4
    assert values(spans["decode"])["headgate.preemptions"] == 1


WHOLE: dict[str, Any] = {"replica": "127.0.0.1:9000", "attempts": 1, "first_s": 1.0, "e2e_s": 1.1}


def test_what_is_not_streamed_is_divided_only_if_the_engine_says_how() -> None:
    assert times(tree(record(**WHOLE, end_s=0.1)))["generate"] == (0, 1000)
    timings = EngineTimings(queue_ms=100, prefill_ms=300, decode_ms=500)
    known = {**WHOLE, "first_s": 0.5, "stream_s": 0.5, "ttft_s": 0.5}
    spans = tree(record(**known, end_s=0.1, engine=timings))
    assert times(spans)["engine queue"] == (100, 200)
    assert times(spans)["prefill"] == (200, 500)
    assert times(spans)["decode"] == (500, 1000)
    # llama.cpp has other timings under the same name: nothing of them is ours.
    assert "generate" in tree(record(**WHOLE, engine=EngineTimings()))
    root = values(spans["chat m"])
    assert "gen_ai.request.stream" not in root
    assert "gen_ai.response.time_to_first_chunk" not in root
    assert (root["server.address"], root["server.port"]) == ("127.0.0.1", 9000)


def test_replicas_that_failed_are_spans_with_errors_between_the_waits() -> None:
    failed = (
        Attempt("a:1", 0.1, 0.2, Outcome.REPLICA_FAILED, False, "the replica closed the connection"),
        Attempt("b:2", 0.3, 0.1, Outcome.REPLICA_FAILED, True, "busy"),
    )
    spans = tree(record(replica="c:3", attempts=3, failed=failed, queue_s=0.2, retry_s=0.3, first_s=0.5, e2e_s=1.0))
    assert times(spans) == {
        "chat m": (0, 1000),
        "accept": (0, 0),
        "queue": (0, 100),
        "attempt": (100, 300),
        "attempt2": (300, 400),
        "queue2": (400, 500),
        "route": (500, 500),
        "generate": (500, 1000),
        "relay": (1000, 1000),
    }
    attempt = spans["attempt"]
    assert attempt.status.code == Status.STATUS_CODE_ERROR
    assert attempt.status.message == "the replica closed the connection"
    assert values(attempt) == {
        "server.address": "a", "server.port": 1, "headgate.refused": False, "error.type": "replica_failed",
    }  # fmt: skip
    assert spans["chat m"].status.code == Status.STATUS_CODE_UNSET


def test_a_refusal_ends_in_the_queue_with_an_error() -> None:
    spans = tree(record(Outcome.WAITED_TOO_LONG, status=503, message="no room", queue_s=0.4, e2e_s=0.4))
    assert times(spans) == {"chat m": (0, 400), "accept": (0, 0), "queue": (0, 400)}
    root = spans["chat m"]
    assert (root.status.code, root.status.message) == (Status.STATUS_CODE_ERROR, "no room")
    assert values(root)["error.type"] == "waited_too_long"
    assert "gen_ai.response.model" not in values(root)
    (event,) = root.events
    assert event.name == "exception"
    assert event.time_unix_nano == root.end_time_unix_nano
    assert values(event) == {"exception.type": "waited_too_long", "exception.message": "no room"}


def test_a_replica_that_stalls_before_the_first_token_is_seen_in_the_prefill() -> None:
    spans = tree(
        record(Outcome.REPLICA_STALLED, status=504, message="silent", stream=True, replica="a:1", attempts=1,
               first_s=30.0, e2e_s=30.0)
    )  # fmt: skip
    assert "decode" not in spans
    assert spans["prefill"].status.code == Status.STATUS_CODE_ERROR
    assert spans["chat m"].status.code == Status.STATUS_CODE_ERROR


def test_a_client_that_leaves_is_no_error() -> None:
    spans = tree(record(Outcome.CANCELLED, status=499, e2e_s=0.1, queue_s=0.1))
    assert spans["chat m"].status.code == Status.STATUS_CODE_UNSET
    assert "error.type" not in values(spans["chat m"])


@pytest.mark.parametrize(
    ("replica", "address", "port"),
    [
        ("10.0.0.1:8000", "10.0.0.1", 8000),
        ("[::1]:8000", "::1", 8000),
        ("gpu", "gpu", None),
        ("plain", "host", 80),
        ("secure", "host", 443),
        ("local", "/run/engine.sock", None),
        ("odd:port", "odd:port", None),
    ],
)
def test_where_a_replica_is(replica: str, address: str, port: int | None) -> None:
    urls = {"plain": "http://host", "secure": "https://host/", "local": "unix:/run/engine.sock"}
    found = values(tree(record(**{**WHOLE, "replica": replica}), urls)["generate"])
    assert (found["server.address"], found.get("server.port")) == (address, port)


seconds = st.floats(0, 100)
moments = st.floats(-1, 400)
timings = st.builds(EngineTimings, *[st.floats(0, 1e5)] * 5, st.integers(0, 9), st.integers(0, 9))
attempts = st.builds(
    Attempt, st.just("a:1"), moments, seconds, st.just(Outcome.REPLICA_FAILED), st.booleans(), st.text(max_size=5)
)
records = st.builds(
    record, st.sampled_from(Outcome), stream=st.booleans(), replica=st.sampled_from([None, "a:1"]),
    attempts=st.integers(0, 3), failed=st.lists(attempts, max_size=2).map(tuple), accept_s=seconds, queue_s=seconds,
    retry_s=seconds, first_s=seconds, stream_s=seconds, end_s=seconds, e2e_s=seconds, ttft_s=st.none() | seconds,
    gaps=st.lists(st.builds(Gap, moments, seconds), max_size=3).map(tuple), engine=st.none() | timings,
)  # fmt: skip


def every(spans: list[Span]) -> Iterator[tuple[int, int]]:
    for span in spans:
        yield span.start_time_unix_nano, span.end_time_unix_nano
        for event in span.events:
            yield event.time_unix_nano, event.time_unix_nano


@steady
@given(records)
def test_whatever_the_record_says_the_trace_is_a_tree_within_its_root(of: Record) -> None:
    root, *below = spans_of(lambda into: add_spans(of, PARENT, "share", lambda _: None, into))
    assert all(
        root.start_time_unix_nano <= since <= until <= root.end_time_unix_nano for since, until in every([root, *below])
    )
    ids = {span.span_id for span in [root, *below]}
    assert len(ids) == len(below) + 1
    assert {span.parent_span_id for span in below} <= ids
    assert all(len(span.span_id) == 8 and span.span_id != bytes(8) for span in below)
