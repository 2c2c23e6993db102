"""Tables, files and pages say what the rows say."""

import io
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from headgate.model.errors import StartupError
from headgate.report import arrivals, goodput, html_page, json_file, table
from headgate.report.results import Results, Rows, Target
from headgate.report.summary import kept, summarise
from tests.report.made import LANES, made

VLLM_KEYS = {
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "request_goodput", "output_throughput", "total_token_throughput", "input_lens", "output_lens", "ttfts", "itls",
    "latencies", "start_times", "errors", "max_concurrent_requests", "num_prompts", "request_rate",
    *(f"{stat}_{name}_ms" for stat in ("mean", "median", "std", "p50", "p90", "p95", "p99", "p99.9")
      for name in ("ttft", "tpot", "itl", "e2el")),
}  # fmt: skip


def small() -> Results:
    rows = Rows()
    rows.add(
        at_s=1.0, lane="fast", ttft_s=0.3, tpot_s=0.02, max_gap_s=0.03, e2e_s=0.5, output_tokens=11, prompt_tokens=7
    )
    rows.add(at_s=0.0, lane="slow", ttft_s=0.1, e2e_s=2.0, output_tokens=1, prompt_tokens=5)
    rows.add(at_s=0.5, lane="fast", kind="refused", why="503 lane_full", e2e_s=0.001)
    rows.add(at_s=0.6, lane="fast", kind="refused", why="429 over_limit", e2e_s=0.001)
    rows.add(at_s=0.7, lane="fast", kind="failed", why="502 replica_failed", e2e_s=0.4, output_tokens=3)
    rows.add(at_s=0.8, lane="fast", kind="client", why="400 invalid", e2e_s=0.4)
    return rows.results("small", source="bench", goodput=goodput.parse(["ttft:200", "fast.ttft:400"]))


def printed(results: Results, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    table.show(results, summarise(results), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_counts_are_exact() -> None:
    results = small()
    assert results.at_s.tolist() == [0.0, 0.5, 0.6, 0.7, 0.8, 1.0]
    assert results.lanes == ("fast", "slow")
    assert results.duration_s == 2.0
    found = summarise(results)
    fast, slow, everything = found["fast"], found["slow"], found[""]
    assert (fast.requests, fast.completed, fast.refused, fast.failed) == (5, 1, 2, 2)
    assert (fast.refused_429, fast.refused_503) == (1, 1)
    assert (slow.requests, slow.completed, slow.refused, slow.failed) == (1, 1, 0, 0)
    assert everything.reasons == {"400 invalid": 1, "429 over_limit": 1, "502 replica_failed": 1, "503 lane_full": 1}
    assert everything.output_tokens == 12
    assert everything.output_tokens_per_s == 6.0
    assert "tpot" not in slow.figures
    assert "queue" not in everything.figures
    assert everything.figures["ttft"].levels[0.5].value == pytest.approx(0.2)


def test_goodput_is_of_all_requests_and_a_lane_may_have_its_own_limit() -> None:
    found = summarise(small())
    assert found["fast"].good is not None
    assert found["fast"].good.value == 0.2  # 300 ms is within the lane's 400
    assert found["slow"].good is not None
    assert found["slow"].good.value == 1.0
    assert found[""].good_per_s == 1.0


@pytest.mark.parametrize("wrong", ["ttft", "ttft=5", "tfft:5", "ttft:fast", "ttft:-5"])
def test_goodput_that_can_not_be_read(wrong: str) -> None:
    with pytest.raises(StartupError, match="--goodput"):
        goodput.parse([wrong])


def test_goodput_speaks_vllms_names() -> None:
    assert goodput.parse(["ttft:500 tpot:80", "batch.e2el:60000"]) == (
        Target("ttft", 0.5),
        Target("tpot", 0.08),
        Target("e2e", 60.0, "batch"),
    )


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_has_every_lane_and_fits(width: int) -> None:
    said = printed(made(1, notes=("beware",)), width)
    for lane in (*LANES, "all lanes"):
        assert re.search(rf"^{lane}  .*requests", said, re.MULTILINE)
    for word in ("TTFT", "TPOT", "max gap", "e2e", "p50", "p99.9", "429: ", "503: ", "! beware", "≤700"):
        assert word in said
    assert max(len(line) for line in said.splitlines()) <= width
    assert "queue" not in said


def test_nothing_completed_is_said() -> None:
    rows = Rows()
    rows.add(at_s=0.0, lane="fast", kind="failed", why="gone")
    results = rows.results("bad", source="bench")
    assert "nothing was completed" in printed(results, 80)
    assert "Nothing was completed" in html_page.render([results])
    assert json_file.as_dict(results, summarise(results))["mean_ttft_ms"] == 0.0


def test_no_request_at_all_is_no_trouble() -> None:
    results = Rows().results("none", source="bench")
    assert "0 requests" in printed(results, 80)
    assert "none" in html_page.render([results])
    assert "none" in html_page.render([results, results])


def test_the_file_has_the_keys_people_know(tmp_path: Path) -> None:
    results = made(1)
    path = tmp_path / "out.json"
    json_file.write(path, results, summarise(results), more={"model_id": "m"})
    data = json.loads(path.read_text())
    assert set(data) >= VLLM_KEYS
    assert data["completed"] + data["failed"] == data["num_prompts"] == len(results) == 900
    assert data["failed"] == (results.kind != 0).sum()
    for name in ("ttfts", "itls", "input_lens", "output_lens", "errors", "latencies", "start_times"):
        assert len(data[name]) == 900
    assert data["p99_ttft_ms"] == pytest.approx(np.quantile(results.values("ttft"), 0.99) * 1e3)
    assert data["request_goodput"] == pytest.approx(results.good.sum() / results.duration_s)
    assert set(data["headgate"]["lanes"]) == set(LANES)
    value, low, high = data["headgate"]["lanes"]["fast"]["figures"]["ttft"]["p95_ms"]
    assert low < value < high
    assert data["model_id"] == "m"


def test_what_is_written_can_be_read_again(tmp_path: Path) -> None:
    results = made(1, notes=("beware",))
    path = tmp_path / "out.json"
    json_file.write(path, results, summarise(results))
    again = json_file.read(path)
    assert again.lanes == results.lanes
    for name in ("ttft", "tpot", "max_gap", "e2e", "queue", "lag", "at"):
        np.testing.assert_allclose(again.figure(name), results.figure(name), atol=1e-6)
    assert again.kind.tolist() == results.kind.tolist()
    assert [again.reasons[i] for i in again.why] == [results.reasons[i] for i in results.why]
    assert again.goodput == results.goodput
    assert again.promises == results.promises
    assert (again.title, again.facts, again.notes) == (results.title, results.facts, results.notes)
    assert again.duration_s == results.duration_s


def test_vllms_own_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(
        json.dumps(
            {
                "duration": 3.0,
                "ttfts": [0.1, 0.2, 0.0],
                "itls": [[0.02, 0.04], [0.03], []],
                "output_lens": [3, 2, 0],
                "input_lens": [5, 6, 7],
                "errors": ["", "", "Service Unavailable"],
            }
        )
    )
    results = json_file.read(path)
    assert results.kind.tolist() == [0, 0, 2]
    assert results.values("ttft").tolist() == [0.1, 0.2]
    assert results.values("tpot").tolist() == pytest.approx([0.03, 0.03])
    assert results.values("max_gap").tolist() == [0.04, 0.03]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "is no JSON"),
        ("[]", "no figures of single requests"),
        ('{"completed": 5}', "--save-detailed"),
        ('{"ttfts": [], "errors": [], "headgate": {"schema": 99}}', "schema 99"),
        ('{"ttfts": [1], "errors": [""], "headgate": {"schema": 1}}', "damaged"),
        ('{"ttfts": [1], "errors": [""]}', "damaged"),
    ],
)
def test_files_that_can_not_be_read_say_why(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "in.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StartupError, match=said):
        json_file.read(path)


def test_places_that_can_not_be_written_say_why(tmp_path: Path) -> None:
    results = small()
    with pytest.raises(StartupError, match="can't be written"):
        json_file.write(tmp_path / "no" / "x.json", results, summarise(results))
    with pytest.raises(StartupError, match="can't be written"):
        html_page.write(tmp_path / "no" / "x.html", [results])


def test_the_page_needs_nothing_else_and_has_every_lane() -> None:
    page = html_page.render([made(1, title="a <b> & c", notes=("beware <i>",))])
    assert "<title>a &lt;b&gt; &amp; c</title>" in page
    assert "beware &lt;i&gt;" in page
    for lane in (*LANES, "all lanes"):
        assert re.search(rf"<h3>.*{lane}</h3>", page)
    addresses = set(re.findall(r"https?://[^\"'< ]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}, "it would fetch something"
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawn) > 7
    for one in drawn:
        ElementTree.fromstring(one)
        assert "nan" not in one
    assert "fast p95 ≤ 700 ms" in page
    assert "prefers-color-scheme" in page or "light-dark(" in page


def test_several_results_stand_side_by_side() -> None:
    page = html_page.render([made(1, 4000), made(2, 4000, factor=1.5)], names=["before", "after & later"])
    assert "before → after &amp; later" in page
    assert "What differs" in page
    assert '<tr class="real"><td>p50 TTFT fast</td>' in page
    for lane in LANES:
        assert f"<h2>Percentiles: {lane} <small>of the served</small></h2>" in page
    for one in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(one)


def test_a_page_of_many_requests_stays_small() -> None:
    assert len(html_page.render([made(1, 20_000)])) < 400_000


def test_rows_that_come_together_are_one() -> None:
    a, b = Rows(), Rows()
    a.add(at_s=1.0, lane="fast", ttft_s=0.1, e2e_s=1.0)
    b.add(at_s=0.0, lane="slow", kind="failed", why="x", e2e_s=1.0)
    b.add(at_s=2.0, lane="fast", ttft_s=0.3, e2e_s=1.0)
    a.extend(b)
    results = a.results("both", source="bench")
    assert results.values("ttft", "fast").tolist() == [0.1, 0.3]
    assert [results.reasons[i] for i in results.why] == ["x", "", ""]
    assert [results.lanes[i] for i in results.lane] == ["slow", "fast", "fast"]


# -- refused is not served -----------------------------------------------------------------------------------------


def flooded(*, limited: int = 0, streamed: int = 339) -> Results:
    """520 of 859 refused, the rest served in time; `streamed` of those have a first token of their own."""
    made = Rows()
    for number in range(339):
        first = 0.1 if number < streamed else None
        made.add(at_s=number / 10, lane="fast", ttft_s=first, tpot_s=0.02, max_gap_s=0.03, e2e_s=1.0, output_tokens=40)
    for number in range(520):
        made.add(at_s=number / 16, lane="fast", kind="refused", why="503 would_wait_too_long", e2e_s=0.001)
    for _ in range(limited):
        made.add(at_s=1.0, lane="fast", kind="refused", why="429 over_limit", e2e_s=0.001)
        made.add(at_s=1.0, lane="fast", kind="client", why="400 invalid", e2e_s=0.001)
    return made.results("flood", source="bench", promises=[Target("ttft", 0.5, "fast", 0.5)])


def test_a_promise_is_not_kept_by_refusing_most_of_a_lane() -> None:
    results = flooded(limited=100)
    fast = summarise(results)["fast"]
    assert (fast.asked, fast.missed) == (859, 520)
    assert fast.availability == pytest.approx(339 / 859)
    assert fast.figures["ttft"].levels[0.5].value == pytest.approx(0.1)
    assert fast.arrivals["ttft"] == {0.5: math.inf, 0.9: math.inf, 0.95: math.inf, 0.99: math.inf, 0.999: math.inf}
    assert kept(fast, results.promises[0]) is False
    said = printed(results, 100)
    assert "answered 39.5" in said
    assert " of all " in said
    assert "missed" in said
    assert "✗≤500" in said
    assert "of the served; of all: all arrivals, 520 of which got no answer" in said
    assert max(len(line) for line in printed(results, 80).splitlines()) <= 80
    written = msgspec.json.decode(msgspec.json.encode(json_file.as_dict(results, summarise(results))))["headgate"][
        "all"
    ]
    assert written["availability"] == pytest.approx(339 / 859)
    assert written["arrivals"]["ttft"] == {
        "p50_ms": None, "p90_ms": None, "p95_ms": None, "p99_ms": None, "p99.9_ms": None,
        "missed": ["p50", "p90", "p95", "p99", "p99.9"],
    }  # fmt: skip
    page = html_page.render([results])
    assert "TTFT, served" in page
    assert "TTFT, all arrivals" in page
    assert "39.5" in page


def test_of_the_refused_as_many_miss_a_figure_as_of_the_answered_have_it() -> None:
    """One in ten was streamed: the refused are no more."""
    served, missed = arrivals.arrivals(flooded(streamed=34), "ttft", "fast")
    assert len(served) == 34
    assert missed == pytest.approx(520 * 34 / 339)


def test_without_an_answer_to_anybody_everything_is_missed() -> None:
    made = Rows()
    for number in range(30):
        made.add(at_s=number, lane="fast", kind="failed", why="503 no_replica", e2e_s=0.001)
    results = made.results("outage", source="bench", promises=[Target("ttft", 0.5, "fast", 0.95)])
    fast = summarise(results)["fast"]
    assert fast.availability == 0.0
    assert kept(fast, results.promises[0]) is False
    assert "nothing was completed, 30 got no answer: every promise is missed" in printed(results, 100)


def test_what_was_cut_off_got_no_answer_either_and_where_nobody_asked_nothing_is_known() -> None:
    made = Rows()
    made.add(at_s=0.0, lane="fast", kind="client", why=arrivals.CUT_OFF)
    made.add(at_s=0.0, lane="slow", kind="client", why="400 invalid")
    found = summarise(made.results("x", source="bench"))
    assert (found["fast"].availability, found["slow"].availability) == (0.0, None)
    assert kept(found["slow"], Target("ttft", 0.5, "slow", 0.95)) is None


def test_over_all_arrivals_is_over_the_served_where_all_were() -> None:
    values = np.array([0.1, 0.2, 0.3, 0.4])
    for level in (0.0, 0.5, 0.95, 1.0):
        assert arrivals.quantile(values, 0.0, level) == pytest.approx(float(np.quantile(values, level)))
    assert arrivals.quantile(values, 1.0, 0.5) == pytest.approx(0.3)
    assert arrivals.quantile(values, 1.0, 0.9) == math.inf
    assert arrivals.quantile(values[:1], 0.0, 0.99) == pytest.approx(0.1)
    assert math.isnan(arrivals.quantile(values[:0], 0.0, 0.5))
