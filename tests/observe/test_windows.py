from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.measure.windows import E2E, PART_S, TTFT, WINDOWS, Window
from headgate.model.quantile import GRID

T0 = 1000.0

steps = st.lists(
    st.tuples(
        st.floats(min_value=0.0, max_value=900.0), st.lists(st.floats(min_value=0.0, max_value=100.0), max_size=4)
    ),
    max_size=30,
)


@settings(deadline=None)
@given(steps, st.floats(min_value=0.0, max_value=PART_S))
def test_windows_hold_exactly_what_happened_in_their_parts(
    steps: list[tuple[float, list[float]]], phase_s: float
) -> None:
    quick, plain = Window(T0, phase_s, totals=True), Window(T0, phase_s)
    now, all_of_it = T0, []
    for wait_s, values in steps:
        now += wait_s
        for window in (quick, plain):
            window.roll(now)
            for value in values:
                window.current.counts.requests += 1
                window.current.buckets[E2E][GRID.index(value)] += 1
        all_of_it += [(now, value) for value in values]
    for window_s in WINDOWS:
        begins = now - quick.span_s(window_s, now)
        assert window_s - (60 if window_s == 3600 else PART_S) - 1e-6 <= now - begins <= window_s + 1e-6
        expected = sorted(GRID.index(value) for at, value in all_of_it if at >= begins - 1e-9)
        for window in (quick, plain):
            sketch = window.sketch(E2E, window_s)
            assert sorted(index for index, n in sketch.buckets.items() for _ in range(n)) == expected
            assert window.counts(window_s).requests == len(expected)
            assert window.sketch(TTFT, window_s).count == 0
