"""What the dispatcher tells requests of their first token, how it judges that, and what it answers who only asks."""

import random
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from headgate.config.hedge import HedgeConfig
from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Command,
    Dispatch,
    Ended,
    Event,
    FirstToken,
    Probed,
    Quote,
    QuoteAsked,
    Refuse,
    ReplicaLeft,
    Shared,
    Tick,
)
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.record import QuoteTold
from headgate.model.request import Request
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.hedge import Hedger
from headgate.policy.promises.quotes import LaneQuotes, judged
from headgate.policy.replicas.health import Health
from headgate.policy.tenants.limits import TenantLimits
from headgate.policy.tenants.standing_room import NamedTenants
from tests.policy.driven import settings_of
from tests.policy.test_dispatcher import dispatcher, join, request, send


def asked(made: Dispatcher, one: Request, now: float = 0.0) -> Quote:
    (quote,) = made.on(QuoteAsked(one), now)
    assert isinstance(quote, Quote)
    return quote


def dispatched(commands: list[Command]) -> Dispatch:
    (command,) = commands
    assert isinstance(command, Dispatch)
    return command


def of(made: Dispatcher, lane: str = "fast") -> LaneQuotes:
    return made.queues.quotes.of(lane)


# -- what is told -----------------------------------------------------------------------------------------------


def test_a_request_that_is_sent_at_once_is_told_then() -> None:
    command = dispatched(send(dispatcher(1), request()))
    assert command.quote is not None
    assert command.quote.lane == "fast"
    assert command.quote.p99_s is not None
    assert 0 < command.quote.expected_s <= command.quote.p99_s


def test_a_request_that_waits_is_told_when_it_begins_to_and_keeps_that() -> None:
    made = dispatcher(1)
    first, second = request(), request()
    send(made, first, second)
    told = made.passages[second.id].quote
    assert told is not None
    assert told.p99_s == inf, "too few have waited to tell"
    quote = dispatched(made.on(Ended(first.id, Outcome.COMPLETED, (10, 5)), 0.1)).quote
    assert quote == QuoteTold("fast", told.expected_s)


def test_a_request_that_waits_for_a_replica_is_told_when_it_is_sent() -> None:
    made = dispatcher()
    one = request()
    assert send(made, one) == []
    assert made.passages[one.id].quote is None
    join(made, "a", 1, 0.3)
    quote = made.passages[one.id].quote
    assert quote is not None
    assert quote.passed_s == pytest.approx(0.3)


def capped(most: int = 1) -> Dispatcher:
    named = NamedTenants({"hog": 1.0}, {"hog": most})
    made = Dispatcher(settings_of(expected=named), Health(), random.Random(1))
    join(made, "a", 8)
    return made


def test_a_request_that_waits_for_its_tenants_own_is_told_when_it_is_sent_and_teaches_nothing_before() -> None:
    made = capped()
    send(made, request(tenant="hog"), late := request(tenant="hog"))
    assert made.passages[late.id].quote is None
    (command,) = made.on(Tick(), 0.41)
    assert isinstance(command, Refuse)
    assert (command.outcome, command.quote) == (Outcome.OVER_LIMIT, None)
    assert of(made).waited.count == 0


# -- how it is judged -------------------------------------------------------------------------------------------


def test_the_first_token_of_a_stream_judges_it_once() -> None:
    made = dispatcher(1)
    send(made, one := request())
    made.on(FirstToken(one.id), 0.1)
    made.on(FirstToken(one.id), 0.2)
    made.on(Ended(one.id, Outcome.REPLICA_FAILED, (10, 5)), 0.3)
    assert of(made).sent.count == 1
    assert of(made).owed == pytest.approx(-0.01)


def test_an_answer_in_one_piece_is_judged_by_what_its_engine_says_or_not_at_all() -> None:
    made = dispatcher(2)
    send(made, one := request(stream=False), other := request(stream=False))
    made.on(Ended(one.id, Outcome.COMPLETED, (10, 5)), 5.0)
    assert of(made).sent.count == 0
    made.on(Ended(other.id, Outcome.COMPLETED, (10, 5), 0.2), 6.0)
    assert of(made).sent.count == 1
    assert of(made).owed == pytest.approx(-0.01)
    assert 0.18 < of(made).sent.median() < 0.22


@pytest.mark.parametrize(
    ("outcome", "at", "count", "owed"),
    [
        (Outcome.REPLICA_STALLED, 0.1, 1, 0.99),
        (Outcome.CANCELLED, 0.1, 0, 0.0),
        (Outcome.CANCELLED, 60.0, 1, 0.99),
        (Outcome.INVALID, 60.0, 0, 0.0),
    ],
)
def test_what_ends_without_a_first_token_is_missed_unless_it_says_nothing(
    outcome: Outcome, at: float, count: int, owed: float
) -> None:
    made = dispatcher(1)
    send(made, one := request())
    made.on(Ended(one.id, outcome, None), at)
    assert of(made).sent.count == count
    assert of(made).owed == pytest.approx(owed)


def test_a_request_that_is_refused_after_it_was_told_has_missed_and_one_refused_at_once_was_told_nothing() -> None:
    made = dispatcher(1)
    send(made, request(), late := request())
    (command,) = made.on(Tick(), 0.41)
    assert isinstance(command, Refuse)
    assert (command.request_id, command.outcome) == (late.id, Outcome.WAITED_TOO_LONG)
    assert command.quote is not None
    assert (of(made).waited.count, of(made).owed) == (1, 0.0), "it was told no p99"
    full = dispatcher(1, lanes={**LANES, "fast": replace(LANES["fast"], queue_limit=0)})
    refusal = send(full, request(), request())[-1]
    assert isinstance(refusal, Refuse)
    assert (refusal.outcome, refusal.quote) == (Outcome.LANE_FULL, None)


def test_a_replicas_death_does_not_change_what_was_told() -> None:
    made = dispatcher(1, 1)
    first = dispatched(send(made, one := request()))
    made.on(ReplicaLeft(first.replica_id), 0.4)
    again = dispatched(made.on(AttemptFailed(one.id, first.replica_id, Outcome.REPLICA_FAILED), 0.4))
    assert again.replica_id != first.replica_id
    assert again.quote == first.quote
    made.on(FirstToken(one.id), 2.0)
    assert of(made).owed == pytest.approx(0.99)


def relegating() -> Dispatcher:
    slow = replace(LANES["slow"], when_late="relegate")
    settings = replace(settings_of(), lanes={**LANES, "slow": slow})
    made = Dispatcher(settings, Health(), random.Random(1))
    join(made, "a", 1)
    return made


def test_a_request_that_is_relegated_at_its_bound_has_missed_in_the_lane_where_it_was_told() -> None:
    made = relegating()
    send(made, there := request("slow"), late := request("slow"))
    made.on(Tick(), 2.01)
    assert made.passages[late.id].request.lane == "long"
    assert (of(made, "slow").waited.count, of(made, "long").waited.count) == (1, 0)
    quote = dispatched(made.on(Ended(there.id, Outcome.COMPLETED, (10, 5)), 3.0)).quote
    assert quote is not None
    assert quote.lane == "slow"
    made.on(FirstToken(late.id), 3.5)
    assert (of(made, "slow").waited.count, of(made, "long").waited.count) == (1, 0)


@pytest.mark.parametrize(
    ("p99_s", "ttft_s", "e2e_s", "outcome", "kept"),
    [
        (0.4, 0.4, 3.0, Outcome.COMPLETED, True),
        (0.4, 0.41, 3.0, Outcome.COMPLETED, False),
        (0.4, 0.3, 0.35, Outcome.CANCELLED, True),
        (0.4, None, 9.0, Outcome.COMPLETED, None),
        (0.4, None, 0.1, Outcome.WAITED_TOO_LONG, False),
        (0.4, None, 0.1, Outcome.OVER_LIMIT, None),
        (0.4, None, 0.3, Outcome.CANCELLED, None),
        (0.4, None, 0.5, Outcome.CANCELLED, False),
        (0.4, None, 0.5, Outcome.INVALID, None),
        (None, 0.1, 3.0, Outcome.COMPLETED, None),
    ],
)
def test_a_record_says_what_was_kept(
    p99_s: float | None, ttft_s: float | None, e2e_s: float, outcome: Outcome, kept: bool | None
) -> None:
    found = judged(QuoteTold("fast", 0.2, p99_s), ttft_s, e2e_s, outcome)
    assert found == QuoteTold("fast", 0.2, p99_s, kept)


# -- what is answered -------------------------------------------------------------------------------------------


def test_who_asks_at_an_idle_replica_hears_what_a_request_is_told_there() -> None:
    made = dispatcher(2)
    quote = asked(made, one := request())
    command = dispatched(send(made, one))
    assert quote == Quote(one.id, True, "fast", command.quote, command.replica_id)


def test_who_asks_at_a_full_fleet_hears_of_a_wait_then_of_a_refusal_and_when_to_come_back() -> None:
    made = dispatcher(1)
    send(made, request())
    waiting = asked(made, request())
    assert (waiting.admitted, waiting.replica_id, waiting.outcome) == (True, None, None)
    assert waiting.told is not None
    send(made, *[request() for _ in range(3)])
    full = asked(made, request(at=0.39), 0.39 + 0.2)  # no request has left for longer than may be waited
    assert (full.admitted, full.outcome, full.told) == (False, Outcome.WOULD_WAIT_TOO_LONG, None)
    assert full.retry_after_s is not None
    assert full.retry_after_s > 0
    assert "lane 'fast' allows" in full.message


def test_who_would_be_relegated_hears_of_the_lower_lane() -> None:
    made = relegating()
    send(made, request("slow"), *[request("slow") for _ in range(4)])
    quote = asked(made, request("slow", at=1.9), 1.9 + 2.0)
    assert (quote.admitted, quote.lane) == (True, "long")
    made.on(Tick(), 2.01)


def test_a_full_lane_an_unknown_model_a_missing_version_and_no_replica() -> None:
    full = dispatcher(1, lanes={**LANES, "fast": replace(LANES["fast"], queue_limit=0)})
    send(full, request())
    quote = asked(full, request())
    assert (quote.admitted, quote.outcome, quote.message) == (False, Outcome.LANE_FULL, "lane 'fast' has 0 waiting")

    named = Dispatcher(settings_of(), Health(), random.Random(1))
    assert asked(named, request()).admitted, "a replica may still come"
    join(named, "a", 1, model="m")
    unknown = asked(named, request(model="other"))
    assert (unknown.admitted, unknown.outcome, unknown.retry_after_s) == (False, Outcome.UNKNOWN_MODEL, None)
    join(named, "b", 1, model="other")
    named.on(ReplicaLeft("a"), 0.0)
    fallback = asked(named, request().but(fallback=("gone", "other")))
    assert fallback.replica_id == "b"
    assert asked(named, request().but(fallback=("gone",))).outcome is Outcome.UNKNOWN_MODEL

    down = dispatcher(1)
    for _ in range(5):
        down.on(Probed("a", ok=False), 0.0)
    assert not down.any_usable()
    waits = asked(down, request())
    assert (waits.admitted, waits.told, waits.message) == (
        True,
        None,
        "no replica is usable; it would wait up to 10 s for one",
    )
    pinned = asked(down, request().but(pinned=True))
    assert (pinned.admitted, pinned.outcome) == (False, Outcome.NO_REPLICA)
    assert pinned.retry_after_s is not None


def test_a_tenant_at_its_cap_hears_that_it_waits_for_its_own() -> None:
    made = capped()
    send(made, request(tenant="hog"))
    quote = asked(made, request(tenant="hog"))
    assert (quote.admitted, quote.told) == (True, None)
    assert quote.message == "its tenant has 1 requests at work, as many as it may; it would wait for one of them to end"
    assert asked(made, request(tenant="other")).replica_id == "a"


# -- limits -----------------------------------------------------------------------------------------------------


def limited(**limits: Any) -> Dispatcher:
    return dispatcher(8, tenants={"anonymous": TenantLimits(**limits)})


def test_a_question_counts_as_a_request_and_takes_no_tokens() -> None:
    made = limited(requests_per_min=3, tokens_per_min=1000)
    for _ in range(2):
        assert asked(made, request()).admitted
    rates = made.rates("anonymous", 0.0)
    assert rates is not None
    assert rates.requests is not None
    assert rates.tokens is not None
    assert (rates.requests.remaining, rates.tokens.remaining) == (1, 1000)
    third = asked(made, request())  # it is the last that the limit admits: a request after it would not be
    assert (third.admitted, third.outcome, third.counted) == (False, Outcome.OVER_LIMIT, True)
    fourth = asked(made, request())
    assert (fourth.admitted, fourth.outcome, fourth.counted) == (False, Outcome.OVER_LIMIT, False)
    assert fourth.retry_after_s == pytest.approx(20.0)
    (refusal,) = send(made, request())
    assert isinstance(refusal, Refuse)
    assert refusal.outcome is Outcome.OVER_LIMIT
    assert made.holdings()["reservations"] == 0


@pytest.mark.parametrize("uncached", [False, True])
def test_who_has_no_tokens_left_hears_when_they_are_back(uncached: bool) -> None:
    made = limited(tokens_per_min=100, uncached=uncached)
    send(made, request(tokens=40))
    quote = asked(made, request(tokens=40))
    assert (quote.admitted, quote.outcome, quote.counted) == (False, Outcome.OVER_LIMIT, True)
    assert quote.retry_after_s == pytest.approx(36.0)


def test_limits_shared_with_other_gateways_count_questions_too() -> None:
    made = limited(requests_per_min=4)
    made.on(Shared(2, 0.0, 1.0, False), 0.0)
    assert [asked(made, request()).counted for _ in range(3)] == [True, True, False]
    assert made.holdings()["reservations"] == 0


# -- what a question changes ------------------------------------------------------------------------------------


def day(seed: int, questions: float) -> tuple[list[Command], list[tuple[Quote, Command | None]]]:
    """A random hour of requests before four replicas; `questions`: the share of arrivals that ask first. Returns all
    commands that are no answers to questions, and each answer with what its request met at once."""
    rng, ask = random.Random(seed), random.Random(seed + 1)
    made = Dispatcher(
        settings_of(tenants={"b": TenantLimits(tokens_per_min=10**6)}),
        Health(),
        random.Random(seed),
        hedger=Hedger(HedgeConfig(enabled=True)),
    )
    for name in "abcd":
        join(made, name, 4)
    commands: list[Command] = []
    answers: list[tuple[Quote, Command | None]] = []
    running: list[tuple[float, int, str, bool]] = []
    now, number = 0.0, 0

    def hear(event: Event) -> list[Command]:
        found = made.on(event, now)
        for command in found:
            if isinstance(command, Dispatch):
                took_s = rng.uniform(0.2, 2.0)
                running.append((now + 0.2 * took_s, len(running), command.request_id, True))
                running.append((now + took_s, len(running), command.request_id, False))
        commands.extend(found)
        return found

    while number < 1500:
        due = now + rng.expovariate(12.0)
        while (at := min([made.wake_at, *[one[0] for one in running]])) < due:
            now = max(now, at)
            ready = [one for one in running if one[0] <= now]
            running[:] = [one for one in running if one[0] > now]
            for _, _, name, first in sorted(ready):
                hear(FirstToken(name) if first else Ended(name, Outcome.COMPLETED, (20, 8)))
            if not ready:
                hear(Tick())
        now, number = due, number + 1
        one = request(rng.choice(("fast", "fast", "slow", "long")), at=now, tenant=rng.choice("ab"), tokens=20)
        one = one.but(id=f"{number}", prefix=(b"%d" % rng.randrange(30),), link_tokens=16.0)
        quote = asked(made, one, now) if ask.random() < questions else None
        met = [command for command in hear(Arrived(one)) if command.request_id == one.id]
        if quote is not None:
            answers.append((quote, met[0] if met else None))
    return commands, answers


@pytest.mark.parametrize("seed", [1, 2])
def test_questions_change_nothing_for_anyone(seed: int) -> None:
    assert day(seed, 0.0)[0] == day(seed, 0.7)[0]


@pytest.mark.parametrize("seed", [3, 4])
def test_a_request_meets_what_it_was_told_when_it_asked(seed: int) -> None:
    _, answers = day(seed, 1.0)
    wrong, kinds = [], set()
    for quote, met in answers:
        if isinstance(met, Dispatch):
            kinds.add("sent")
            right = quote.admitted and quote.replica_id is not None
        elif isinstance(met, Refuse):
            kinds.add("refused")
            right = (quote.admitted, quote.outcome) == (False, met.outcome)
        else:
            kinds.add("waits")
            right = quote.admitted and quote.replica_id is None
        if not right:
            wrong.append((quote, met))
    assert kinds == {"sent", "refused", "waits"}
    assert len(wrong) <= 0.01 * len(answers), wrong[:3]
    told = [(q.told, met.quote) for q, met in answers if isinstance(met, Dispatch) and q.replica_id == met.replica_id]
    assert len(told) > 100
    assert all(one == other for one, other in told)
