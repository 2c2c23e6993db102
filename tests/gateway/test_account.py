"""What a record says of a request: its stages, its pace, and what was changed for it."""

import pytest

from headgate.gateway.account import Account, RequestTimeline, Summary
from headgate.model.outcome import Outcome
from headgate.model.record import Record
from headgate.model.replica import Replica
from tests.gateway.test_output import accepted


def summary(first_at: float | None = None, last_at: float | None = None, cached_tokens: int | None = 0) -> Summary:
    return Summary(
        outcome=Outcome.COMPLETED, status=200, error=None, usage=(5, 11), cached_tokens=cached_tokens, timings=None,
        events=11, sent_at=2.0, first_at=first_at, last_at=last_at, gaps=(), stalled_s=0.25,
    )  # fmt: skip


def record(timeline: RequestTimeline, how: Summary | None, now: float, account: Account | None = None) -> Record:
    account = account or Account()
    account.open()
    account.end(timeline, Outcome.COMPLETED, how, (5, 11), None, now, 200)
    assert account.open_now == 0
    return account.records[-1]


def test_the_stages_of_a_request_make_up_its_time_and_its_pace_is_seconds_for_a_token() -> None:
    timeline = RequestTimeline(accepted({"stream": True}), 0.5)
    timeline.send(Replica(id="a", url="http://a"), 2.0)
    told = record(timeline, summary(3.0, 8.0), 8.25)
    assert (told.accept_s, told.queue_s, told.retry_s) == (0.5, 1.5, 0.0)
    assert (told.first_s, told.stream_s, told.end_s) == (1.0, 5.0, 0.25)
    assert (told.ttft_s, told.tpot_s, told.e2e_s) == (3.0, 0.5, 8.25)
    assert told.stalled_s == 0.25


@pytest.mark.parametrize(("said", "counts"), [(None, 0), (0, 0), (4, 4), (5, 5), (99_000_000, 5)])
def test_no_more_of_a_prompt_was_cached_than_it_had(said: int | None, counts: int) -> None:
    timeline = RequestTimeline(accepted({"stream": True}), 0.5)
    timeline.send(Replica(id="a", url="http://a"), 2.0)
    told = record(timeline, summary(3.0, 8.0, said), 8.25)
    assert (told.prompt_tokens, told.cached_tokens) == (5, counts)


def test_one_that_was_sent_nowhere_has_waited_until_its_end() -> None:
    told = record(RequestTimeline(accepted({}), 0.5), None, 4.0)
    assert (told.accept_s, told.queue_s, told.first_s, told.e2e_s) == (0.5, 3.5, 0.0, 4.0)
    assert (told.ttft_s, told.tpot_s, told.stalled_s) == (None, None, 0.0)


def test_it_tells_the_cap_that_a_task_set_and_not_the_clients_own() -> None:
    assert record(RequestTimeline(accepted({}), 0.0), None, 1.0).cap == 384
    assert record(RequestTimeline(accepted({"max_tokens": 30}), 0.0), None, 1.0).cap == 0


def test_the_name_of_an_adapter_is_told_as_one() -> None:
    account = Account()
    assert record(RequestTimeline(accepted({}), 0.0), None, 1.0, account).adapter == ""
    account.know_adapters(frozenset({"other"}))
    assert record(RequestTimeline(accepted({}), 0.0), None, 1.0, account).adapter == ""
    account.know_adapters(frozenset({"other", "m"}))
    assert record(RequestTimeline(accepted({}), 0.0), None, 1.0, account).adapter == "m"
    assert account.ended == {("slow", Outcome.COMPLETED): 3}
