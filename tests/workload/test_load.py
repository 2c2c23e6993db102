"""Arrivals: as many as asked for, in order, and the same for the same seed."""

import statistics
from itertools import islice, pairwise

import pytest

from headgate.workload.arrival import Arrival, WorkloadError
from headgate.workload.load import Workload, load

MIX = "chat=poisson:rate=8,prompt=120,output=64,lane=fast; code=azure-code:rate=2; kept=sharegpt:rate=1,lane=batch"
EVERY = [
    ("poisson:rate=20", {}),
    ("gamma:rate=20,cv=3", {}),
    ("constant:rate=20", {}),
    ("azure-conv", {"duration_s": 60.0}),
    ("azure-code", {"rate": 20.0, "duration_s": 30.0}),
    ("azure-code", {"rate": 20.0, "time_scale": 1.0, "duration_s": 120.0}),
    ("mooncake", {"duration_s": 120.0}),
    ("sharegpt:rate=20", {}),
    ("servegen:m-small", {"rate": 20.0, "duration_s": 60.0}),
    ("servegen:deepseek-r1", {"duration_s": 60.0}),
    (MIX, {"duration_s": 60.0}),
]


def gaps(arrivals: list[Arrival]) -> list[float]:
    return [after.at_s - before.at_s for before, after in pairwise(arrivals)]


def cv(arrivals: list[Arrival]) -> float:
    found = gaps(arrivals)
    return statistics.pstdev(found) / statistics.mean(found)


@pytest.mark.parametrize(("text", "scaling"), EVERY)
def test_in_order_and_decided_by_the_seed(text: str, scaling: dict[str, float]) -> None:
    first = list(load(text, 7, **scaling))  # type: ignore[arg-type]
    assert len(first) > 20
    assert all(gap >= 0 for gap in gaps(first))
    assert all(arrival.prompt_tokens > 0 and arrival.output_tokens > 0 for arrival in first)
    assert first == list(load(text, 7, **scaling))  # type: ignore[arg-type]
    if not text.startswith(("constant", "azure")):
        assert [a.at_s for a in first] != [a.at_s for a in load(text, 8, **scaling)]  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", [1.0, 2.0, 5.0])
def test_gaps_vary_as_much_as_asked_for(wanted: float) -> None:
    text = "poisson:rate=50" if wanted == 1.0 else f"gamma:rate=50,cv={wanted}"
    arrivals = list(load(text, 3, duration_s=1000))
    assert cv(arrivals) == pytest.approx(wanted, rel=0.1)
    assert len(arrivals) == pytest.approx(50_000, rel=0.1)


def test_constant_is_constant() -> None:
    assert [arrival.at_s for arrival in load("constant:rate=4", duration_s=1)] == [0, 0.25, 0.5, 0.75]


def test_traces_are_as_they_were_measured() -> None:
    conv, code = list(load("azure-conv")), list(load("azure-code"))
    assert (len(conv), len(code)) == (19_366, 8_819)
    assert (round(conv[-1].at_s), round(code[-1].at_s)) == (3502, 3436)
    assert cv(conv) == pytest.approx(1.09, abs=0.01)
    assert cv(code) == pytest.approx(13.2, abs=0.1)
    assert statistics.median(a.prompt_tokens for a in conv) == 1020
    assert statistics.median(a.output_tokens for a in code) == 13


def test_a_trace_keeps_its_shape_when_its_rate_is_changed() -> None:
    """And just the rate that was asked for is offered, in whatever part of an uneven trace."""
    for duration in (60.0, 600.0):
        arrivals = list(load("azure-code", rate=12, duration_s=duration))
        assert len(arrivals) == 12 * duration
        assert arrivals[-1].at_s < duration
        assert cv(arrivals) > 8
    assert len(list(load("azure-code", rate=12, requests=100))) == 100


def test_time_scale_is_how_fast_a_trace_is_played() -> None:
    plain, fast = list(load("azure-code")), list(load("azure-code", time_scale=4))
    assert len(fast) == len(plain)
    assert fast[-1].at_s == pytest.approx(plain[-1].at_s / 4)


def test_with_rate_and_time_scale_requests_are_left_out_or_doubled() -> None:
    slower = list(load("azure-conv", 1, rate=2, time_scale=1))
    assert len(slower) == pytest.approx(2 * 3502, rel=0.05)
    assert slower[-1].at_s > 3400
    more = list(load("azure-conv", 1, rate=14, time_scale=1))
    assert len(more) == pytest.approx(14 * 3502, rel=0.05)
    assert more[-1].at_s < 3510


def test_a_trace_that_is_too_short_comes_round_again_with_other_texts() -> None:
    arrivals = list(load("mooncake", rate=100, duration_s=200))
    assert len(arrivals) == 20_000
    assert arrivals[0].prefix
    first = {block for arrival in arrivals[:12_031] for block in arrival.prefix}
    again = {block for arrival in arrivals[12_031:] for block in arrival.prefix}
    assert not first & again


def test_mooncakes_three_second_clock_is_spread_out() -> None:
    arrivals = list(load("mooncake"))
    assert len(arrivals) == 12_031
    assert cv(arrivals) == pytest.approx(1.0, abs=0.1)
    assert len({arrival.at_s for arrival in arrivals}) == 12_031
    seen: set[int] = set()
    hits = blocks = 0
    for arrival in arrivals:
        blocks += len(arrival.prefix)
        hits += sum(block in seen for block in arrival.prefix)
        seen.update(arrival.prefix)
    assert hits / blocks == pytest.approx(0.366, abs=0.005)


def test_chats_grow_turn_by_turn() -> None:
    arrivals = list(load("sharegpt:rate=20", 1, duration_s=60))
    sessions: dict[str, list[Arrival]] = {}
    for arrival in arrivals:
        assert arrival.session is not None
        assert len(arrival.prefix) == -(-arrival.prompt_tokens // 512)
        sessions.setdefault(arrival.session, []).append(arrival)
    assert max(len(turns) for turns in sessions.values()) > 2
    for turns in sessions.values():
        for before, after in pairwise(turns):
            assert after.prompt_tokens > before.prompt_tokens
            assert after.prefix[: len(before.prefix)] == before.prefix


@pytest.mark.parametrize("model", ["m-small", "m-mid", "m-large", "deepseek-r1"])
def test_a_day_of_clients_has_the_rate_asked_for(model: str) -> None:
    arrivals = list(load(f"servegen:{model}", 2, rate=50, time_scale=144))
    assert len(arrivals) == pytest.approx(50 * 600, rel=0.08)
    assert arrivals[-1].at_s <= 600
    tenants = [arrival.tenant for arrival in arrivals]
    assert len(set(tenants)) > 15
    by_minute = [sum(1 for a in arrivals if minute * 60 <= a.at_s < minute * 60 + 60) for minute in range(10)]
    assert max(by_minute) > 1.3 * min(by_minute), "no day and night"


def test_a_mix_keeps_lanes_names_and_shares() -> None:
    arrivals = list(load(MIX, 1, duration_s=300))
    by_name = {name: [a for a in arrivals if a.name == name] for name in ("chat", "code", "kept")}
    assert len(by_name["chat"]) == pytest.approx(2400, rel=0.1)
    assert len(by_name["code"]) == 600
    assert {a.lane for a in by_name["chat"]} == {"fast"}
    assert {a.label for a in arrivals} == {"fast", "code", "batch"}
    assert {(a.prompt_tokens, a.output_tokens) for a in by_name["chat"]} == {(120, 64)}


def test_the_rate_of_a_mix_is_shared_out() -> None:
    workload = Workload("a=poisson:rate=3; b=poisson:rate=1", rate=40)
    assert [stream.rate for stream in workload.streams] == [30, 10]
    assert workload.rate == 40


def test_sessions_and_what_they_have_in_common() -> None:
    arrivals = list(load("poisson:rate=50,prompt=3000,sessions=5,shared=1024", 1, duration_s=20))
    by_session = {a.session: {b.prefix for b in arrivals if b.session == a.session} for a in arrivals}
    assert len(by_session) == 5
    assert all(len(prefixes) == 1 for prefixes in by_session.values())
    assert all(len(prefix) == 2 for prefixes in by_session.values() for prefix in prefixes)
    everyone = {a.prefix for a in load("poisson:rate=50,prompt=3000,shared=1024", 1)}
    assert len(everyone) == 1


def test_streams_of_a_mix_have_no_texts_in_common() -> None:
    arrivals = list(load("a=mooncake:rate=1; b=mooncake:rate=1", duration_s=300))
    blocks = {name: {block for a in arrivals if a.name == name for block in a.prefix} for name in "ab"}
    assert blocks["a"]
    assert not blocks["a"] & blocks["b"]
    assert all(block < 1 << 63 for name in "ab" for block in blocks[name])


def test_lengths_can_be_borrowed_cut_and_scaled() -> None:
    borrowed = list(load("poisson:rate=50,lengths=azure-conv,max_prompt=2000", 1))
    assert max(a.prompt_tokens for a in borrowed) == 2000
    assert len({a.prompt_tokens for a in borrowed}) > 100
    scaled = list(load("azure-conv:length_scale=0.1"))
    assert statistics.median(a.prompt_tokens for a in scaled) == 102
    replaced = list(load("mooncake:prompt=600,output=5", duration_s=60))
    assert {(a.prompt_tokens, a.output_tokens, len(a.prefix)) for a in replaced} <= {(600, 5, 2), (600, 5, 1)}


def test_long_ones_are_made_as_they_are_asked_for() -> None:
    endless = load("servegen:m-small", rate=1e6)
    assert len(list(islice(endless, 1000))) == 1000
    assert len(list(islice(load("poisson:rate=1000", duration_s=1e8), 1000))) == 1000


@pytest.mark.parametrize(
    ("text", "scaling", "said"),
    [
        ("poisson", {}, "how many a second?"),
        ("sharegpt", {}, "how many a second?"),
        ("azure-code:start=9999", {}, "past its end"),
        ("poisson:rate=1", {"duration_s": 0}, "duration must be above 0"),
        ("poisson:rate=1", {"requests": -1}, "requests must be above 0"),
        ("poisson:rate=1", {"rate": float("nan")}, "rate must be above 0"),
    ],
)
def test_what_is_missing_is_said_before_the_first_arrival(text: str, scaling: dict[str, float], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        load(text, **scaling)  # type: ignore[arg-type]


def test_rate_given_from_outside_is_enough() -> None:
    assert len(list(load("constant", rate=10, duration_s=2))) == 20
