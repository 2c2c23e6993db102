import json
from dataclasses import replace
from typing import Any

import pytest

from headgate.config.gateway import GatewayConfig, ObserveConfig
from headgate.export.grafana import dashboard
from headgate.model.lane import LANES
from tests.export.promql import queries

PRICED = GatewayConfig(observe=ObserveConfig(price_per_replica_hour=2.5))


def panels(config: GatewayConfig = PRICED) -> list[dict[str, Any]]:
    return [p for top in json.loads(dashboard(config))["panels"] for p in (top, *top.get("panels", ()))]


def test_it_is_a_dashboard_that_asks_for_its_prometheus_and_its_lanes() -> None:
    model = json.loads(dashboard(GatewayConfig()))
    assert (model["uid"], model["schemaVersion"]) == ("headgate", 39)
    source, lane = model["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("DS_PROMETHEUS", "datasource", "prometheus")
    assert (lane["name"], lane["query"]["query"]) == ("lane", "label_values(headgate_waiting, lane)")
    for panel in panels():
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
            assert panel["targets"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_panels_have_ids_of_their_own_and_none_lies_on_another() -> None:
    everything = panels()
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert all(x < 24 for x, _ in cells)
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize(
    "words",
    [
        "headgate_time_to_first_token_seconds_bucket", "headgate_time_per_output_token_seconds_bucket",
        "headgate_request_duration_seconds_bucket", "headgate_queue_seconds_bucket", "headgate_waiting{",
        "headgate_refusals_total", "headgate_errors_total", "headgate_replica_usable", "headgate_error_budget_burn",
        "headgate_little_residual", "headgate_loop_lag_seconds", "headgate_utilisation",
        "headgate_cost_per_1000_tokens", "headgate_slo_state",
        "headgate_sla_compliance", "headgate_cold_requests_total", "headgate_retries_total",
    ],
)  # fmt: skip
def test_it_covers(words: str) -> None:
    assert any(words in query for query in queries(dashboard(PRICED)))


def test_cost_is_shown_only_where_there_is_a_price() -> None:
    assert not any("cost" in query for query in queries(dashboard(GatewayConfig())))


def test_every_promise_is_a_dashed_line_in_the_chart_of_its_figure() -> None:
    config = GatewayConfig(lanes=(replace(LANES["fast"], ttft_target_s=0.123), LANES["batch"]))
    (chart,) = [panel for panel in panels(config) if panel["title"] == "TTFT"]
    bounds = chart["targets"][-1]
    assert bounds["expr"].count("vector(") == 5
    assert (
        'label_replace(label_replace(vector(0.123), "lane", "fast", "", ""), "percentile", "95", "", "")'
        in bounds["expr"]
    )
    (override,) = chart["fieldConfig"]["overrides"]
    assert override["matcher"]["options"] == bounds["refId"]
    (e2e,) = [panel for panel in panels(GatewayConfig(lanes=(LANES["batch"],))) if panel["title"] == "End-to-end time"]
    assert len(e2e["targets"]) == 3  # nothing is promised


def test_queries_have_no_variables_left_and_those_of_closed_rows_come_when_asked_for() -> None:
    text = dashboard(PRICED)
    shown = queries(text, lane="fast|slow", interval="7s")
    assert all("$" not in query for query in shown)
    assert any('lane=~"fast|slow"' in query and "[7s]" in query for query in shown)
    more = queries(text, reported=True)
    assert len(more) > len(shown)
    assert any("headgate_gpu" in query for query in more)
    assert not any("headgate_gpu" in query for query in shown)
