import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.gateway import ROUTE_WEIGHTS, RoutingConfig
from headgate.config.hints import Algorithm
from headgate.model.replica import RECENT_S, Load, Replica
from headgate.model.request import Request
from headgate.policy.replicas.index import RouteIndex
from headgate.policy.replicas.prefix_index import TRUSTED
from headgate.policy.replicas.route import ALGORITHMS, NoReplica, NoRoom, RouteChoice, route
from headgate.policy.replicas.session_ring import session_order
from tests.policy.indexed import enter
from tests.policy.watched import Remembered

URGENT, NORMAL, LOW = 0, 1, 3
CALM = RoutingConfig(exploration=0.0)


def request(**facts: Any) -> Request:
    defaults: dict[str, Any] = {
        "id": "r", "arrived": 0.0, "model": "m", "lane": "fast", "priority": NORMAL, "wait_until": 1.0,
        "first_token_by": 10.0, "prompt_tokens": 100, "max_output": 100,
    }  # fmt: skip
    facts = {**defaults, **facts}
    facts.setdefault("link_tokens", facts["prompt_tokens"] / max(1, len(facts.get("prefix", ()))))
    return Request(**facts)


def fleet_of(count: int = 4, algorithm: Algorithm = "balanced", limit: float = 16.0, **facts: Any) -> RouteIndex:
    fleet = RouteIndex({}, ALGORITHMS[algorithm].order)
    for number in range(count):
        enter(fleet, Load(Replica(id=f"r{number}", url="http://x", **facts), limit=limit))
    return fleet


def busy(fleet: RouteIndex, **tokens: int) -> None:
    """Prompt tokens to prefill on each."""
    for name, count in tokens.items():
        fleet.loads[name].prefill_tokens = count
        fleet.loads[name].requests = max(1, fleet.loads[name].requests)
        fleet.changed(fleet.loads[name])


def choose(
    asked: Request,
    fleet: RouteIndex,
    affinity: Remembered | None = None,
    config: RoutingConfig = CALM,
    *,
    now: float = 0.0,
    rng: random.Random | None = None,
    tried: frozenset[str] = frozenset(),
) -> RouteChoice:
    choice = route(asked, fleet, (affinity or Remembered()).enter(fleet), config, now, rng or random.Random(1), tried)
    assert isinstance(choice, RouteChoice)
    return choice


def knows(replica_id: str, prefix: tuple[bytes, ...]) -> Remembered:
    affinity = Remembered()
    affinity.remember(request(prefix=prefix), replica_id)
    return affinity


def take(fleet: RouteIndex, choice: RouteChoice, asked: Request) -> None:
    load = fleet.loads[choice.replica_id]
    load.requests += 1
    load.prefill_tokens += asked.prompt_tokens
    fleet.changed(load)


# -- balanced -------------------------------------------------------------------------------------------------


def test_without_affinity_the_least_loaded_is_chosen() -> None:
    fleet = fleet_of()
    busy(fleet, r0=50, r1=20, r3=70)
    choice = choose(request(), fleet)
    assert (choice.replica_id, choice.reason) == ("r2", "least_loaded")


def test_a_cached_prefix_counts_for_the_time_that_it_saves_and_no_more() -> None:
    fleet, known = fleet_of(), knows("r3", (b"1", b"2"))
    asked = request(prefix=(b"1", b"2", b"3"), prompt_tokens=3000)
    choice = choose(asked, fleet, known)
    assert (choice.replica_id, choice.reason) == ("r3", "prefix")
    assert choice.cached.remembered == 2000
    saved = int(ROUTE_WEIGHTS["prefix"] * choice.cached.tokens)  # of fewer than it was sent: they may be gone
    assert 1700 < choice.cached.tokens < 2000
    busy(fleet, r0=1000, r1=1000, r2=1000, r3=1000 + saved - 10)
    assert choose(asked, fleet, known).replica_id == "r3"
    busy(fleet, r3=1000 + saved + 10)
    choice = choose(asked, fleet, known)
    assert (choice.replica_id, choice.reason) == ("r0", "least_loaded")
    assert choice.cached.tokens == 0
    assert {one.replica_id: round(one.match, 2) for one in choice.scores} == {"r3": 0.63, "r0": 0.0}


def test_a_slower_replica_is_predicted_by_its_own_speed() -> None:
    fleet = fleet_of(2)
    fleet.loads["r0"].prefill_token_s = 0.002
    busy(fleet, r0=0, r1=100)
    known = knows("r1", ())
    assert choose(request(session=None, prompt_tokens=10), fleet, known).replica_id == "r0"
    known = knows("r1", (b"1",))
    asked = request(prefix=(b"1", b"2"), prompt_tokens=1000)
    assert choose(asked, fleet, known).replica_id == "r1"


def was_given(fleet: RouteIndex, at: float = 0.0, **tokens: float) -> None:
    """Tokens that each was given to compute at this moment."""
    for name, count in tokens.items():
        fleet.loads[name].recent_tokens, fleet.loads[name].recent_at = count, at


def test_a_prompt_that_is_cached_nowhere_goes_where_least_was_given_of_those_that_begin_as_soon() -> None:
    fleet, asked = fleet_of(5), request(session=None, prompt_tokens=1000, prefix=(b"1",))
    was_given(fleet, r0=900, r1=700, r2=800, r3=700)  # the fifth is not among the four least loaded
    busy(fleet, r0=0, r1=90, r2=50, r3=80, r4=95)
    choice = choose(asked, fleet)
    assert (choice.replica_id, choice.reason) == ("r3", "least_loaded")
    busy(fleet, r1=101, r3=101, r4=150)  # more than a tenth of its own prefill later
    assert choose(asked, fleet).replica_id == "r2"
    assert choose(asked, fleet, knows("r0", (b"1",))).replica_id == "r0", "where it is cached, that decides"
    assert choose(asked.but(priority=URGENT), fleet).replica_id == "r0"


def test_what_was_given_fades() -> None:
    fleet, asked = fleet_of(2), request(session=None)
    was_given(fleet, r0=1000.0)
    was_given(fleet, r1=600.0, at=RECENT_S)
    assert choose(asked, fleet, now=RECENT_S).replica_id == "r0"
    assert fleet.loads["r0"].recent(RECENT_S) == pytest.approx(1000.0 / 2.71828, abs=0.1)
    assert fleet.loads["r1"].recent(0.0) == 600.0, "a clock that goes back adds nothing"


def test_a_new_session_goes_home_unless_more_was_given_there_than_its_own_prompt() -> None:
    fleet, asked = fleet_of(4), request(session="s")
    home = session_order("s", [fleet.groups("m", "fast")[0].ring], 1)[0]
    was_given(fleet, **{home: asked.tokens})
    choice = choose(asked, fleet)
    assert (choice.replica_id, choice.reason) == (home, "session")
    was_given(fleet, **dict.fromkeys(session_order("s", [fleet.groups("m", "fast")[0].ring], 2), asked.tokens + 1.0))
    choice = choose(asked, fleet)
    assert choice.replica_id != home
    assert choice.reason == "least_loaded"


def test_where_a_prefix_is_cached_nothing_is_explored() -> None:
    fleet, rng, config = fleet_of(50), random.Random(1), RoutingConfig(exploration=1.0)
    known = knows("r7", (b"1",))
    assert choose(request(), fleet, known, config, rng=rng).reason == "exploration"
    assert choose(request(prefix=(b"9",)), fleet, known, config, rng=rng).reason == "exploration"
    choices = {choose(request(prefix=(b"1", b"2")), fleet, known, config, rng=rng).replica_id for _ in range(50)}
    assert choices == {"r7"}


def test_the_longer_match_is_preferred() -> None:
    affinity = knows("r1", (b"1",))
    affinity.remember(request(prefix=(b"1", b"2", b"3")), "r2")
    choice = choose(request(prefix=(b"1", b"2", b"3", b"4")), fleet_of(), affinity)
    found = {one.replica_id: one.match for one in choice.scores if one.match}
    assert found == {"r2": pytest.approx(0.75 * TRUSTED, abs=0.01), "r1": pytest.approx(0.25 * TRUSTED, abs=0.01)}
    assert choice.replica_id == "r2"


def test_a_session_stays_where_it_belongs_and_moves_on_under_load() -> None:
    fleet = fleet_of(8)
    first, second = session_order("s", [fleet.groups("m", "fast")[0].ring], 2)
    choice = choose(request(session="s"), fleet)
    assert (choice.replica_id, choice.reason) == (first, "session")
    busy(fleet, **{first: 5000})
    choice = choose(request(session="s"), fleet)
    assert (choice.replica_id, choice.reason) == (second, "session")
    busy(fleet, **{second: 5000})
    assert choose(request(session="s"), fleet).reason == "least_loaded"


def test_the_cache_counts_more_than_the_session_where_it_saves_more() -> None:
    fleet = fleet_of(8)
    home = session_order("s", [fleet.groups("m", "fast")[0].ring], 1)[0]
    other = next(name for name in fleet.loads if name != home)
    asked = request(session="s", prefix=(b"1", b"2", b"3"), prompt_tokens=3000, max_output=1)
    assert choose(asked, fleet, knows(other, ())).replica_id == home
    choice = choose(asked, fleet, knows(other, (b"1", b"2")))
    assert (choice.replica_id, choice.reason) == (other, "prefix")


@pytest.mark.parametrize("name", ROUTE_WEIGHTS)
def test_every_weight_counts(name: str) -> None:
    fleet, asked = fleet_of(3), request(prefix=(b"1",), session="s")
    home = choose(asked, fleet).replica_id
    busy(fleet, **{home: 10})
    without = RoutingConfig(exploration=0.0, weights={**ROUTE_WEIGHTS, name: 0.0})
    scores = [choose(asked, fleet, knows(home, (b"1",)), config).scores for config in (CALM, without)]
    assert scores[0] != scores[1]
    assert all(0 <= one.score <= 1 for found in scores for one in found)


def test_a_session_can_be_made_to_count_more_than_the_cache() -> None:
    fleet, asked = fleet_of(), request(prefix=(b"1",), prompt_tokens=1000, session="s")
    home = choose(asked, fleet).replica_id
    elsewhere = next(name for name in fleet.loads if name != home)
    assert choose(asked, fleet, knows(elsewhere, (b"1",))).replica_id == elsewhere
    loyal = RoutingConfig(exploration=0.0, weights={"load": 1.0, "prefix": 0.0, "session": 1.0})
    assert choose(asked, fleet, knows(elsewhere, (b"1",)), loyal).replica_id == home


def test_only_between_equal_predictions_does_a_session_count_for_urgent_requests() -> None:
    fleet = fleet_of(8)
    home, second = session_order("s", [fleet.groups("m", "fast")[0].ring], 2)
    busy(fleet, **{second: 1})
    asked = request(priority=URGENT, session="s", max_output=10_000)
    assert choose(asked, fleet).replica_id == home
    busy(fleet, **{home: 1})
    assert choose(asked, fleet).reason == "least_loaded"
    assert choose(asked.but(priority=NORMAL), fleet).reason == "session"


def test_a_request_whose_promise_is_due_is_urgent_whatever_its_lane() -> None:
    fleet = fleet_of(8)
    home, second = session_order("s", [fleet.groups("m", "fast")[0].ring], 2)
    busy(fleet, **{second: 10})
    asked = request(priority=LOW, session="s", max_output=10_000)
    busy(fleet, **{home: 10})
    assert choose(asked, fleet, now=9.0).reason == "session"
    assert choose(asked, fleet, now=10.0).reason == "least_loaded"


def test_low_priorities_spread_and_leave_the_least_loaded_to_others() -> None:
    fleet, rng = fleet_of(20), random.Random(1)
    busy(fleet, **{f"r{number}": 10 for number in range(1, 20)})
    low = Counter(choose(request(priority=LOW), fleet, rng=rng).replica_id for _ in range(200))
    assert len(low) > 10
    assert low["r0"] < 60
    assert choose(request(priority=LOW), fleet).reason == "spread"
    assert {choose(request(priority=URGENT), fleet, rng=rng).replica_id for _ in range(50)} == {"r0"}


def test_one_choice_in_a_hundred_explores_but_never_an_urgent_one() -> None:
    fleet, rng, config = fleet_of(50), random.Random(1), RoutingConfig()
    reasons = Counter(choose(request(), fleet, config=config, rng=rng).reason for _ in range(3000))
    assert 10 <= reasons["exploration"] <= 60
    urgent = {choose(request(priority=URGENT), fleet, config=config, rng=rng).reason for _ in range(1000)}
    assert urgent == {"least_loaded"}


def test_one_hot_prefix_does_not_collapse_onto_one_replica() -> None:
    fleet, affinity, rng = fleet_of(8, limit=64.0), Remembered(), random.Random(1)
    for number in range(256):
        asked = request(priority=number % 3, prefix=(b"system", b"%d" % number))
        choice = choose(asked, fleet, affinity, RoutingConfig(), rng=rng)
        take(fleet, choice, asked)
        affinity.remember(asked, choice.replica_id)
    counts = sorted(load.requests for load in fleet.loads.values())
    assert counts[0] >= 20
    assert counts[-1] <= 48


# -- algorithms by name -------------------------------------------------------------------------------------------


def spread_of(algorithm: Algorithm, fleet: RouteIndex, count: int, **facts: Any) -> Counter[str]:
    config, rng, counts = RoutingConfig(algorithm=algorithm), random.Random(1), Counter[str]()
    for _ in range(count):
        asked = request(**facts)
        choice = choose(asked, fleet, config=config, rng=rng)
        take(fleet, choice, asked)
        counts[choice.replica_id] += 1
    return counts


def test_round_robin_takes_turns() -> None:
    assert spread_of("round_robin", fleet_of(4, "round_robin"), 12) == {"r0": 3, "r1": 3, "r2": 3, "r3": 3}


def test_weighted_gives_shares_by_weight() -> None:
    fleet = RouteIndex({}, ALGORITHMS["weighted"].order)
    for number, weight in enumerate((1.0, 2.0, 5.0)):
        enter(fleet, Load(Replica(id=f"r{number}", url="http://x", weight=weight), limit=100.0))
    assert spread_of("weighted", fleet, 80) == {"r0": 10, "r1": 20, "r2": 50}


def test_least_connections_counts_requests_and_not_their_size() -> None:
    fleet = fleet_of(3, "least_connections")
    busy(fleet, r0=1, r1=1)
    fleet.loads["r2"].prefill_tokens = 9999
    fleet.changed(fleet.loads["r2"])
    choice = choose(request(), fleet, config=RoutingConfig(algorithm="least_connections"))
    assert (choice.replica_id, choice.reason) == ("r2", "least_connections")


def test_one_just_taken_into_use_does_not_get_every_prompt_until_it_has_as_much_to_decode() -> None:
    fleet = fleet_of(3, limit=12.0)
    new, *old = fleet.loads.values()
    for load in old:
        load.requests, load.decode_tokens = 10, 640
    for load in fleet.loads.values():
        load.prefill_token_s, load.tpot_s = 0.00015, 0.04
        fleet.changed(load)
    for _ in range(10):  # within less than a prompt takes
        load = fleet.loads[choose(request(prompt_tokens=1000), fleet).replica_id]
        load.requests, load.prefill_tokens = load.requests + 1, load.prefill_tokens + 1000
        fleet.changed(load)
    assert new.prefill_tokens > max(load.prefill_tokens for load in old) > 0
    assert new.prefill_tokens <= 6000, "the others decode while their next prompt is read"


def test_token_aware_counts_prefill_and_decode_against_speed() -> None:
    fleet = fleet_of(2, "token_aware")
    r0, r1 = fleet.loads.values()
    r0.prefill_tokens, r1.decode_tokens = 1000, 1000
    for speed, chosen in ((0.001, "r1"), (0.0001, "r0")):
        r0.prefill_token_s = speed
        r1.tpot_s = 0.02
        fleet.changed(r0)
        fleet.changed(r1)
        assert choose(request(), fleet, config=RoutingConfig(algorithm="token_aware")).replica_id == chosen


def test_power_of_two_takes_the_better_of_two_at_random() -> None:
    fleet, config, rng = fleet_of(50, "power_of_two"), RoutingConfig(algorithm="power_of_two"), random.Random(1)
    busy(fleet, **{f"r{number}": number for number in range(1, 50)})
    choices = [choose(request(), fleet, config=config, rng=rng) for _ in range(200)]
    assert len({choice.replica_id for choice in choices}) > 20
    for choice in choices:
        assert choice.reason == "two_choices"
        assert len(choice.scores) <= 2
        assert min(choice.scores, key=lambda one: one.load).replica_id == choice.replica_id


def test_prefix_session_and_tenant_alone() -> None:
    fleet, asked = fleet_of(8), request(session="s", tenant="t", prefix=(b"1",))
    ring = fleet.groups("m", "fast")[0].ring
    prefix = choose(asked, fleet, knows("r5", (b"1",)), RoutingConfig(algorithm="prefix"))
    assert (prefix.replica_id, prefix.reason) == ("r5", "prefix")
    session = choose(asked, fleet, knows("r5", (b"1",)), RoutingConfig(algorithm="session"))
    assert (session.replica_id, session.reason) == (session_order("s", [ring], 1)[0], "session")
    tenant = choose(asked, fleet, config=RoutingConfig(algorithm="tenant"))
    assert (tenant.replica_id, tenant.reason) == (session_order("t", [ring], 1)[0], "tenant")
    nobody = choose(request(), fleet, config=RoutingConfig(algorithm="session"))
    assert nobody.reason == "least_loaded"


def test_an_algorithm_needs_its_own_index() -> None:
    with pytest.raises(ValueError, match="round_robin needs an index ordered by turn"):
        choose(request(), fleet_of(), config=RoutingConfig(algorithm="round_robin"))


# -- nobody, and filters --------------------------------------------------------------------------------------------


def refusal(fleet: RouteIndex, asked: Request, tried: frozenset[str] = frozenset()) -> NoRoom | NoReplica:
    answer = route(asked, fleet, Remembered().index, CALM, 0.0, random.Random(1), tried)
    assert not isinstance(answer, RouteChoice)
    return answer


def test_full_is_another_answer_than_nobody() -> None:
    fleet = fleet_of(2, limit=1.0, model="m")
    assert refusal(fleet, request(model="other")) == NoReplica(0)
    assert refusal(fleet_of(0), request(session="s")) == NoReplica(0)
    busy(fleet, r0=1, r1=1)
    assert refusal(fleet, request()) == NoRoom(2)
    assert refusal(fleet, request(), frozenset({"r0"})) == NoRoom(1)
    assert refusal(fleet, request(), frozenset({"r0", "r1", "gone"})) == NoReplica(2)
    for load in fleet.loads.values():
        load.usable = 0.0
        fleet.changed(load)
    assert refusal(fleet, request(priority=LOW)) == NoReplica(2)


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_who_was_tried_is_not_chosen_again(algorithm: Algorithm) -> None:
    fleet, config = fleet_of(3, algorithm), RoutingConfig(algorithm=algorithm)
    asked = request(session="s", prefix=(b"1",))
    for seed in range(20):
        choice = choose(
            asked, fleet, knows("r1", (b"1",)), config, rng=random.Random(seed), tried=frozenset({"r0", "r1"})
        )
        assert choice.replica_id == "r2"


def test_a_request_waits_for_room_for_its_tokens_but_an_idle_replica_takes_anything() -> None:
    fleet = fleet_of(2, token_limit=1000)
    assert choose(request(prompt_tokens=5000), fleet).replica_id == "r0"
    busy(fleet, r0=700, r1=850)
    assert choose(request(), fleet).replica_id == "r0"
    assert refusal(fleet, request(prompt_tokens=300)) == NoRoom(2)


def test_holders_that_cannot_serve_it_are_passed_over() -> None:
    fleet = fleet_of(2, model="m")
    enter(fleet, Load(Replica(id="other", url="http://x", model="o"), limit=4.0))
    affinity = knows("other", (b"1",))
    affinity.remember(request(prefix=(b"1",)), "gone")
    assert choose(request(prefix=(b"1",)), fleet, affinity).reason == "least_loaded"


def test_replicas_of_any_model_and_of_this_one_are_weighed_together() -> None:
    fleet = fleet_of(2, model="m")
    enter(fleet, Load(Replica(id="any", url="http://x"), limit=4.0))
    busy(fleet, r0=10, r1=10)
    assert choose(request(), fleet).replica_id == "any"
    low = {choose(request(priority=LOW), fleet, rng=random.Random(seed)).replica_id for seed in range(50)}
    assert low == {"r0", "r1", "any"}
    assert choose(request(session="s"), fleet).reason in ("session", "least_loaded")


# -- whatever the fleet -----------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 100_000), algorithm=st.sampled_from(list(ALGORITHMS)))
def test_the_shortlist_is_short_scores_are_shares_and_replay_is_exact(seed: int, algorithm: Algorithm) -> None:
    def play() -> list[RouteChoice | NoRoom | NoReplica]:
        rng, affinity = random.Random(seed), Remembered(per_replica=16)
        fleet = fleet_of(rng.choice((1, 3, 40)), algorithm, limit=3.0, token_limit=rng.choice((None, 400)))
        answers = []
        for number in range(40):
            prefix = tuple(b"%d" % rng.randrange(3) for _ in range(rng.randrange(4)))
            asked = request(prefix=prefix, session=rng.choice((None, "s", "t")), priority=number % 4)
            answer = route(asked, fleet, affinity.enter(fleet), RoutingConfig(algorithm=algorithm), 0.0, rng)
            if isinstance(answer, RouteChoice):
                assert fleet.loads[answer.replica_id].room > 0
                take(fleet, answer, asked)
                affinity.remember(asked, answer.replica_id)
            answers.append(answer)
        return answers

    answers = play()
    for answer in answers:
        if isinstance(answer, RouteChoice):
            assert 1 <= len(answer.scores) <= 8
            assert all(0.0 <= one.score <= 1.0 for one in answer.scores)
            assert answer.replica_id in {one.replica_id for one in answer.scores}
    assert answers == play()


# -- price ----------------------------------------------------------------------------------------------------


def priced(limit: float = 10.0, cheap: int = 2, dear: int = 2) -> RouteIndex:
    fleet = RouteIndex({}, "work")
    for number in range(cheap):
        enter(fleet, Load(Replica(id=f"cheap{number}", url="http://x", price=1.0), limit=limit))
    for number in range(dear):
        enter(fleet, Load(Replica(id=f"dear{number}", url="http://x", price=3.0), limit=limit))
    return fleet


def test_the_cheapest_replicas_are_filled_first_as_far_as_latency_does_not_bend() -> None:
    fleet, sent = priced(), Counter[str]()
    for number in range(40):
        asked = request(id=str(number), prompt_tokens=10, first_token_by=99.0)
        choice = choose(asked, fleet)
        sent[choice.replica_id[:-1]] += 1
        take(fleet, choice, asked)
        if number == 15:
            assert sent == {"cheap": 16}  # 80 % of their room
    assert sent == {"cheap": 20, "dear": 20}


def test_a_dearer_replica_is_taken_where_the_cheapest_would_break_the_promise() -> None:
    fleet = priced()
    assert fleet.priced
    busy(fleet, cheap0=4000, cheap1=4000)  # two seconds of prompts at the guessed pace
    assert choose(request(first_token_by=2.0), fleet).replica_id.startswith("dear")
    assert choose(request(first_token_by=20.0), fleet).replica_id.startswith("cheap")


def test_where_all_are_full_or_late_the_least_loaded_of_all_is_taken() -> None:
    fleet = priced()
    busy(fleet, cheap0=9000, cheap1=8000, dear0=7000, dear1=7500)
    assert choose(request(first_token_by=0.1), fleet).replica_id == "dear0"


def test_a_cached_prefix_counts_on_dearer_replicas_too() -> None:
    prefix = (b"a", b"b")
    asked = request(prefix=prefix, prompt_tokens=4000, first_token_by=99.0)
    assert choose(asked, priced(), knows("dear1", prefix)).replica_id == "dear1"


def test_prices_count_for_other_orders_and_one_price_counts_for_nothing() -> None:
    fleet = RouteIndex({}, ALGORITHMS["least_connections"].order)
    for name, price in (("dear", 2.0), ("cheap", 1.0)):
        enter(fleet, Load(Replica(id=name, url="http://x", price=price), limit=4))
    config = RoutingConfig(algorithm="least_connections", exploration=0.0)
    assert choose(request(), fleet, config=config).replica_id == "cheap"
    assert not fleet_of(3, price=2.0).priced


def test_a_cheap_replica_that_has_no_room_for_the_tokens_is_passed_over() -> None:
    fleet = RouteIndex({}, "work")
    tight = Load(Replica(id="cheap", url="http://x", price=1.0, token_limit=300), limit=10)
    enter(fleet, tight)
    enter(fleet, Load(Replica(id="dear", url="http://x", price=2.0), limit=10))
    tight.requests, tight.prefill_tokens = 1, 250
    fleet.changed(tight)
    assert choose(request(first_token_by=99.0), fleet).replica_id == "dear"
