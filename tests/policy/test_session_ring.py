import random
import subprocess
import sys
from collections import Counter

import pytest

from headgate.policy.replicas.session_ring import Ring, session_order

SESSIONS = [f"session {number}" for number in range(4000)]


def ring_of(*names: str) -> Ring:
    ring = Ring()
    for name in names:
        ring.add(name)
    return ring


def homes(ring: Ring) -> dict[str, str]:
    return {session: session_order(session, [ring], 1)[0] for session in SESSIONS}


def test_sessions_are_spread_over_the_fleet() -> None:
    counts = Counter(homes(ring_of(*[f"r{number}" for number in range(10)])).values())
    assert len(counts) == 10
    assert max(counts.values()) < 1.6 * len(SESSIONS) / 10


@pytest.mark.parametrize("size", [5, 20])
def test_one_replica_more_or_less_moves_only_its_own_share_of_sessions(size: int) -> None:
    ring = ring_of(*[f"r{number}" for number in range(size)])
    before = homes(ring)
    ring.add("new")
    after = homes(ring)
    moved = [session for session in SESSIONS if before[session] != after[session]]
    assert {after[session] for session in moved} == {"new"}
    assert len(moved) == pytest.approx(len(SESSIONS) / (size + 1), rel=0.5)
    ring.remove("new")
    assert homes(ring) == before


def test_the_order_names_different_replicas_and_goes_on_when_the_first_leaves() -> None:
    ring = ring_of("a", "b", "c")
    first, second, third = session_order("s", [ring], 5)
    assert {first, second, third} == {"a", "b", "c"}
    assert session_order("s", [ring], 2) == [first, second]
    ring.remove(first)
    assert session_order("s", [ring], 2) == [second, third]


def test_joining_twice_and_leaving_unseen_change_nothing() -> None:
    ring = ring_of("a", "b")
    before = homes(ring)
    ring.add("a")
    ring.remove("never seen")
    assert homes(ring) == before
    ring.remove("a")
    ring.remove("b")
    assert session_order("s", [ring], 2) == []


def test_several_rings_give_what_one_of_all_their_replicas_would() -> None:
    rng = random.Random(1)
    for _ in range(50):
        names = [f"r{number}" for number in range(rng.randrange(2, 12))]
        cut = rng.randrange(len(names) + 1)
        session = str(rng.random())
        apart = session_order(session, [ring_of(*names[:cut]), ring_of(*names[cut:])], 3)
        assert apart == session_order(session, [ring_of(*names)], 3)


def test_a_session_has_the_same_replicas_in_every_process() -> None:
    names = [f"r{number}" for number in range(8)]
    program = (
        "from headgate.policy.replicas.session_ring import Ring, session_order\n"
        f"ring = Ring()\nfor name in {names!r}: ring.add(name)\n"
        "print([session_order(f'session {number}', [ring], 2) for number in range(20)])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str([session_order(session, [ring_of(*names)], 2) for session in SESSIONS[:20]])


def test_odd_names_are_no_obstacle() -> None:
    ring = ring_of("\ud800", "é")
    assert len(session_order("\udfff", [ring], 2)) == 2
