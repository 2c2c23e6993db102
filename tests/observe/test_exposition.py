from headgate.observe.exposition import Family, Page, number


def test_numbers_are_written_as_prometheus_reads_them() -> None:
    assert [number(value) for value in (3, 0.25, 1e-7, 1e22)] == ["3", "0.25", "1e-07", "1e+22"]
    assert [number(value) for value in (float("inf"), float("-inf"), float("nan"))] == ["+Inf", "-Inf", "NaN"]


def test_help_may_have_several_lines() -> None:
    page = Page()
    page.sample(Family("a", "gauge", "one\ntwo \\ three"), (), 1)
    assert page.render() == b"# HELP a one\\ntwo \\\\ three\n# TYPE a gauge\na 1\n"
    assert page.render() == b""


def test_what_is_remembered_of_label_sets_has_an_end() -> None:
    page, family = Page(), Family("a", "gauge", "help", "replica")
    for name in range(2000):
        page.sample(family, (f"replica-{name}",), 1.0)
        page.render()
    (section,) = page._sections.values()
    assert len(section.starts) < 200
