import random
from math import inf

import pytest

from headgate.model.request import Request
from headgate.policy.tenants.fair import EXPIRE_AT_ONCE, FairQueue


def ask(name: str, tenant: str = "a", tokens: int = 100, **rest: float) -> Request:
    made = Request(
        id=name, arrived=0.0, model="m", lane="fast", priority=0, tenant=tenant, wait_until=10.0, first_token_by=1.0
    )
    return made.but(prompt_tokens=tokens, max_output=0, **rest)


def queue(*requests: Request) -> FairQueue:
    made = FairQueue()
    for request in requests:
        made.push(request)
    return made


def serve(queue: FairQueue) -> Request:
    request = queue.pop()
    queue.charge(request.tenant, request.weight, request.tokens)
    return request


def order(queue: FairQueue) -> list[str]:
    return [serve(queue).id for _ in range(len(queue))]


def test_the_tenant_that_was_served_least_is_next() -> None:
    flood = [ask(f"a{n}") for n in range(4)]
    assert order(queue(*flood, ask("b0", "b"), ask("b1", "b"))) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_service_counts_in_tokens_over_weight() -> None:
    large = [ask(f"a{n}", tokens=300) for n in range(2)]
    small = [ask(f"b{n}", "b", weight=2.0) for n in range(7)]
    assert order(queue(*large, *small)) == ["a0", "b0", "b1", "b2", "b3", "b4", "b5", "a1", "b6"]


def test_within_a_tenant_priority_then_deadline_then_arrival_decides() -> None:
    requests = [
        ask("low", priority=1, first_token_by=0.1),
        ask("late", first_token_by=2.0),
        ask("first"),
        ask("second"),
    ]
    assert order(queue(*requests)) == ["first", "second", "late", "low"]


def test_a_tenant_back_from_a_rest_is_lifted_to_the_smallest_counter() -> None:
    waiting = queue(*(ask(f"a{n}") for n in range(20)), ask("b0", "b"))
    for _ in range(12):
        serve(waiting)
    for n in range(1, 4):
        waiting.push(ask(f"b{n}", "b"))
    assert order(waiting)[:6] == ["a11", "b1", "a12", "b2", "a13", "b3"]


def test_what_is_used_while_nobody_else_waits_is_not_held_against_anybody() -> None:
    lone = queue(ask("a0", tokens=100_000))
    serve(lone)
    for n in range(3):
        lone.push(ask(f"b{n}", "b"))
        lone.push(ask(f"a{n}"))
    assert order(lone) == ["b0", "a0", "b1", "a1", "b2", "a2"]


def test_a_refund_brings_a_tenants_turn_forward() -> None:
    waiting = queue(ask("a0"), ask("a1"), ask("b0", "b"), ask("b1", "b"))
    assert [serve(waiting).id, serve(waiting).id] == ["a0", "b0"]
    waiting.charge("b", 1.0, -50.0)
    assert order(waiting) == ["b1", "a1"]


def test_a_request_can_be_taken_out_of_turn() -> None:
    waiting = queue(ask("a0"), ask("b0", "b"), ask("c0", "c"))
    assert waiting.pop("c0").id == "c0"
    assert order(waiting) == ["a0", "b0"]


def test_what_is_cancelled_or_expired_is_gone() -> None:
    waiting = queue(ask("a0", wait_until=1.0), ask("a1", wait_until=3.0), ask("b0", "b", wait_until=2.0))
    assert (waiting.next_expiry, len(waiting), waiting.tokens, waiting.tenants) == (1.0, 3, 300, 2)
    removed = waiting.remove("a0")
    assert removed is not None
    assert removed.id == "a0"
    assert waiting.remove("a0") is None
    assert waiting.next_expiry == 2.0
    assert waiting.expired(1.9) == []
    assert [gone.id for gone in waiting.expired(3.0)] == ["b0", "a1"]
    assert (waiting.next_expiry, len(waiting), waiting.tokens, waiting.tenants) == (inf, 0, 0, 0)
    assert waiting.peek() is None


def test_of_many_that_expire_together_some_go_at_a_time_and_the_rest_are_due_at_once() -> None:
    waiting = queue(*(ask(f"a{number}", wait_until=1.0) for number in range(2 * EXPIRE_AT_ONCE + 1)))
    assert len(waiting.expired(1.5)) == EXPIRE_AT_ONCE
    assert waiting.next_expiry == 1.0
    assert [len(waiting.expired(1.5)) for _ in range(3)] == [EXPIRE_AT_ONCE, 1, 0]


def test_taking_from_an_empty_queue_or_pushing_twice_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        queue().pop()
    with pytest.raises(KeyError):
        queue(ask("a")).pop("b")
    with pytest.raises(ValueError, match="waiting already"):
        queue(ask("a"), ask("a"))


def test_struck_out_entries_do_not_pile_up() -> None:
    waiting = queue(ask("stays", "b"))
    for n in range(2_000):
        waiting.push(ask(f"a{n}", wait_until=1e6 - n))
        waiting.charge("b", 1.0, 1.0)
        waiting.remove(f"a{n}")
    heaps = (waiting._turns, waiting._expiries, waiting._tenants["a"].requests)
    assert all(len(heap._entries) < 50 for heap in heaps)


def test_counters_of_idle_tenants_are_bounded_and_the_smallest_forgotten() -> None:
    waiting = FairQueue(idle=10)
    for n in range(100):
        waiting.push(ask(f"r{n}", f"t{n}", tokens=100 + n))
        serve(waiting)
        assert len(waiting._tenants) <= 11
    assert "t99" in waiting._tenants
    waiting.charge("t0", 1.0, 0.0)
    waiting.charge("t1", 1.0, 5.0)
    assert len(waiting._tenants) <= 11


# -- how much is ahead --------------------------------------------------------------------------------------


def served_before(waiting: FairQueue, probe: Request) -> tuple[int, int]:
    requests = tokens = 0
    waiting.push(probe)
    while (request := serve(waiting)) is not probe:
        requests, tokens = requests + 1, tokens + request.tokens
    return requests, tokens


def test_a_light_tenant_is_not_behind_a_floods_hundred_requests() -> None:
    waiting = queue(*(ask(f"a{n}") for n in range(100)))
    assert waiting.ahead_of("light", 1.0) == (1, 100)
    assert waiting.ahead_of("a", 1.0) == (100, 10_000)


def test_a_request_that_waits_already_is_not_ahead_of_itself() -> None:
    waiting = queue(*(ask(f"a{n}") for n in range(100)))
    probe = ask("b", "b", tokens=5_000)
    waiting.push(probe)
    assert waiting.ahead_of("b", 1.0, probe) == (1, 100)
    assert waiting.ahead_of("b", 1.0) == (52, 10_100)


def test_nothing_is_ahead_in_an_empty_queue() -> None:
    assert queue().ahead_of("a", 1.0) == (0, 0)


@pytest.mark.parametrize("tenants", [3, 10, 200])
def test_the_estimate_is_near_what_is_really_served_before(tenants: int) -> None:
    rng = random.Random(tenants)
    errors = []
    for _ in range(10):
        waiting = FairQueue()
        weights = [rng.choice([0.5, 1.0, 4.0]) for _ in range(tenants)]
        for n in range(tenants * 4):
            who = min(int(rng.expovariate(3.0 / tenants)), tenants - 1)
            waiting.push(ask(f"r{n}", f"t{who}", tokens=rng.randint(20, 400), weight=weights[who]))
        for _ in range(tenants):
            serve(waiting)
        who = rng.randrange(tenants)
        guess = waiting.ahead_of(f"t{who}", weights[who])
        really = served_before(waiting, ask("probe", f"t{who}", weight=weights[who], first_token_by=9.0))
        errors.append(abs(guess[0] - really[0]) / (len(waiting) + really[0] + 4))
    assert sum(errors) / len(errors) < 0.1
    assert max(errors) < 0.4


def test_a_tenant_that_is_held_has_no_turn_until_it_is_let_go() -> None:
    made = queue(ask("a0"), ask("a1"), ask("b0", "b"))
    made.hold("a")
    assert made.peek() == ask("b0", "b")
    assert [head.id for head in made.heads()] == ["b0"]
    assert made.next_expiry == 10.0
    made.let_go("a")
    made.let_go("never seen")
    assert order(made) == ["b0", "a0", "a1"]
