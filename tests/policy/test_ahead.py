"""When the next step can begin, and how long the last one took, while steps are planned ahead."""

import pytest

from headgate.policy.batching.ahead import StepsAhead
from headgate.policy.batching.estimate import StepShape, StepTime

SHAPE = StepShape(9, 1, 0)  # 11 ms
MILLI = StepTime((0.001, 0.001, 0.001, 0.0))


def test_with_nothing_under_way_a_step_begins_now() -> None:
    ahead = StepsAhead(MILLI)
    assert ahead.free_at(5.0) == 5.0
    assert ahead.last_token_at("a", 4.0, 5.0) == 4.0


def test_a_step_begins_when_those_before_it_are_back() -> None:
    ahead = StepsAhead(MILLI)
    one, two = object(), object()
    ahead.sent(one, SHAPE, 1.0, frozenset({"a"}))
    assert ahead.free_at(1.002) == pytest.approx(1.011)
    ahead.sent(two, SHAPE, 1.002, frozenset({"b"}))
    assert len(ahead) == 2
    assert ahead.free_at(1.003) == pytest.approx(1.022)
    assert ahead.free_at(2.0) == 2.0  # late already: any moment
    back = ahead.back(one, 1.020)
    assert back is not None
    assert back.began == 1.0
    assert back.took_s == pytest.approx(0.020)
    assert back.predicted_s == pytest.approx(0.011)
    assert back.gives == {"a"}
    assert back.shape is SHAPE
    assert ahead.free_at(1.021) == pytest.approx(1.031)
    back = ahead.back(two, 1.030)
    assert back is not None
    assert back.began == 1.020  # it could not begin before the first was back
    assert back.took_s == pytest.approx(0.010)


def test_the_newest_token_of_a_stream_may_still_come() -> None:
    ahead = StepsAhead(MILLI)
    ahead.sent("one", SHAPE, 1.0, frozenset({"a", "b"}))
    ahead.sent("two", SHAPE, 1.0, frozenset({"a"}))
    assert ahead.last_token_at("a", 0.9, 1.001) == pytest.approx(1.022)
    assert ahead.last_token_at("b", 0.9, 1.001) == pytest.approx(1.011)
    assert ahead.last_token_at("c", 0.9, 1.001) == 0.9
    assert ahead.last_token_at("b", 0.9, 1.5) == 1.5


def test_steps_that_never_come_back_are_lost() -> None:
    ahead = StepsAhead(MILLI)
    ahead.sent("one", SHAPE, 1.0, frozenset())
    ahead.sent("two", SHAPE, 1.0, frozenset())
    back = ahead.back("two", 1.5)
    assert back is not None
    assert back.began == 1.0
    assert len(ahead) == 0
    assert ahead.back("three", 2.0) is None
    ahead.sent("four", SHAPE, 3.0, frozenset())
    assert ahead.back("five", 4.0) is None
    assert ahead.free_at(4.0) == 4.0
