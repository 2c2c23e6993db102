import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.model.request import Request
from headgate.policy.replicas.affinity import HEAD, HOLDERS, KNOWN, TAIL, Ring, session_order
from tests.policy.watched import Remembered


def chain(*words: str) -> tuple[bytes, ...]:
    """As the gateway makes them: each link stands for everything up to it."""
    return tuple("/".join(words[: end + 1]).encode() for end in range(len(words)))


def request(prefix: tuple[bytes, ...]) -> Request:
    return Request(
        id="r", arrived=0.0, model="m", lane="fast", priority=0, wait_until=1.0, first_token_by=1.0, prefix=prefix
    )


def remembering(affinity: Remembered, replica_id: str, *words: str) -> None:
    affinity.remember(request(chain(*words)), replica_id)


# -- prefixes -------------------------------------------------------------------------------------------------


def test_the_next_turn_of_a_conversation_finds_who_had_the_last() -> None:
    affinity = Remembered()
    remembering(affinity, "a", "system", "hello")
    remembering(affinity, "b", "system", "bonjour")
    assert affinity.holders(chain("system", "hello", "hi", "how are you?")) == {"a": 2, "b": 1}


def test_the_longest_match_comes_first_then_the_latest() -> None:
    affinity = Remembered()
    remembering(affinity, "a", "system", "one", "two")
    remembering(affinity, "b", "system", "one")
    remembering(affinity, "c", "system")
    assert list(affinity.holders(chain("system", "one", "two")).items()) == [("a", 3), ("b", 2), ("c", 1)]
    remembering(affinity, "b", "system", "one", "two")
    assert list(affinity.holders(chain("system", "one", "two"))) == ["b", "a", "c"]


def test_an_unknown_beginning_is_nobodys() -> None:
    affinity = Remembered()
    remembering(affinity, "a", "system", "hello")
    remembering(affinity, "a")
    assert affinity.holders(chain("other", "hello")) == {}
    assert affinity.holders(()) == {}


def test_few_holders_are_named_however_many_there_are() -> None:
    affinity = Remembered()
    for number in range(3 * KNOWN):
        remembering(affinity, f"r{number}", "system")
    assert list(affinity.holders(chain("system", "x"))) == ["r23", "r22", "r21"]
    assert len(affinity.holders(chain("system"))) == HOLDERS


def test_a_long_conversation_costs_no_more_than_a_short_one() -> None:
    affinity = Remembered()
    words = [str(number) for number in range(500)]
    remembering(affinity, "a", *words)
    assert len(affinity) == HEAD + TAIL
    assert affinity.holders(chain(*words, "and", "then")) == {"a": 500}
    assert affinity.holders(chain(*words[:2], "another")) == {"a": 2}
    assert affinity.holders(chain(*words[:499], "regenerated")) == {"a": 499}


def test_what_was_not_used_for_longest_is_forgotten_and_beginnings_last() -> None:
    affinity = Remembered(per_replica=4)
    remembering(affinity, "a", "system", "one")
    remembering(affinity, "a", "system", "two")
    remembering(affinity, "a", "system", "one")
    remembering(affinity, "a", "system", "three", "more")
    assert len(affinity) == 4
    assert affinity.holders(chain("system", "two")) == {"a": 1}
    assert affinity.holders(chain("system", "one")) == {"a": 2}
    assert affinity.holders(chain("system", "three", "more")) == {"a": 3}


def test_the_total_is_shared_evenly_and_kept_when_replicas_join() -> None:
    affinity = Remembered(per_replica=100, total=40)
    for number in range(100):
        remembering(affinity, "a", str(number))
    assert len(affinity) == 40
    for name in "bcd":
        remembering(affinity, name, "x")
    assert len(affinity) == 10 + 3
    assert affinity.holders(chain("99")) == {"a": 1}
    assert affinity.holders(chain("80")) == {}


def test_a_replica_that_left_is_forgotten() -> None:
    affinity = Remembered()
    remembering(affinity, "a", "system", "hello")
    remembering(affinity, "b", "system")
    affinity.forget("a")
    affinity.forget("never seen")
    assert affinity.holders(chain("system", "hello")) == {"b": 1}
    assert len(affinity) == 1


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.lists(st.sampled_from("xyz"), max_size=5), st.booleans())),
    st.integers(4, 12),
)
def test_memory_is_bounded_and_leaves_nothing_behind(steps: list[tuple[str, list[str], bool]], total: int) -> None:
    affinity = Remembered(per_replica=5, total=total)
    for name, words, leaves in steps:
        remembering(affinity, name, *words)
        if leaves:
            affinity.forget(name)
        assert len(affinity) <= total
        assert all(depth <= len(words) for depth in affinity.holders(chain(*words)).values())
    for name in "abcd":
        affinity.forget(name)
    assert len(affinity) == 0
    assert not affinity.affinity._holders


# -- sessions -------------------------------------------------------------------------------------------------

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
        "from headgate.policy.replicas.affinity import Ring, session_order\n"
        f"ring = Ring()\nfor name in {names!r}: ring.add(name)\n"
        "print([session_order(f'session {number}', [ring], 2) for number in range(20)])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str([session_order(session, [ring_of(*names)], 2) for session in SESSIONS[:20]])


def test_odd_names_are_no_obstacle() -> None:
    ring = ring_of("\ud800", "é")
    assert len(session_order("\udfff", [ring], 2)) == 2
