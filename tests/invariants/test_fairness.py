"""Whatever tenants send, what they are served stays fair, and nothing is lost."""

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.model.request import Request
from headgate.policy.tenants.fair import FairQueue

LARGEST = 1_000


@dataclass
class Sender:
    """A tenant that always keeps a number of requests waiting. With only one it would be away whenever it is served."""

    name: str
    weight: float
    backlog: int
    tokens: tuple[int, int] = (10, LARGEST)
    served: float = 0.0


def request(rng: random.Random, number: int, sender: Sender) -> Request:
    low, high = sender.tokens
    return Request(
        id=f"r{number}",
        arrived=0.0,
        model="m",
        lane="fast",
        priority=rng.randrange(2),
        tenant=sender.name,
        weight=sender.weight,
        prompt_tokens=rng.randint(low, high),
        max_output=0,
        wait_until=1e9,
        first_token_by=rng.random(),
    )


def backlogged(senders: list[Sender], turns: int, seed: int) -> float:
    """Serve them; gives the largest difference in tokens over weight that there ever was between two of them."""
    rng, queue, number, worst = random.Random(seed), FairQueue(), 0, 0.0
    by_name = {sender.name: sender for sender in senders}
    for sender in senders:
        for _ in range(sender.backlog):
            queue.push(request(rng, number := number + 1, sender))
    for _ in range(turns):
        chosen = queue.peek()
        assert chosen is not None
        queue.pop(chosen.id)
        queue.charge(chosen.tenant, chosen.weight, chosen.tokens)
        sender = by_name[chosen.tenant]
        sender.served += chosen.tokens
        queue.push(request(rng, number := number + 1, sender))
        shares = [one.served / one.weight for one in senders]
        worst = max(worst, max(shares) - min(shares))
    return worst


weights = st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=2, max_size=6)


@settings(max_examples=25, deadline=None)
@given(weights, st.integers(0, 2**32), st.lists(st.integers(2, 20), min_size=6, max_size=6))
def test_between_backlogged_tenants_service_over_weight_differs_by_at_most_one_request(
    weights: list[float], seed: int, backlogs: list[int]
) -> None:
    senders = [
        Sender(f"t{n}", weight, backlog) for n, (weight, backlog) in enumerate(zip(weights, backlogs, strict=False))
    ]
    assert backlogged(senders, 300, seed) <= LARGEST / min(weights)


def test_shares_converge_to_the_weights() -> None:
    senders = [Sender("a", 1.0, 2), Sender("b", 2.0, 50, (900, 1_000)), Sender("c", 5.0, 5, (10, 50))]
    backlogged(senders, 8_000, 7)
    total = sum(sender.served for sender in senders)
    for sender in senders:
        assert abs(sender.served / total - sender.weight / 8.0) < 0.004


def test_ten_times_the_requests_take_nothing_from_a_well_behaved_tenant() -> None:
    served = []
    for backlog in (4, 40, 400):
        good, flood = Sender("good", 1.0, 4), Sender("flood", 1.0, backlog)
        backlogged([good, flood], 2_000, 3)
        served.append(good.served / (good.served + flood.served))
    assert all(abs(share - 0.5) < 0.002 for share in served)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 400))
def test_a_tenant_can_not_bank_credit_by_staying_away(seed: int, away: int) -> None:
    """However long it was away, from its return on it is served no more than one request beyond its share."""
    rng, queue, number = random.Random(seed), FairQueue(), 0
    steady, back = Sender("steady", 1.0, 3), Sender("back", 1.0, 3)
    queue.push(request(rng, 0, back))

    def turn() -> None:
        chosen = queue.pop()
        queue.charge(chosen.tenant, chosen.weight, chosen.tokens)
        (steady if chosen.tenant == "steady" else back).served += chosen.tokens

    for _ in range(away):
        queue.push(request(rng, number := number + 1, steady))
        queue.push(request(rng, number := number + 1, steady))
        turn()
    steady.served = back.served = 0.0
    for _ in range(100):
        queue.push(request(rng, number := number + 1, steady))
        queue.push(request(rng, number := number + 1, back))
        turn()
        assert back.served - steady.served <= LARGEST


def play(seed: int) -> list[str]:
    """A random life; whatever goes in comes out exactly once. Gives the order."""
    rng, queue, now = random.Random(seed), FairQueue(idle=3), 0.0
    senders = [Sender(f"t{n}", rng.choice([0.5, 1.0, 3.0]), 0) for n in range(8)]
    inside: dict[str, Request] = {}
    out: list[str] = []
    for number in range(400):
        now += rng.random()
        what = rng.random()
        if what < 0.5:
            made = request(rng, number, rng.choice(senders))
            made = made.but(wait_until=now + 30 * what)
            queue.push(made)
            inside[made.id] = made
        elif what < 0.75 and inside:
            chosen = queue.peek() if what < 0.6 else rng.choice(list(inside.values()))
            assert chosen is not None
            out.append(queue.pop(chosen.id).id)
            del inside[chosen.id]
            queue.charge(chosen.tenant, chosen.weight, rng.randint(-50, 500))
        elif what < 0.85 and inside:
            gone = queue.remove(rng.choice(list(inside)))
            assert gone is not None
            del inside[gone.id]
        else:
            gone_now = [one.id for one in queue.expired(now)]
            assert sorted(gone_now) == sorted(one for one in inside if inside[one].wait_until <= now)
            out += gone_now
            for one in gone_now:
                del inside[one]
        assert len(queue) == len(inside)
        assert queue.tokens == sum(one.tokens for one in inside.values())
        assert queue.tenants == len({one.tenant for one in inside.values()})
        assert queue.next_expiry == min((one.wait_until for one in inside.values()), default=float("inf"))
        assert len(queue._tenants) <= queue.tenants + 3
    drained = [queue.pop().id for _ in range(len(queue))]
    assert sorted(drained) == sorted(inside)
    return out + drained


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_nobody_is_lost_or_served_twice_and_the_same_input_gives_the_same_order(seed: int) -> None:
    order = play(seed)
    assert len(order) == len(set(order))
    assert play(seed) == order
