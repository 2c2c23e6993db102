"""From figures to lines: no clock, no server."""

import pytest

from headgate.bench.lines import Alone, Level, Prefill, advise, next_level, prefill_of


def level(concurrency: int, ttft_ms: float, tokens_per_s: float = 0.0, failed: int = 0) -> Level:
    return Level(concurrency, 50, ttft_ms / 2e3, ttft_ms / 1e3, 0.01, 0.02, tokens_per_s or 100.0 * concurrency, failed)


def measured(fixed_s: float, token_s: float, lengths: tuple[int, ...] = (16, 64, 256, 1024, 4096)) -> list[Alone]:
    """With one slow outlier each, which a median shrugs off."""
    return [Alone(n, (fixed_s + token_s * n) * noise) for n in lengths for noise in (0.97, 1.0, 3.0)]


@pytest.mark.parametrize(("fixed_s", "token_s"), [(0.05, 1e-4), (0.01, 5e-6), (0.5, 0.006)])
def test_the_law_behind_the_times_is_found(fixed_s: float, token_s: float) -> None:
    found = prefill_of(measured(fixed_s, token_s))
    assert found.fixed_s == pytest.approx(fixed_s, rel=0.01)
    assert found.token_s == pytest.approx(token_s, rel=0.01)
    assert found.dominates_from == pytest.approx(fixed_s / token_s, rel=0.02)


def test_where_all_is_prefill_the_line_is_at_the_beginning() -> None:
    found = prefill_of([Alone(n, 0.006 * n) for n in (16, 64, 256)])
    assert found.token_s == pytest.approx(0.006)
    assert found.dominates_from == 1


def test_where_length_makes_no_difference_there_is_no_line() -> None:
    found = prefill_of([Alone(n, 0.02) for n in (16, 64, 256)])
    assert found.dominates_from is None
    advice = advise(found, [level(1, 20)], 0.5, None, 2.0)
    assert advice.fast_below_tokens == 1024
    assert "never" in advice.why[0]


def test_one_length_says_nothing() -> None:
    with pytest.raises(ValueError, match="two lengths"):
        prefill_of([Alone(16, 0.1), Alone(16, 0.2)])


def test_levels_double_until_the_promise_breaks_and_then_close_in() -> None:
    broken_from = 23
    levels: list[Level] = []
    while (many := next_level(levels, 0.5, None, 256)) is not None:
        levels.append(level(many, 100 if many < broken_from else 900))
    asked = [one.concurrency for one in levels]
    assert asked == [1, 2, 4, 8, 16, 32, 24, 20, 22]
    assert advise(Prefill(0.05, 1e-4, 16, 4096), levels, 0.5, None, 2.0).slots == 22


def test_it_stops_where_more_at_once_brings_nothing_more() -> None:
    levels: list[Level] = []
    while (many := next_level(levels, 0.5, None, 256)) is not None:
        levels.append(level(many, 10, tokens_per_s=min(many, 8) * 100.0))
    assert [one.concurrency for one in levels] == [1, 2, 4, 8, 16, 32]


def test_a_level_that_fails_requests_is_too_much_however_fast_the_rest_are() -> None:
    assert not level(4, 10, failed=1).keeps(0.5, None)
    assert not level(4, 10).keeps(0.5, 0.01), "slow between tokens"


def test_a_promise_that_one_alone_breaks_is_said_to_be_impossible() -> None:
    levels = [level(1, 900)]
    assert next_level(levels, 0.5, None, 256) is None
    advice = advise(Prefill(0.9, 1e-4, 16, 4096), levels, 0.5, None, 2.0)
    assert advice.slots is None
    assert "not kept even by one" in advice.why[-1]


def test_what_can_not_break_the_promise_is_short_though_prefill_dominates() -> None:
    """5 ms and 50 µs a token: from 100 tokens on prefill is most of it, but 2 000 tokens take only 100 ms."""
    advice = advise(Prefill(0.005, 5e-5, 16, 8192), [level(1, 20)], 0.5, None, 2.0)
    assert advice.fast_below_tokens == 2000
    assert advice.long_above_tokens == 4 * 8192, "39 900 by the law, further than what was measured carries"
