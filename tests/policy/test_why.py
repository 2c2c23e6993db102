"""One request's milliseconds: they add up, and each part names what really held it up."""

import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.explain.neighbours import Neighbour, as_neighbour
from headgate.explain.why import (
    Explanation,
    Part,
    UsualTimes,
    explain,
    headline,
    main_part,
    neighbours,
    usual,
)
from headgate.model.outcome import Outcome
from headgate.model.record import Ahead, Attempt, ConsideredReplica, EngineTimings, Gap, Record
from tests.policy.records import STAGES, record


def main_cause(explanation: Explanation) -> str:
    return main_part(explanation).because.kind


USUAL = UsualTimes(accept_s=0.001, first_s=0.05, tokens=100, decode_s=0.4, tpot_s=0.02, gap_s=0.03, output_tokens=21)


@dataclass(frozen=True)
class Stop:
    kind: str
    at: float
    took_s: float


def beside(tokens: int, since: float, until: float, name: str = "x", tenant: str = "u", context: int = 0) -> Neighbour:
    return Neighbour(name, tenant, "slow", "a", tokens, context or tokens, since, until, until + 1.0)


def part(explanation: Explanation, stage: str) -> Part:
    (found,) = [part for part in explanation.parts if part.stage == stage]
    return found


def told(explanation: Explanation) -> list[str]:
    return [part.stage for part in explanation.parts]


# -- the waterfall -------------------------------------------------------------------------------------


def test_an_ordinary_answer_is_told_in_order_and_nobody_is_blamed() -> None:
    seen = (ConsideredReplica("a", 0.9, 0.0, 0.5, False), ConsideredReplica("b", 0.4, 1.0, 0.0, False))
    explanation = explain(record(seen=seen), [beside(5000, 99.0, 100.1)], [], USUAL)
    assert told(explanation) == ["accept", "queue", "route", "prefill", "decode"]
    assert [p.because.kind for p in explanation.parts] == [
        "ordinary", "ordinary", "ordinary", "own_prompt", "generation",
    ]  # fmt: skip
    assert part(explanation, "route").because.figures == {"a": 0.9, "b": 0.4}
    assert part(explanation, "route").because.who == "a"
    assert main_cause(explanation) == "generation"
    assert headline(explanation) == "400 ms of 451 ms for tokens: 21 tokens, 20.0 ms each, beside 1 other"


amount = st.floats(0.0, 30.0)


@given(
    stages=st.tuples(amount, amount, amount, amount, amount, amount),
    gaps=st.lists(st.tuples(amount, amount), max_size=3),
    stalled_s=amount,
    attempts=st.lists(st.tuples(amount, amount, st.booleans()), max_size=3),
    engine=st.none() | st.tuples(amount, amount, amount, st.integers(0, 3)),
    outcome=st.sampled_from(Outcome),
    stream=st.booleans(),
    spoke=st.booleans(),
    output=st.integers(0, 50),
    known=st.booleans(),
)
def test_the_parts_add_up_whatever_happened(
    stages: tuple[float, ...],
    gaps: list[tuple[float, float]],
    stalled_s: float,
    attempts: list[tuple[float, float, bool]],
    engine: tuple[float, float, float, int] | None,
    outcome: Outcome,
    stream: bool,
    spoke: bool,
    output: int,
    known: bool,
) -> None:
    values = dict(zip(STAGES, stages, strict=True))
    if not spoke:
        values["stream_s"] = 0.0
    timings = None
    if engine is not None:
        queue_s, prefill_s, decode_s, preemptions = engine
        timings = EngineTimings(1e3 * queue_s, 5.0, 1e3 * prefill_s, 1e3 * decode_s, 5.0, preemptions=preemptions)
    explanation = explain(
        record(
            **values,
            ttft_s=sum(stages[:4]) if spoke else None,
            gaps=tuple(Gap(sum(stages[:4]) + at, took) for at, took in sorted(gaps, key=lambda gap: -gap[1])),
            stalled_s=stalled_s,
            failed=tuple(Attempt("b", at, took, Outcome.REPLICA_FAILED, busy, "") for at, took, busy in attempts),
            engine=timings,
            outcome=outcome,
            stream=stream,
            output_tokens=output,
        ),
        [beside(5000, 100.0, 130.0)],
        [Stop("gc", 101.0, 2.0)],
        USUAL if known else None,
    )
    assert sum(part.took_s for part in explanation.parts) == pytest.approx(explanation.e2e_s, rel=1e-9, abs=1e-9)
    assert all(part.took_s >= -1e-9 for part in explanation.parts)
    assert all(part.cause and 0.0 <= part.excess_s <= part.took_s + 1e-9 for part in explanation.parts)
    assert headline(explanation)


def test_a_record_without_stages_says_that_it_does_not_know() -> None:
    explanation = explain(record(accept_s=0.0, first_s=0.0, stream_s=0.0, e2e_s=2.0, ttft_s=None), [], [])
    assert part(explanation, "unknown").took_s == 2.0
    assert main_cause(explanation) == "unknown"


def test_rounding_goes_where_it_was_made() -> None:
    explanation = explain(record(e2e_s=0.4511), [], [])
    assert part(explanation, "accept").took_s == pytest.approx(0.0011)


# -- waiting -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead", "kind", "who", "cause"),
    [
        (Ahead(45, 9000, "acme", 40, 8000), "flood", "acme", "behind 40 requests (8 000 tokens) of tenant acme"),
        (Ahead(45, 9000, "acme", 40, 100), "flood", "acme", "behind 40 requests (100 tokens) of tenant acme"),
        (Ahead(45, 9000, "acme", 5, 8000), "flood", "acme", "behind 5 requests (8 000 tokens) of tenant acme"),
        (Ahead(45, 9000, "acme", 10, 2000), "queue", "acme", "behind 45 requests (9 000 tokens) in lane fast"),
        (Ahead(1, 900, "acme", 1, 900), "queue", "acme", "behind 1 request (900 tokens) in lane fast"),
        (
            Ahead(45, 9000, "t", 40, 8000),
            "queue",
            "t",
            "behind 45 requests (9 000 tokens) in lane fast, 40 requests (8 000 tokens) of them its own tenant's",
        ),
    ],
)
def test_who_stood_before_it_is_why_it_waited(ahead: Ahead, kind: str, who: str, cause: str) -> None:
    explanation = explain(record(queue_s=2.1, ahead=ahead), [], [], USUAL)
    queue = part(explanation, "queue")
    assert (queue.because.kind, queue.because.who, queue.cause) == (kind, who, cause)
    assert queue.because.figures["requests"] == ahead.requests
    assert main_cause(explanation) == kind
    assert headline(explanation) == f"2.1 s of 2.6 s in the queue {cause}"


@pytest.mark.parametrize(
    ("tenants", "kind", "who"),
    [
        (["u"] * 4, "flood", "u"),
        (["u"] * 2, "queue", "u"),
        (["u", "u", "v", "v"], "queue", "u"),
        (["t"] * 4, "queue", "t"),
        ([], "queue", ""),
    ],
)
def test_with_nobody_ahead_those_who_had_the_room_are_why(tenants: list[str], kind: str, who: str) -> None:
    near = [beside(50, 99.0, 99.5, f"x{n}", tenant) for n, tenant in enumerate(tenants)]
    queue = part(explain(record(queue_s=0.3), near, [], USUAL), "queue")
    assert (queue.because.kind, queue.because.who) == (kind, who)


def test_those_who_had_left_before_it_came_had_no_room_of_its() -> None:
    gone = [beside(50, 90.0, 91.0, f"x{n}") for n in range(5)]
    assert part(explain(record(queue_s=0.3), gone, []), "queue").because == part(
        explain(record(queue_s=0.3), [], []), "queue"
    ).because  # fmt: skip


@pytest.mark.parametrize("busy", [False, True])
def test_time_lost_on_replicas_and_waiting_after_it_is_their_doing(busy: bool) -> None:
    failed = (
        Attempt("b", 0.101, 0.5, Outcome.REPLICA_FAILED, busy, "connection reset"),
        Attempt("c", 0.601, 0.2, Outcome.REPLICA_STALLED, busy, "silent"),
    )
    explanation = explain(record(queue_s=0.4, retry_s=0.7, failed=failed), [], [], USUAL)
    stages = told(explanation)
    assert stages == ["accept", "queue", "retry", "retry", "queue", "route", "prefill", "decode"]
    waits = [p for p in explanation.parts if p.stage == "queue"]
    assert [p.took_s for p in waits] == pytest.approx([0.1, 0.3])
    kind = "refused_replica" if busy else "killed_replica"
    assert [p.because.kind for p in waits] == ["queue", kind]
    tries = [p for p in explanation.parts if p.stage == "retry"]
    assert [(p.because.kind, p.because.who, p.took_s) for p in tries] == [
        (kind, "b", 0.5), (kind, "c", pytest.approx(0.2)),
    ]  # fmt: skip
    assert main_cause(explanation) == kind
    many = explain(record(queue_s=0.4, retry_s=0.7, failed=failed, failures=99), [], [], USUAL)
    assert [p.cause for p in many.parts if p.stage == "retry"][-1].endswith("; 99 attempts failed in all")


def test_a_wait_for_a_sleeping_replica_says_how_long_it_took_to_wake_up() -> None:
    explanation = explain(record(queue_s=2.1, woke_s=1.9, replica="b"), [], [], USUAL)
    (wait,) = [part for part in explanation.parts if part.stage == "queue"]
    assert wait.cause == "for sleeping replica b to wake up, which took 1.9 s of it"
    assert (wait.because.kind, wait.because.who, wait.because.figures) == ("asleep", "b", {"woke_s": 1.9})
    assert main_cause(explanation) == "asleep"


def test_time_lost_on_nobody_knows_whom() -> None:
    assert main_cause(explain(record(retry_s=1.0), [], [])) == "retry"


def test_a_refusal_says_who_was_ahead() -> None:
    ahead = Ahead(45, 9000, "acme", 40, 8000)
    refused = record(
        outcome=Outcome.WOULD_WAIT_TOO_LONG, message="it would wait 3.00 s", ahead=ahead, replica=None,
        first_s=0.0, stream_s=0.0, ttft_s=None, output_tokens=0,
    )  # fmt: skip
    explanation = explain(refused, [], [])
    assert told(explanation) == ["accept", "queue"]
    assert main_part(explanation).because.who == "acme"
    assert headline(explanation) == "would_wait_too_long: it would wait 3.00 s"


def test_a_refusal_for_a_limit_says_so() -> None:
    refused = record(
        outcome=Outcome.OVER_LIMIT, message="tenant 't' is over its limit", replica=None,
        first_s=0.0, stream_s=0.0, ttft_s=None,
    )  # fmt: skip
    explanation = explain(refused, [], [])
    assert main_part(explanation).cause == "tenant 't' is over its limit"
    assert main_cause(explanation) == "queue"


@pytest.mark.parametrize(
    ("took_s", "pauses", "kind"),
    [
        (0.5, [], "slow_client"),
        (0.5, [Stop("loop", 100.1, 0.4)], "loop_lag"),
        (0.5, [Stop("gc", 100.0, 0.3)], "gc_pause"),
        (0.5, [Stop("gc", 100.0, 0.1)], "slow_client"),
        (0.01, [], "ordinary"),
    ],
)
def test_a_request_that_is_long_in_coming(took_s: float, pauses: list[Stop], kind: str) -> None:
    assert part(explain(record(accept_s=took_s), [], pauses, USUAL), "accept").because.kind == kind


# -- the first token -----------------------------------------------------------------------------------


def slow_first(**given: Any) -> Record:
    return record(first_s=1.0, **given)


@pytest.mark.parametrize(
    ("slow", "near", "pauses", "kind", "who"),
    [
        (slow_first(), [], [], "unknown", "a"),
        (slow_first(), [beside(5000, 99.5, 100.8)], [], "long_prefill", "x"),
        (slow_first(), [beside(5000, 99.5, 100.1)], [], "unknown", "a"),  # it was over when this one had just begun
        (slow_first(), [beside(90, 99.5, 100.8)], [], "unknown", "a"),  # no longer than its own
        (slow_first(prompt_tokens=20), [beside(60, 99.5, 100.8)], [], "unknown", "a"),  # too short for anybody
        (
            slow_first(),
            [beside(5000, 100.0 + n / 5, 100.2 + n / 5, f"x{n}") for n in range(4)],
            [],
            "long_prefill",
            "x1",
        ),
        (slow_first(prompt_tokens=50), [beside(50, 100.1, 100.9, f"x{n}") for n in range(9)], [], "queue", "a"),
        (slow_first(cold=True), [beside(5000, 99.5, 100.4)], [], "cold_replica", "a"),
        (slow_first(cold=True), [beside(5000, 99.5, 100.8)], [], "long_prefill", "x"),  # there most of the time
        (slow_first(), [beside(5000, 99.5, 100.8)], [Stop("gc", 100.2, 0.7)], "gc_pause", ""),
        (record(cold=True), [], [], "own_prompt", ""),  # cold, but as quick as ever
        (record(prompt_tokens=3000, first_s=1.0), [beside(5000, 99.5, 100.8)], [], "own_prompt", ""),  # long, so usual
    ],
)
def test_what_held_up_the_first_token(
    slow: Record, near: list[Neighbour], pauses: list[Stop], kind: str, who: str
) -> None:
    found = part(explain(slow, near, pauses, USUAL), "prefill").because
    assert (found.kind, found.who) == (kind, who)


def test_prefills_that_were_held_up_themselves_are_not_to_blame() -> None:
    stuck = [beside(100, 100.1, 101.2, f"x{n}") for n in range(3)]
    assert part(explain(gapped(), stuck, [], USUAL), "gap").because.kind == "unknown"
    at_once = [beside(700, 100.1, 100.5, f"x{n}") for n in range(4)]  # no more than 300 ms of the gap, all together
    assert part(explain(gapped(), at_once, [], USUAL), "gap").because.kind == "unknown"
    in_turn = [beside(700, 100.2 + n / 4, 100.45 + n / 4, f"x{n}") for n in range(4)]
    assert part(explain(gapped(), in_turn, [], USUAL), "gap").because.kind == "long_prefill"


def test_of_several_long_prefills_the_one_that_did_most_is_named_and_the_others_counted() -> None:
    near = [beside(2000, 100.0, 100.5, "some"), beside(9000, 100.2, 100.9, "most")]
    prefill = part(explain(slow_first(), near, [], USUAL), "prefill")
    assert prefill.because.who == "most"
    assert prefill.because.figures["others"] == 1
    assert prefill.cause == "long prefill of request most (9 000 tokens) and 1 other beside it for 700 ms"


@pytest.mark.parametrize(("took_s", "kind"), [(0.15, "own_prompt"), (0.5, "cold_replica")])
def test_a_cold_replica_without_knowing_what_is_usual(took_s: float, kind: str) -> None:
    assert part(explain(record(cold=True, first_s=took_s), [], []), "prefill").because.kind == kind


def test_a_prefill_says_how_much_was_cached_how_fast_it_was_and_in_how_many_chunks() -> None:
    engine = EngineTimings(prefill_ms=50.0, prefill_chunks=2)
    prefill = part(explain(record(prompt_tokens=900, cached_tokens=800, engine=engine), [], [], USUAL), "prefill")
    assert prefill.cause == "prefill of its own 100 tokens (of 900; the rest was cached) in 2 chunks at 2000 per s"
    assert prefill.because.figures == {"tokens": 100, "cached_tokens": 800, "tokens_per_s": 2000.0, "chunks": 2}


@pytest.mark.parametrize(
    ("near", "cold", "kind"),
    [
        ([], False, "queue"),
        ([beside(50, 99.0, 99.1)], False, "queue"),
        ([beside(5000, 99.0, 100.9)], False, "long_prefill"),
        ([], True, "cold_replica"),
    ],
)
def test_the_engines_own_queue_is_told_apart(near: list[Neighbour], cold: bool, kind: str) -> None:
    engine = EngineTimings(queue_ms=800.0, prefill_ms=150.0)
    explanation = explain(slow_first(engine=engine, cold=cold), near, [], USUAL)
    waiting = part(explanation, "engine_queue")
    assert (waiting.took_s, waiting.because.kind) == (0.8, kind)
    assert part(explanation, "prefill").took_s == pytest.approx(0.2)


# -- not streamed --------------------------------------------------------------------------------------


def test_an_answer_in_one_piece_is_one_part() -> None:
    explanation = explain(record(stream=False, first_s=3.0, stream_s=0.0, ttft_s=None, tpot_s=None), [], [])
    answer = part(explanation, "answer")
    assert (answer.because.kind, answer.cause) == ("generation", "prefill of its own 100 tokens, and 21 tokens said")


@pytest.mark.parametrize(
    ("given", "near", "kind"),
    [
        ({"first_s": 0.05}, [], "generation"),
        ({"first_s": 1.0, "output_tokens": 420}, [beside(9000, 99.0, 101.0)], "generation"),  # it just said a lot
        ({"first_s": 1.0}, [beside(9000, 99.0, 101.0)], "long_prefill"),
        ({"first_s": 1.0}, [], "unknown"),
    ],
)
def test_a_slow_answer_in_one_piece(given: dict[str, Any], near: list[Neighbour], kind: str) -> None:
    explanation = explain(record(stream=False, stream_s=0.0, ttft_s=None, **given), near, [], USUAL)
    assert part(explanation, "answer").because.kind == kind


def test_where_its_engine_says_so_it_is_two() -> None:
    engine = EngineTimings(queue_ms=100.0, tokenize_ms=1.0, prefill_ms=899.0, decode_ms=2000.0)
    explanation = explain(record(stream=False, first_s=1.0, stream_s=2.0, engine=engine), [], [])
    assert part(explanation, "engine_queue").took_s == pytest.approx(0.1)
    assert part(explanation, "prefill").took_s == pytest.approx(0.9)
    assert part(explanation, "decode").took_s == pytest.approx(2.0)
    assert "100.0 ms each" in part(explanation, "decode").cause


# -- tokens --------------------------------------------------------------------------------------------


def gapped(**given: Any) -> Record:
    """A second of silence in the middle."""
    return record(stream_s=1.4, gaps=(Gap(0.2, 1.0), Gap(0.1, 0.02), Gap(1.3, 0.02)), **given)


@pytest.mark.parametrize(
    ("silent", "near", "pauses", "kind", "who"),
    [
        (gapped(), [], [], "unknown", "a"),
        (gapped(), [beside(5000, 100.1, 101.0)], [], "long_prefill", "x"),
        (gapped(), [beside(5000, 100.1, 100.5)], [], "unknown", "a"),
        (gapped(), [beside(30, 100.1, 101.0)], [], "unknown", "a"),
        (gapped(), [beside(5000, 100.1, 101.0)], [Stop("gc", 100.2, 0.9)], "gc_pause", ""),
        (gapped(), [beside(5000, 100.1, 101.0)], [Stop("loop", 100.2, 0.9)], "loop_lag", ""),
        (gapped(), [beside(5000, 100.1, 101.0)], [Stop("loop", 90.0, 0.9)], "long_prefill", "x"),
        (gapped(engine=EngineTimings(preemptions=1)), [beside(5000, 100.1, 101.0)], [], "eviction", "a"),
        (gapped(engine=EngineTimings(preemptions=1, yields=1)), [], [], "gave_way", "a"),
        (gapped(cold=True), [], [], "cold_replica", "a"),
    ],
)
def test_what_made_a_gap(silent: Record, near: list[Neighbour], pauses: list[Stop], kind: str, who: str) -> None:
    for known in (USUAL, None):
        explanation = explain(silent, near, pauses, known)
        gap = part(explanation, "gap")
        assert (gap.at_s, gap.took_s, gap.because.kind, gap.because.who) == (0.2, 1.0, kind, who)
        assert main_cause(explanation) == kind
        assert part(explanation, "decode").took_s == pytest.approx(0.4)


def test_one_preemption_explains_one_gap() -> None:
    twice = record(
        stream_s=2.4, gaps=(Gap(1.0, 1.1), Gap(0.2, 0.7), Gap(1.3, 0.02)), engine=EngineTimings(preemptions=1)
    )
    kinds = [(p.at_s, p.because.kind) for p in explain(twice, [], [], USUAL).parts if p.stage == "gap"]
    assert kinds == [(0.2, "unknown"), (1.0, "eviction")]


def test_gaps_that_are_as_usual_are_not_told() -> None:
    even = record(output_tokens=3, stream_s=0.1, gaps=(Gap(0.05, 0.05), Gap(0.1, 0.05)))
    calm = UsualTimes(accept_s=0.0, first_s=0.05, tokens=100, decode_s=0.1, tpot_s=0.05, gap_s=0.05, output_tokens=3)
    assert "gap" not in told(explain(even, [], [], calm))


@pytest.mark.parametrize(
    ("given", "near", "kind", "says"),
    [
        ({"output_tokens": 101, "stream_s": 2.0}, [beside(9000, 100.0, 102.0)], "generation", "20.0 ms each"),
        ({}, [], "generation", "100.0 ms each"),
        ({}, [beside(9000, 100.0, 102.0)], "long_prefill", "request x"),
        ({}, [beside(50, 99.0, 100.0, context=20_000)], "generation", "one of them with 20 000 tokens of context"),
        ({"engine": EngineTimings(preemptions=2)}, [], "eviction", "preempted 2 times"),
        ({"engine": EngineTimings(preemptions=3, yields=1)}, [], "eviction", "preempted 3 times"),
        ({"engine": EngineTimings(preemptions=2, yields=2)}, [], "gave_way", "to more urgent requests 2 times"),
        ({"cold": True}, [], "cold_replica", "was cold"),
    ],
)
def test_slow_tokens_are_somebodys_doing_and_many_are_its_own(
    given: dict[str, Any], near: list[Neighbour], kind: str, says: str
) -> None:
    decode = part(explain(record(**{"stream_s": 2.0, **given}), near, [], USUAL), "decode")
    assert decode.because.kind == kind
    assert says in decode.cause


# -- clients, and ends ---------------------------------------------------------------------------------


def test_a_client_that_reads_slowly_is_why() -> None:
    explanation = explain(record(stream_s=3.4, stalled_s=3.0), [], [], USUAL)
    stalled = part(explanation, "stalled")
    assert (stalled.took_s, stalled.because.kind, stalled.because.who) == (3.0, "slow_client", "t")
    assert main_cause(explanation) == "slow_client"
    assert part(explanation, "decode").took_s == pytest.approx(0.4)


def test_one_that_was_given_up_stalled_at_the_end() -> None:
    given_up = record(outcome=Outcome.SLOW_CLIENT, stalled_s=2.0, end_s=2.001)
    explanation = explain(given_up, [], [], USUAL)
    assert part(explanation, "stalled").took_s == 2.0
    assert part(explanation, "decode").took_s == pytest.approx(0.4)
    assert headline(explanation).startswith("slow_client; 2.0 s of 2.5 s stalled")


def test_a_stream_that_broke_off_is_its_replicas_doing_however_short_it_was() -> None:
    broken = record(outcome=Outcome.REPLICA_FAILED, message="reset", queue_s=0.3)
    explanation = explain(broken, [], [], USUAL)
    assert main_cause(explanation) == "killed_replica"
    assert main_part(explanation).cause == "replica a broke off: reset"


def test_a_client_that_left_while_it_waited() -> None:
    left = record(outcome=Outcome.CANCELLED, queue_s=0.5, first_s=0.0, stream_s=0.0, ttft_s=None, replica=None)
    explanation = explain(left, [], [])
    assert told(explanation) == ["accept", "queue", "end"]
    assert headline(explanation).startswith("cancelled; 500 ms of 501 ms in the queue")


# -- neighbours and the usual --------------------------------------------------------------------------


def test_neighbours_were_at_the_same_replica_at_the_same_time() -> None:
    own = record()
    others = [
        own,
        record(id="before", at=90.0),
        record(id="after", at=110.0),
        record(id="elsewhere", replica="b"),
        record(id="nowhere", replica=None),
        record(id="beside", at=99.9, prompt_tokens=700, cached_tokens=200),
        record(id="longer", at=99.0, first_s=1.2, prompt_tokens=9000),
        record(id="still waiting", at=100.0, queue_s=9.0),
    ]
    found = neighbours(own, others)
    assert [(n.id, n.tokens) for n in found] == [("longer", 9000), ("beside", 500)]
    assert found[0].sent_at == pytest.approx(99.001)
    assert found[0].first_at == pytest.approx(100.201)
    assert neighbours(record(replica=None), others) == []


def test_they_are_bounded_and_the_longest_are_kept() -> None:
    crowd = [record(id=f"x{n}", prompt_tokens=n) for n in range(500)]
    found = neighbours(record(), crowd)
    assert (len(found), found[0].tokens, found[-1].tokens) == (64, 499, 436)


def test_how_long_the_prefill_of_an_answer_in_one_piece_took() -> None:
    whole = record(stream=False, first_s=3.0, stream_s=0.0, ttft_s=None, prompt_tokens=600, output_tokens=20)
    assert as_neighbour(whole).first_at - as_neighbour(whole).sent_at == pytest.approx(1.5)
    said = as_neighbour(record(stream=False, first_s=1.0, stream_s=2.0))
    assert said.first_at - said.sent_at == pytest.approx(1.0)
    unspoken = as_neighbour(record(ttft_s=None, stream_s=0.0, first_s=2.0))
    assert unspoken.first_at == unspoken.ended_at


@pytest.mark.skipif(sys.gettrace() is not None, reason="time says nothing while every line is traced")
def test_looking_through_all_that_is_kept_takes_milliseconds() -> None:
    kept = [record(id=f"x{n}", at=100.0 + n / 100, replica=f"replica-{n % 4}") for n in range(50_000)]
    took = []
    for _ in range(5):
        began = time.thread_time()
        assert neighbours(kept[40_000], kept)
        took.append(time.thread_time() - began)
    assert min(took) < 0.03


def test_the_usual_is_the_median_of_what_was_answered_the_same_way() -> None:
    answers = [record(first_s=0.01 * n, stream_s=0.1 * n, prompt_tokens=10 * n) for n in range(1, 10)]
    others = [record(stream=False, first_s=50.0)] * 50 + [record(outcome=Outcome.REPLICA_FAILED, first_s=50.0)] * 50
    found = usual(answers + others, stream=True)
    assert found is not None
    assert (found.first_s, found.tokens, found.decode_s) == pytest.approx((0.05, 50, 0.5))
    assert found.first_for(20) == pytest.approx(0.05)
    assert found.first_for(500) == pytest.approx(0.5)
    assert usual(answers[:7], stream=True) is None
    unsaid = usual([record(tpot_s=None)] * 8, stream=True)
    assert unsaid is not None
    assert unsaid.tpot_s == 0.0


def test_the_decoding_of_an_answer_in_one_piece_is_not_put_down_to_a_queue() -> None:
    """Other prompts beside it were called a queue, and doctor asked for replicas on an idle fleet."""
    near = [beside(90, 100.0, 109.0, f"x{n}") for n in range(4)]
    whole = record(
        stream=False, ttft_s=None, prompt_tokens=100, output_tokens=400, first_s=9.0, stream_s=0.0, e2e_s=9.1
    )
    answered = part(explain(whole, near, [], USUAL), "answer")
    assert answered.because.kind not in ("queue", "flood")


def test_a_stream_of_one_token_has_nothing_to_decode() -> None:
    told = explain(record(output_tokens=1, stream_s=0.0, tpot_s=None), [], [], USUAL)
    assert "decode" not in {part.stage for part in told.parts}
