"""Requests that still run, as neighbours of others."""

from types import SimpleNamespace
from typing import Any

from headgate.explain.neighbours import prefill_share
from headgate.measure.underway import neighbours_at


def ticket(
    name: str, replica: str | None, *, first_at: float | None = None, stream: bool = True, sent: bool = True
) -> Any:
    request = SimpleNamespace(id=name, tenant="t", lane="fast", prompt_tokens=100, output_each=50, stream=stream)
    return SimpleNamespace(
        accepted=SimpleNamespace(request=request),
        timeline=SimpleNamespace(replica=None if replica is None else SimpleNamespace(id=replica), since=2.0),
        so_far=lambda now: SimpleNamespace(first_at=first_at, events=7) if sent else None,
    )


def test_those_at_the_replicas_asked_for_are_told_with_what_they_hold() -> None:
    tickets = [
        ticket("here", "a", first_at=3.0),
        ticket("also here", "a"),
        ticket("there", "b"),
        ticket("elsewhere", "c"),
        ticket("waits", None, sent=False),
        ticket("waits again", "a", sent=False),
    ]
    found = neighbours_at({one.accepted.request.id: one for one in tickets}, {"a", "b"}, 10.0)
    assert {name: [one.id for one in there] for name, there in found.items()} == {
        "a": ["here", "also here"],
        "b": ["there"],
    }
    here, also = found["a"]
    assert (here.replica, here.tenant, here.lane) == ("a", "t", "fast")
    assert (here.tokens, here.context) == (100, 107)
    assert (here.sent_at, here.first_at, here.ended_at) == (2.0, 3.0, 10.0)
    assert also.first_at == 10.0


def test_an_answer_in_one_piece_may_have_begun_before_anything_is_heard() -> None:
    (one,) = neighbours_at({"w": ticket("w", "a", stream=False)}, {"a"}, 10.0)["a"]
    assert one.first_at == 2.0 + 8.0 * prefill_share(100, 50)
