"""Every decision counts the tokens that a replica will really compute."""

import dataclasses
import random

import pytest

from headgate.config.gateway import GatewayConfig
from headgate.model.event import (
    Arrived,
    AttemptFailed,
    Dispatch,
    Ended,
    FirstToken,
    Probed,
    Refuse,
    ReplicaJoined,
    ReplicaLeft,
)
from headgate.model.lane import LANES
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.model.request import Request
from headgate.model.sampling import Sampling
from headgate.model.sequence import Sequence
from headgate.policy.batching.urgency import treat_as_computed
from headgate.policy.compose import intake_for
from headgate.policy.dispatch.dispatcher import Dispatcher
from headgate.policy.dispatch.intake import RequestIntake
from headgate.policy.replicas.health import Health
from headgate.policy.replicas.prefix_index import TRUSTED, PrefixIndex
from headgate.policy.tenants.limits import TenantLimits
from tests.policy.driven import settings_of
from tests.policy.test_dispatcher import dispatcher, request

LINK = 1000


def chain(*words: str) -> tuple[bytes, ...]:
    return tuple("/".join(words[: end + 1]).encode() for end in range(len(words)))


def turn(words: str, *, at: float = 0.0, lane: str = "slow", tenant: str = "anonymous", stream: bool = True) -> Request:
    """A prompt of one link of 1 000 tokens per letter, as it was judged when nothing was known of it."""
    prefix = chain(*words)
    return request(lane, at=at, tenant=tenant, stream=stream).but(
        prefix=prefix, link_tokens=float(LINK), prompt_tokens=LINK * len(words), max_output=10
    )


def serve(
    made: Dispatcher,
    one: Request,
    *,
    cached: int | None = None,
    first_s: float = 0.1,
    now: float | None = None,
    usage: tuple[int, int] | None = None,
) -> Dispatch:
    """Lets a request arrive, have its first token after `first_s`, and end."""
    at = one.arrived if now is None else now
    sent = [command for command in made.on(Arrived(one), at) if isinstance(command, Dispatch)]
    assert len(sent) == 1
    if one.stream:
        made.on(FirstToken(one.id), at + first_s)
    told = None if one.stream else first_s
    made.on(Ended(one.id, Outcome.COMPLETED, usage or (one.prompt_tokens, 10), told, cached), at + first_s + 0.1)
    return sent[0]


def test_a_dispatcher_uses_the_index_that_it_is_given_though_nothing_is_in_it_yet() -> None:
    index = PrefixIndex()
    made = Dispatcher(settings_of(), Health(), random.Random(1), prefixes=index)
    assert made.book.prefixes is index


# -- placing and load ---------------------------------------------------------------------------------------------


def test_a_growing_conversation_stays_and_counts_with_what_is_new() -> None:
    made = dispatcher(8, 8, 8)
    first = serve(made, turn("abcd"), cached=0)
    assert first.uncached == 4000
    one = turn("abcde", at=1.0)
    (sent,) = made.on(Arrived(one), 1.0)
    assert isinstance(sent, Dispatch)
    assert (sent.replica_id, sent.reason) == (first.replica_id, "prefix")
    assert sent.uncached == 5000 - int(TRUSTED * 4000)
    load = made.index.loads[sent.replica_id]
    assert (load.prefill_tokens, load.requests) == (sent.uncached, 1)
    made.on(FirstToken(one.id), 1.1)
    assert load.prefill_tokens == 0
    made.on(Ended(one.id, Outcome.COMPLETED, (5000, 10), None, 4000), 1.2)
    assert (load.prefill_tokens, load.decode_tokens, load.requests) == (0, 0, 0)


def test_a_burst_of_equal_prompts_is_placed_together_while_the_first_is_prefilled() -> None:
    made = dispatcher(8, 8, 8, 8)
    sent = [made.on(Arrived(turn("abcdefgh", lane="fast")), 0.0) for _ in range(6)]
    assert len({command.replica_id for commands in sent for command in commands if isinstance(command, Dispatch)}) == 1


def test_a_failed_request_gives_back_what_it_was_counted_with_and_is_forgotten_there() -> None:
    made = dispatcher(8, 8)
    first = serve(made, turn("abcd"), cached=0)
    one = turn("abcdef", at=1.0)
    made.on(Arrived(one), 1.0)
    (again,) = made.on(AttemptFailed(one.id, first.replica_id, Outcome.REPLICA_FAILED), 1.1)
    assert isinstance(again, Dispatch)
    assert again.replica_id != first.replica_id
    assert again.uncached == 6000
    assert made.index.loads[first.replica_id].prefill_tokens == 0
    known = made.book.entries[first.replica_id].links.seen
    assert chain(*"abcd")[-1] not in known


def test_a_replica_that_fails_a_request_after_it_left_is_not_looked_for() -> None:
    made = dispatcher(8, 8)
    one = turn("abcd")
    (sent,) = made.on(Arrived(one), 0.0)
    assert isinstance(sent, Dispatch)
    made.on(ReplicaLeft(sent.replica_id), 0.1)
    (again,) = made.on(AttemptFailed(one.id, sent.replica_id, Outcome.REPLICA_FAILED), 0.2)
    assert isinstance(again, Dispatch)
    assert again.replica_id != sent.replica_id


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.CANCELLED, Outcome.REPLICA_FAILED])
@pytest.mark.parametrize("stream", [True, False])
def test_whatever_the_end_the_ledger_is_zero(outcome: Outcome, stream: bool) -> None:
    made = dispatcher(4, 4)
    serve(made, turn("abcd"), cached=0)
    one = turn("abcdx", at=1.0, stream=stream)
    made.on(Arrived(one), 1.0)
    made.on(Ended(one.id, outcome), 2.0)
    assert all(load.prefill_tokens == load.decode_tokens == load.requests == 0 for load in made.index.loads.values())


def test_a_replica_that_is_not_measured_yet_is_taken_for_as_fast_as_the_others() -> None:
    made = dispatcher(8, 8)
    for number in range(8):  # all at one replica, which is ten times as fast as the first guess
        serve(made, turn(chr(65 + number) * (1 + number % 3), at=float(number)), first_s=0.05 * (1 + number % 3))
    measured, other = sorted(made.index.loads.values(), key=lambda load: load.pace.token_s or 0.0, reverse=True)
    assert measured.pace.token_s is not None
    assert other.pace.token_s is None
    assert other.prefill_token_s == pytest.approx(measured.prefill_token_s, rel=0.3)
    made.on(ReplicaJoined(Replica(id="new", url="http://x", slots=8)), 20.0)
    assert made.index.loads["new"].prefill_token_s == other.prefill_token_s
    for gone in (other.id, "new"):
        made.on(ReplicaLeft(gone), 21.0)
    assert made.book._unmeasured == []


# -- lanes, queues, limits ------------------------------------------------------------------------------------------


def test_a_long_turn_with_little_new_is_judged_by_what_is_new() -> None:
    made = dispatcher(8, 8)
    serve(made, turn("a" * 40), cached=0)
    config = GatewayConfig()
    intake = intake_for(config, dict(LANES), made.cached_tokens)
    blind = intake_for(config, dict(LANES))

    def classified(intake: RequestIntake, prefix: tuple[bytes, ...]) -> tuple[str, int]:
        lane, uncached = intake.classified(None, config.anonymous, prefix, float(LINK), 41_000, "m", True, False)
        return lane.name, uncached

    lane, uncached = classified(intake, chain(*"a" * 40, "b"))
    assert lane == "slow"
    assert 1000 <= uncached < 4000
    assert classified(intake, ()) == classified(intake, chain("b")) == ("long", 41_000)
    assert classified(blind, chain(*"a" * 40, "b")) == ("long", 41_000)


@pytest.mark.parametrize(
    ("lanes", "model"),
    [(("", "long"), "m"), (("fast slow", "long batch"), "m"), (("slow", ""), "m"), (("", "long"), "another")],
)
def test_what_replicas_of_another_lane_have_cached_makes_no_prompt_short(lanes: tuple[str, str], model: str) -> None:
    """A document's next question goes where the document was read, and not to the replicas for short prompts."""
    made = dispatcher(8, 8)
    for replica_id, served in zip("ab", lanes, strict=True):
        names = frozenset(() if model == "another" else (model,))
        lane_names = frozenset(served.split())
        made.on(ReplicaJoined(Replica(id=replica_id, url="http://x", slots=8, lanes=lane_names, models=names)), 0.0)
        made.on(Probed(replica_id, True), 0.0)
    intake = intake_for(GatewayConfig(), dict(LANES), made.cached_tokens)
    for number in range(40, 46):
        words, tokens = "a" * number, LINK * number
        tenant = GatewayConfig().anonymous
        lane, uncached = intake.classified(None, tenant, chain(*words), float(LINK), tokens, model, True, False)
        one = turn(words, at=float(number), lane=lane.name).but(uncached_tokens=uncached, model=model)
        sent = serve(made, one, cached=0 if number == 40 else LINK * (number - 1))
        assert (lane.name, sent.replica_id) == ("long", "b")
        assert sent.uncached == uncached
        assert (sent.uncached < 4000) == (number > 40)


def test_what_a_replica_that_is_out_has_cached_counts_for_nothing() -> None:
    made = dispatcher(8, 8)
    first = serve(made, turn("abcd"), cached=0)
    assert made.cached_tokens(chain(*"abcd"), float(LINK), 4000, "m") > 3000
    made.index.loads[first.replica_id].usable = 0.0
    assert made.cached_tokens(chain(*"abcd"), float(LINK), 4000, "m") == 0


def test_a_prompt_that_is_mostly_cached_does_not_wait_with_the_long_ones() -> None:
    made = dispatcher(8)
    assert made.queues.of(turn("abcd")).long
    assert not made.queues.of(turn("abcd").but(uncached_tokens=100)).long


def test_tenants_are_charged_for_what_was_computed() -> None:
    made = dispatcher(8)
    serve(made, turn("abcd", tenant="a"), cached=0)
    before = made.queues.of(turn("a")).queue._known("a", 1.0).counter
    serve(made, turn("abcde", at=1.0, tenant="a"), cached=4000)
    spent = made.queues.of(turn("a")).queue._known("a", 1.0).counter - before
    assert spent == 1000 + 10
    serve(made, turn("abcdef", at=2.0, tenant="a"), cached=0)  # its cache was gone: it computed all
    assert made.queues.of(turn("a")).queue._known("a", 1.0).counter - before - spent == 6000 + 10


@pytest.mark.parametrize(("uncached", "left"), [(False, 100_000 - 5010), (True, 100_000 - 1010)])
def test_limits_count_whole_prompts_or_what_is_computed(uncached: bool, left: int) -> None:
    limits = TenantLimits(tokens_per_min=100_000.0, uncached=uncached)
    made = dispatcher(8)
    made.reconfigure(dataclasses.replace(settings_of(), tenants={"a": limits}))
    serve(made, turn("abcd", tenant="b"), cached=0)
    serve(made, turn("abcde", at=1.0, tenant="a").but(uncached_tokens=1200), cached=4000)
    rates = made.gate.limits.view("a", limits, 1.0)
    assert rates.tokens is not None
    assert rates.tokens.remaining == pytest.approx(left, abs=400)


@pytest.mark.parametrize(("uncached", "spent"), [(False, 4000), (True, 1200)])
def test_without_usage_the_prompt_is_settled_as_it_was_expected(uncached: bool, spent: int) -> None:
    limits = TenantLimits(tokens_per_min=100_000.0, uncached=uncached)
    made = dispatcher(8)
    made.reconfigure(dataclasses.replace(settings_of(), tenants={"a": limits}))
    one = turn("abcd", tenant="a").but(uncached_tokens=1200)
    made.on(Arrived(one), 0.0)
    made.passages[one.id].uncached = 1200
    made.on(FirstToken(one.id), 0.1)
    made.on(Ended(one.id, Outcome.CANCELLED), 0.1)
    rates = made.gate.limits.view("a", limits, 0.1)
    assert rates.tokens is not None
    assert rates.tokens.remaining == pytest.approx(100_000 - spent, abs=200)


# -- what engines report ----------------------------------------------------------------------------------------------


def test_a_replica_that_reports_misses_is_expected_to_have_less() -> None:
    made = dispatcher(8)
    sent = [serve(made, turn("abcd", at=float(number)), cached=0).uncached for number in range(12)]
    assert sent[0] == 4000
    assert sent[1] < 400
    assert sent[-1] > 3500


def test_a_silent_engine_is_learned_from_its_first_tokens() -> None:
    made = dispatcher(8)
    for number in range(12):  # a tenth of a millisecond per token: long prompts take long
        words = chr(65 + number) + "y" * (number % 5)
        serve(made, turn(words, at=float(number)), first_s=0.1 * len(words))
    slow = [serve(made, turn("abcdefgh", at=100.0 + number), first_s=0.8).uncached for number in range(12)]
    assert slow[0] == 8000
    assert slow[1] < 800
    assert slow[-1] > 6000  # eight thousand tokens take 0.8 s: it has cached none
    quick = [serve(made, turn("ijklmnop", at=200.0 + number), first_s=0.02).uncached for number in range(30)]
    assert quick[-1] < 2500


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("cached", [None, 2000])
@pytest.mark.parametrize("times", [0, 0.1, 10])
def test_a_replica_that_counts_other_tokens_is_neither_quicker_nor_slower(
    stream: bool, cached: int | None, times: float
) -> None:
    """Replicas are compared by the gateway's own estimate of a prompt, not by what each of them calls a token."""

    def pace(times: float) -> float | None:
        made = dispatcher(8)
        for number in range(24):  # 0.1 ms per token, and each prompt comes back once with more
            tokens = 1000 * (2 + number % 5)
            words = chr(65 + number // 2) * (2 + number % 5)
            found = None if cached is None else int(times * min(cached, tokens) * (number % 2))
            usage = (int(times * tokens), 10)
            one = turn(words, at=float(number), stream=stream)
            serve(made, one, cached=found, first_s=0.02 + 0.0001 * tokens, usage=usage)
        return made.index.loads["a"].pace.token_s

    honest = pace(1.0)
    assert honest is not None
    assert pace(times) == pytest.approx(honest, rel=0.6 if times == 0 else 0.02)


def test_where_the_engine_does_not_say_what_was_cached_the_expected_share_of_its_count_is_charged() -> None:
    made = dispatcher(8)
    serve(made, turn("abcd", tenant="a"), cached=0)
    queue = made.queues.of(turn("a")).queue
    before = queue._known("a", 1.0).counter
    one = turn("abcde", at=1.0, tenant="a")
    sent = serve(made, one, usage=(10_000, 10))  # twice what the gateway took the prompt for
    assert 1000 < sent.uncached < 1500
    assert queue._known("a", 1.0).counter - before == 2 * sent.uncached + 10


def test_where_a_hit_would_save_nothing_the_first_token_says_nothing_of_the_cache() -> None:
    made = dispatcher(8)
    for number in range(12):
        serve(made, turn(str(number), at=float(number)), first_s=0.03)
    before = made.cached_tokens(chain(*"0"), float(LINK), 1000, "m")
    serve(made, turn("0", at=50.0), first_s=0.5)
    assert made.cached_tokens(chain(*"0"), float(LINK), 1000, "m") == before


def test_what_a_replica_that_has_left_reports_of_its_cache_is_not_kept() -> None:
    made = dispatcher(8)
    serve(made, turn("abcd"), cached=0)
    one = turn("abcd", at=1.0)
    made.on(Arrived(one), 1.0)
    made.on(ReplicaLeft("a"), 1.1)
    made.on(Ended(one.id, Outcome.COMPLETED, (4000, 10), None, 0), 1.2)
    assert len(made.book.prefixes) == 0


# -- false hits in the engine -------------------------------------------------------------------------------------


def sequence(prompt: int, cached: int, expected: int, lane: str = "fast") -> Sequence:
    made = Sequence(
        id=1, tokens=[0] * prompt, prompt_len=prompt, max_output=10, arrived=5.0, lane=lane,
        priority=LANES[lane].priority, first_token_by=5.0 + LANES[lane].ttft_target_s, gap_target_s=0.2,
        sampling=Sampling(), expected=expected,
    )  # fmt: skip
    made.cached = cached
    return made


@pytest.mark.parametrize(
    ("prompt", "cached", "expected", "lane", "becomes"),
    [
        (20_000, 19_800, 200, "fast", "fast"),
        (20_000, 19_500, 200, "fast", "fast"),  # slightly more than expected
        (20_000, 12_000, 200, "fast", "slow"),
        (20_000, 0, 200, "fast", "long"),
        (20_000, 0, 9000, "slow", "long"),
        (20_000, 0, 200, "batch", "batch"),  # it is the lowest already
    ],
)
def test_a_prompt_whose_prefix_is_gone_is_treated_as_what_it_computes(
    prompt: int, cached: int, expected: int, lane: str, becomes: str
) -> None:
    one = sequence(prompt, cached, expected, lane)
    treat_as_computed(one)
    assert one.priority == LANES[becomes].priority
    assert one.first_token_by == 5.0 + LANES[becomes].ttft_target_s


def test_a_refusal_leaves_nothing_behind() -> None:
    made = dispatcher(1)
    made.on(Arrived(turn("abcd", lane="fast")), 0.0)
    waiting = turn("abcd", at=0.1, lane="fast")
    made.on(Arrived(waiting), 0.1)
    commands = made.on(Ended(waiting.id, Outcome.CANCELLED), 0.2)
    assert not [command for command in commands if isinstance(command, Refuse)]
    assert sum(load.prefill_tokens for load in made.index.loads.values()) == 4000
