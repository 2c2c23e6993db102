"""What engines report of themselves, and what the dispatcher makes of it."""

from headgate.model.event import Ended, Probed, ReplicaJoined, Reported
from headgate.model.outcome import Outcome
from headgate.model.replica import Replica
from headgate.policy.dispatch.dispatcher import Dispatcher
from tests.policy.test_dispatcher import dispatcher, placed, request, send


def unsized(*batches: int | None) -> Dispatcher:
    """Replicas a, b, … without configured slots; each has said how many requests it computes at once."""
    made = dispatcher()
    for name, batch in zip("abcdefgh", batches, strict=False):
        made.on(ReplicaJoined(Replica(id=name, url=f"http://{name}", model="m")), 0.0)
        made.on(Probed(name, ok=True), 0.0)
        made.on(Reported(name, batch=batch), 0.0)
    return made


def sent(made: Dispatcher, count: int, now: float = 1.0) -> list[str]:
    """Ids of those of `count` requests that are sent at once."""
    return placed(send(made, *(request("slow", at=now) for _ in range(count))))


def test_a_replica_gets_no_more_than_its_engine_says_it_computes_at_once() -> None:
    assert len(sent(unsized(4), 10)) == 4


def test_an_engine_that_says_more_than_is_known_to_be_good_starts_where_any_other_does() -> None:
    made = unsized(256)
    assert made.index.loads["a"].limit == 64


def test_what_is_found_by_watching_never_passes_what_the_engine_says() -> None:
    made = unsized(100)
    found = made.book.entries["a"].found
    assert found is not None
    for number in range(20_000):
        found.observe(0.1, 10, 0.01, 200, number * 0.01)
    assert 64 < found.limit <= 100


def test_configured_slots_are_never_replaced() -> None:
    made = dispatcher(8)
    made.on(Reported("a", batch=2), 0.0)
    assert made.index.loads["a"].limit == 8


def test_a_restart_with_another_batch_is_followed_while_requests_run() -> None:
    made = unsized(4)
    running = sent(made, 6)
    assert len(running) == 4
    commands = made.on(Reported("a", batch=6), 2.0)
    assert len(placed(commands)) == 2
    made.on(Reported("a", batch=1), 3.0)
    assert made.index.loads["a"].requests == 6
    for name in running + placed(commands):
        made.on(Ended(name, Outcome.COMPLETED), 4.0)
    assert made.index.loads["a"].requests == 0
    assert len(sent(made, 3, 5.0)) == 1


def test_an_engine_that_says_nothing_more_keeps_what_it_said() -> None:
    made = unsized(4)
    made.on(Reported("a"), 1.0)
    assert made.index.loads["a"].limit == 4
    made.on(ReplicaJoined(Replica(id="a", url="http://a", model="m", weight=2.0, slots=9)), 2.0)
    made.on(ReplicaJoined(Replica(id="a", url="http://a", model="m")), 3.0)
    assert made.index.loads["a"].limit == 4


def test_full_memory_with_a_queue_gets_no_more_until_it_has_room() -> None:
    made = unsized(16, 16)
    made.on(Reported("a", batch=16, kv_ratio=0.97, waiting=2.0), 0.5)
    assert len(sent(made, 20)) == 17  # one at a, which was idle, and all that b takes
    assert made.index.loads["a"].requests == 1
    commands = made.on(Reported("a", batch=16, kv_ratio=0.6, waiting=0.0), 2.0)
    assert len(placed(commands)) == 3


def test_full_memory_alone_or_a_queue_alone_is_no_reason() -> None:
    for kv_ratio, waiting in ((1.0, 0.0), (1.0, None), (0.5, 9.0), (None, 9.0)):
        made = unsized(16)
        made.on(Reported("a", kv_ratio=kv_ratio, waiting=waiting), 0.5)
        assert len(sent(made, 16)) == 16


def test_a_scrape_that_fails_ends_it() -> None:
    made = unsized(16)
    made.on(Reported("a", kv_ratio=1.0, waiting=5.0), 0.5)
    assert len(sent(made, 3)) == 1
    assert len(placed(made.on(Reported("a"), 1.0))) == 2


def test_a_report_of_a_replica_that_has_left_counts_for_nothing() -> None:
    made = unsized(4)
    assert made.on(Reported("gone", batch=5, kv_ratio=1.0, waiting=3.0), 1.0) == []
    assert list(made.book.entries) == ["a"]
