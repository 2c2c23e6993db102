import pytest

from headgate.metrics.exposition import Exposition, Family, number, wants_open


def test_numbers_are_written_as_prometheus_reads_them() -> None:
    assert [number(value) for value in (3, 0.25, 1e-7, 1e22)] == ["3", "0.25", "1e-07", "1e+22"]
    assert [number(value) for value in (float("inf"), float("-inf"), float("nan"))] == ["+Inf", "-Inf", "NaN"]


def test_help_may_have_several_lines() -> None:
    page = Exposition()
    page.sample(Family("a", "gauge", "one\ntwo \\ three"), (), 1)
    assert page.render() == b"# HELP a one\\ntwo \\\\ three\n# TYPE a gauge\na 1\n"
    assert page.render() == b""


def test_what_is_remembered_of_label_sets_has_an_end() -> None:
    page, family = Exposition(), Family("a", "gauge", "help", "replica")
    for name in range(2000):
        page.sample(family, (f"replica-{name}",), 1.0)
        page.render()
    (section,) = page._sections.values()
    assert len(section.starts) < 200


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", True),
        ("application/openmetrics-text, text/plain", True),
        ("Application/OpenMetrics-Text ; q=1", True),
        ("text/plain;q=1, application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.0, text/html", False),
        ("application/openmetrics-text;q=0.4, */*;q=0.9", False),
        ("application/openmetrics-text;q=0.4, text/*;q=0.9", False),
        ("application/openmetrics-text;q=0.5, text/plain;q=0.2, */*", True),
        ("application/openmetrics-text;q=high, text/plain;q=0.1", False),
        ("application/openmetrics-text;q=nan, text/plain;q=0.1", False),
        ("application/openmetrics-textual", False),
        ("text/plain;x=application/openmetrics-text", False),
        (
            "application/openmetrics-text;q=0.2, application/openmetrics-text;version=1.0.0;q=0.8, text/plain;q=0.5",
            True,
        ),
        ("*/*", False),
        (",;,q=1", False),
        ("", False),
    ],
)
def test_open_metrics_is_for_those_who_want_it_more(accept: str, wanted: bool) -> None:
    assert wants_open(accept) is wanted
