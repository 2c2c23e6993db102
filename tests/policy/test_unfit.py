"""Requests for what only some replicas of a model have."""

from headgate.model.event import AttemptFailed, Dispatch, Ended
from headgate.model.outcome import Outcome
from headgate.replay.replay import request_of
from tests.policy.test_dispatcher import dispatcher, placed, request, send


def test_it_goes_only_to_those_that_have_it_however_loaded_they_are() -> None:
    made = dispatcher(8, 8, 8)
    for _ in range(8):
        (sent,) = send(made, request().but(unfit=frozenset({"a", "c"})))
        assert isinstance(sent, Dispatch)
        assert sent.replica_id == "b"


def test_it_waits_for_one_of_them_while_others_have_room() -> None:
    made = dispatcher(1, 1)
    first, second = (request().but(unfit=frozenset({"a"})) for _ in range(2))
    assert placed(send(made, first, second)) == [first.id]
    (sent,) = made.on(Ended(first.id, Outcome.COMPLETED, (10, 5)), 0.1)
    assert isinstance(sent, Dispatch)
    assert (sent.request_id, sent.replica_id) == (second.id, "b")


def test_not_even_when_all_that_have_it_have_failed() -> None:
    made = dispatcher(1, 1, no_replica_wait_s=1.0)
    asked = request().but(unfit=frozenset({"a"}))
    assert placed(send(made, asked)) == [asked.id]
    told = []
    for now in (0.1, 0.15, 0.2):
        told += made.on(AttemptFailed(asked.id, "b", Outcome.REPLICA_FAILED), now)
    assert [one.replica_id for one in told if isinstance(one, Dispatch)] == ["b", "b"]


def test_a_recorded_request_is_read_as_it_was() -> None:
    asked = request().but(unfit=frozenset({"a"}))
    assert request_of({**asked.fields(), "prefix": [], "unfit": ["a"]}) == asked
    before = {name: value for name, value in asked.fields().items() if name != "unfit"}
    assert request_of({**before, "prefix": []}).unfit == frozenset()
