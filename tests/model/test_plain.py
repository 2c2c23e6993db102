"""Numbers for people have no exponents."""

from math import inf, nan

import pytest

from headgate.model.labels import plain


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1000.0, "1000"),
        (1234.0, "1234"),
        (999.6, "1000"),
        (100.0, "100"),
        (10.0, "10"),
        (12.345, "12.3"),
        (0.5, "0.5"),
        (0.000012, "0.000012"),
        (-2_678_400.0, "-2678400"),
        (inf, "inf"),
        (nan, "nan"),
        (1e300, "1e+300"),
    ],
)
def test_three_digits_that_count_and_no_exponent(value: float, text: str) -> None:
    assert plain(value) == text


def test_more_digits_where_a_number_is_given_by_a_person() -> None:
    assert plain(1_500_000.0, 6) == "1500000"
    assert plain(0.12345678, 6) == "0.123457"
