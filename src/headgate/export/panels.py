"""Builds the panels, rows and variables of Grafana's dashboard model."""

from dataclasses import dataclass, field
from typing import Any

SCHEMA = 39
SOURCE = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
WIDTH = 24
STATES = {-1: ("idle", "#808080"), 0: ("ok", "green"), 1: ("at risk", "orange"), 2: ("broken", "red")}

Model = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PanelQuery:
    expr: str
    legend: str = ""
    dashed: bool = False


@dataclass(slots=True)
class Board:
    """Places panels by their widths, left to right and then down, in rows."""

    panels: list[Model] = field(default_factory=list)
    _closed: list[Model] | None = None
    """Panels of the row being filled, if that row is collapsed: they are in it, not below it. None: the row is open."""
    _ids: int = 0
    _x: int = 0
    _y: int = 0
    _height: int = 0

    def row(self, title: str, *, closed: bool = False) -> None:
        self._next_line()
        row = {**self._numbered(), "type": "row", "title": title, "collapsed": closed, "panels": []}
        self.panels.append({**row, "gridPos": {"x": 0, "y": self._y, "w": WIDTH, "h": 1}})
        self._closed = self.panels[-1]["panels"] if closed else None
        self._y += 1

    def add(self, panel: Model, width: int, height: int) -> None:
        if self._x + width > WIDTH:
            self._next_line()
        place = {"x": self._x, "y": self._y, "w": width, "h": height}
        into = self.panels if self._closed is None else self._closed
        into.append({**self._numbered(), **panel, "gridPos": place})
        self._x += width
        self._height = max(self._height, height)

    def _next_line(self) -> None:
        self._x, self._y, self._height = 0, self._y + self._height, 0

    def _numbered(self) -> Model:
        self._ids += 1
        return {"id": self._ids}

    def model(self, title: str, uid: str, lanes_of: str) -> Model:
        """The whole dashboard. `lanes_of`: a series that every lane always has."""
        return {
            "uid": uid,
            "title": title,
            "tags": ["headgate", "llm"],
            "schemaVersion": SCHEMA,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "templating": {"list": [_source_variable(), _lane_variable(lanes_of)]},
            "annotations": {"list": []},
            "panels": self.panels,
        }


def _source_variable() -> Model:
    return {"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}


def _lane_variable(series: str) -> Model:
    query = f"label_values({series}, lane)"
    return {
        "name": "lane",
        "label": "Lane",
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "lanes"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


# -- panels -----------------------------------------------------------------------------------------------


def line(
    title: str,
    about: str,
    *queries: PanelQuery,
    unit: str = "short",
    stacked: bool = False,
    marks: tuple[tuple[float, str], ...] = (),
) -> Model:
    """A chart over time, with lines drawn at `marks`."""
    custom: Model = {"lineWidth": 1, "fillOpacity": 20 if stacked else 0, "showPoints": "never", "spanNulls": False}
    if stacked:
        custom["stacking"] = {"mode": "normal"}
    if marks:
        custom["thresholdsStyle"] = {"mode": "dashed"}
    defaults: Model = {"unit": unit, "custom": custom, "thresholds": _thresholds(marks, "transparent")}
    overrides = [
        {
            "matcher": {"id": "byFrameRefID", "options": _ref(place)},
            "properties": [{"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}}],
        }
        for place, query in enumerate(queries)
        if query.dashed
    ]
    return {
        **_panel("timeseries", title, about, queries),
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def stat(
    title: str,
    about: str,
    query: PanelQuery,
    *,
    unit: str = "short",
    steps: tuple[float, float] | None = None,
    states_of: bool = False,
) -> Model:
    """One number, orange from the first of `steps` on and red from the second."""
    marks = tuple(zip(steps, ("orange", "red"), strict=True)) if steps else ()
    defaults: Model = {"unit": unit, "thresholds": _thresholds(marks, "green"), "mappings": _mappings(states_of)}
    return {
        **_panel("stat", title, about, (query,)),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value" if steps else "none",
            "graphMode": "none" if states_of else "area",
        },
    }


def states(title: str, about: str, query: PanelQuery) -> Model:
    """A strip for each series, coloured by its state."""
    (_, (_, lowest)), *others = STATES.items()
    marks = tuple((value, colour) for value, (_, colour) in others)
    defaults: Model = {"thresholds": _thresholds(marks, lowest), "mappings": _mappings(True)}
    return {
        **_panel("state-timeline", title, about, (query,)),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"mergeValues": True, "showValue": "never", "rowHeight": 0.8, "legend": {"showLegend": False}},
    }


def heatmap(title: str, about: str, query: PanelQuery) -> Model:
    """A heatmap of a histogram's buckets, as Prometheus counts them."""
    panel = _panel("heatmap", title, about, (query,))
    panel["targets"][0]["format"] = "heatmap"
    return {
        **panel,
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {
            "calculate": False,
            "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
            "yAxis": {"unit": "s"},
            "tooltip": {"mode": "single", "yHistogram": True},
        },
    }


def _panel(kind: str, title: str, about: str, queries: tuple[PanelQuery, ...]) -> Model:
    targets = [
        {"refId": _ref(place), "datasource": SOURCE, "expr": query.expr, "legendFormat": query.legend or "__auto"}
        for place, query in enumerate(queries)
    ]
    return {"type": kind, "title": title, "description": about, "datasource": SOURCE, "targets": targets}


def _ref(place: int) -> str:
    return chr(ord("A") + place)


def _thresholds(marks: tuple[tuple[float, str], ...], below: str) -> Model:
    steps = [{"value": None, "color": below}, *({"value": value, "color": colour} for value, colour in marks)]
    return {"mode": "absolute", "steps": steps}


def _mappings(states_of: bool) -> list[Model]:
    if not states_of:
        return []
    options = {str(value): {"text": text, "color": colour} for value, (text, colour) in STATES.items()}
    return [{"type": "value", "options": options}]
