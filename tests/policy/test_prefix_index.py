import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.model.request import Request
from headgate.policy.replicas.prefix_index import (
    AGES,
    HOLDERS,
    KNOWN,
    NOTHING_CACHED,
    TRUSTED,
    CacheGuess,
    CacheOdds,
    ReplicaOdds,
)
from tests.policy.watched import Remembered

LINK = 100


def chain(*words: str) -> tuple[bytes, ...]:
    """As the gateway makes them: each link stands for everything up to it."""
    return tuple("/".join(words[: end + 1]).encode() for end in range(len(words)))


def request(*words: str) -> Request:
    return Request(
        id="r", arrived=0.0, model="m", lane="fast", priority=0, wait_until=1.0, first_token_by=1.0,
        prefix=chain(*words), link_tokens=float(LINK), prompt_tokens=max(1, LINK * len(words)),
    )  # fmt: skip


def remembering(index: Remembered, replica_id: str, *words: str, tokens: int = 0) -> None:
    index.remember(request(*words), replica_id, tokens)


def known(index: Remembered, replica_id: str, *words: str) -> int:
    """Links of this prompt that the replica is remembered to have."""
    return index.guess(request(*words), replica_id).remembered // LINK


# -- who has it -------------------------------------------------------------------------------------------------


def test_the_next_turn_of_a_conversation_finds_who_had_the_last() -> None:
    index = Remembered()
    remembering(index, "a", "system", "hello")
    remembering(index, "b", "system", "bonjour")
    asked = ("system", "hello", "hi", "how are you?")
    assert index.index.holders(chain(*asked)) == ["a", "b"]
    assert (known(index, "a", *asked), known(index, "b", *asked), known(index, "c", *asked)) == (2, 1, 0)


def test_the_longest_match_comes_first() -> None:
    index = Remembered()
    remembering(index, "c", "system")
    remembering(index, "b", "system", "one")
    remembering(index, "a", "system", "one", "two", "three")
    assert index.index.holders(chain("system", "one", "two", "three")) == ["a", "b", "c"]


def test_an_unknown_beginning_is_at_no_replica() -> None:
    index = Remembered()
    remembering(index, "a", "system", "hello")
    remembering(index, "a")
    assert index.index.holders(chain("other", "hello")) == []
    assert index.index.holders(()) == []
    assert index.guess(request(), "a") is index.guess(request("other"), "a") is NOTHING_CACHED


def test_few_holders_are_named_however_many_there_are_and_each_knows_its_own() -> None:
    index = Remembered()
    for number in range(3 * KNOWN):
        remembering(index, f"r{number}", "system")
    assert index.index.holders(chain("system", "x")) == ["r23", "r22", "r21"]
    assert len(index.index.holders(chain("system"))) == HOLDERS
    assert known(index, "r0", "system", "x") == 1  # not named, and found where it is compared
    for number in range(3 * KNOWN):
        index.forget(f"r{number}")
    assert not index.index._holders


@given(st.integers(1, 300), st.integers(0, 300))
@settings(max_examples=50, deadline=None)
def test_all_links_of_a_long_prompt_are_found(length: int, shared: int) -> None:
    index = Remembered()
    words = [str(number) for number in range(length)]
    remembering(index, "a", *words)
    same = min(shared, length)
    assert known(index, "a", *words[:same], "and", "then") == same


def test_a_prompt_that_is_sent_again_is_known_whole() -> None:
    index = Remembered()
    asked = request("one", "two").but(prompt_tokens=130)  # the second link is of 30 tokens only
    index.remember(asked, "a")
    assert index.guess(asked, "a").remembered == 130
    assert index.guess(request("one", "other").but(prompt_tokens=130), "a").remembered == 100


# -- what is forgotten --------------------------------------------------------------------------------------------


def test_what_was_not_used_for_longest_is_forgotten_and_beginnings_last() -> None:
    index = Remembered(per_replica=4)
    remembering(index, "a", "system", "one")
    remembering(index, "a", "system", "two")
    remembering(index, "a", "system", "one")
    remembering(index, "a", "system", "three", "more")
    assert len(index) == 4
    assert known(index, "a", "system", "two") == 1
    assert known(index, "a", "system", "one") == 2
    assert known(index, "a", "system", "three", "more") == 3


def test_the_total_is_shared_evenly_and_kept_when_replicas_join() -> None:
    index = Remembered(per_replica=100, total=40)
    for number in range(100):
        remembering(index, "a", str(number))
    assert len(index) == 40
    for name in "bcd":
        remembering(index, name, "x")
    assert len(index) == 10 + 3
    assert index.index.holders(chain("99")) == ["a"]
    assert index.index.holders(chain("80")) == []


def test_a_replica_that_left_is_forgotten() -> None:
    index = Remembered()
    remembering(index, "a", "system", "hello")
    remembering(index, "b", "system")
    index.forget("a")
    index.forget("never seen")
    assert index.index.holders(chain("system", "hello")) == ["b"]
    assert len(index) == 1


def test_a_failed_request_takes_back_what_no_other_has_used_since() -> None:
    index = Remembered()
    remembering(index, "a", "system", "before")
    failing = request("system", "question", "more")
    clock = index.index.remember(failing, index.links("a"), 10)
    remembering(index, "a", "system", "after")
    index.index.unremember(failing, index.links("a"), clock)
    assert known(index, "a", "system", "question", "more") == 1
    assert known(index, "a", "system", "before") == known(index, "a", "system", "after") == 2
    again = index.index.remember(failing, index.links("a"), 10)
    index.index.unremember(failing, index.links("a"), again)
    assert known(index, "a", "system", "question") == 0
    assert not [link for link, holders in index.index._holders.items() if b"question" in link]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.lists(st.sampled_from("xyz"), max_size=5), st.booleans())),
    st.integers(4, 12),
)
def test_memory_is_bounded_has_no_gaps_and_leaves_nothing_behind(
    steps: list[tuple[str, list[str], bool]], total: int
) -> None:
    index = Remembered(per_replica=5, total=total)
    for name, words, leaves in steps:
        remembering(index, name, *words, tokens=10)
        if leaves:
            index.forget(name)
        assert len(index) <= total
        for links in index.of.values():
            # Whatever is known, all before it is known: bisection relies on it.
            assert all(link.rpartition(b"/")[0] in links.seen for link in links.seen if b"/" in link)
            assert all(links.replica_id in index.index._holders[link] for link in links.seen)
    for name in "abcd":
        index.forget(name)
    assert len(index) == 0
    assert not index.index._holders


# -- what is still there ------------------------------------------------------------------------------------------


def test_a_replica_that_has_answered_nothing_is_trusted_with_nearly_all() -> None:
    index = Remembered()
    remembering(index, "a", "one", "two")
    guess = index.guess(request("one", "two", "three"), "a")
    assert (guess.remembered, guess.age) == (200, 0)
    assert guess.tokens == pytest.approx(TRUSTED * 200)


def test_age_is_the_tokens_that_the_replica_was_given_since() -> None:
    index = Remembered()
    remembering(index, "a", "one", tokens=1000)
    remembering(index, "a", "two", tokens=500)
    remembering(index, "b", "two", tokens=70_000)
    assert index.guess(request("one"), "a").age == 501  # a request counts for one more
    assert index.guess(request("two"), "a").age == 0
    remembering(index, "a", "one", tokens=20)
    assert (index.guess(request("one"), "a").age, index.guess(request("two"), "a").age) == (0, 21)


def test_odds_are_learned_by_age_and_older_is_never_likelier_unless_seen() -> None:
    odds, others = ReplicaOdds(), CacheOdds()
    for _ in range(40):
        odds.learn(100, 1.0, others)
        odds.learn(1 << 18, 0.0, others)
    assert odds.chance(100, others) > 0.95
    assert odds.chance(1 << 18, others) < 0.05
    assert odds.chance(1 << 22, others) < 0.05  # never seen: no likelier than the younger ones
    assert odds.chance(1 << 60, others) == odds.chance(1 << (13 + AGES), others)
    assert 0.9 < odds.chance(1 << 14, others) <= odds.chance(100, others)


def test_an_engine_that_caches_nothing_is_soon_not_believed_to() -> None:
    odds, others = ReplicaOdds(), CacheOdds()
    for _ in range(20):
        odds.learn(50, 0.0, others)
    assert all(odds.chance(1 << bits, others) < 0.1 for bits in range(30))


def test_what_all_replicas_have_shown_is_expected_of_a_new_one_until_it_shows_otherwise() -> None:
    others = CacheOdds()
    for _ in range(40):
        ReplicaOdds().learn(50, 0.0, others)
    new = ReplicaOdds()
    assert new.chance(50, others) < 0.1
    for _ in range(20):
        new.learn(50, 1.0, CacheOdds())
    assert new.chance(50, others) > 0.75


def test_where_the_end_of_a_prompt_is_gone_its_beginning_still_counts() -> None:
    index = Remembered()
    remembering(index, "a", "system", "old", "older")
    remembering(index, "a", "system", "new", tokens=1 << 20)
    for _ in range(40):
        index.index.learn(CacheGuess(100, 1 << 20, 95.0), 0.0, index.links("a"))
    index.index.learn(NOTHING_CACHED, 0.0, index.links("a"))  # nothing was remembered: nothing is learned
    guess = index.guess(request("system", "old", "older"), "a")
    assert (guess.remembered, guess.age) == (100, 0)
    assert guess.tokens > 90
    for _ in range(80):  # and if that is gone too, little is expected
        index.index.learn(CacheGuess(100, 0, 95.0), 0.0, index.links("a"))
    assert index.guess(request("system", "old", "older"), "a").tokens < 20


@pytest.mark.interpreted_only("a compiled module calls no replaced method of a dict")
def test_a_link_that_is_forgotten_while_another_thread_looks_is_no_error() -> None:
    index = Remembered()
    remembering(index, "a", "one", "two")

    class Vanishing(dict[bytes, int]):
        def get(self, key: bytes, default: int | None = None) -> int | None:  # type: ignore[override]
            return None

    index.links("a").seen = Vanishing(index.links("a").seen)  # type: ignore[assignment]
    assert index.guess(request("one", "two"), "a") is NOTHING_CACHED
