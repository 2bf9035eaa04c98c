"""Boards of Grafana as values, and their JSON.

A board is rows of panels; positions and identifiers follow from the order, so that a change of a
panel changes its lines of the file alone. The data source is a variable: a board is imported
anywhere (https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Json = dict[str, Any]
Unit = Literal["short", "percentunit", "s", "bytes", "reqps", "watt", "celsius", "Bps", "none"]
Kind = Literal["timeseries", "stat", "bargauge", "state-timeline"]
WIDTH: Final = 24
"""Columns of Grafana's grid."""
_ROW_HEIGHT: Final = 8
_HEADER_HEIGHT: Final = 1
_SOURCE: Final[Json] = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel."""

    expression: str
    legend: str = "__auto"
    """Grafana's `{{label}}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel."""

    title: str
    description: str
    """What it shows and what to make of it."""
    queries: tuple[Query, ...]
    unit: Unit = "short"
    kind: Kind = "timeseries"
    stacked: bool = False
    at_most: float | None = None
    """The upper end of the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelRow:
    """Panels beside each other, below a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """What the reader of a board chooses: the values of a label."""

    name: str
    metric: str
    """With a selector, if an earlier variable narrows it."""
    label: str
    several: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One board."""

    name: str
    """Of its file, and its uid after `drumline-`."""
    title: str
    description: str
    rows: tuple[PanelRow, ...]
    variables: tuple[Variable, ...] = field(default=())

    def queries(self) -> Iterator[tuple[Panel, Query]]:
        """Every query with its panel."""
        for row in self.rows:
            for panel in row.panels:
                for query in panel.queries:
                    yield panel, query


def panel(
    title: str,
    description: str,
    *queries: Query,
    unit: Unit = "short",
    kind: Kind = "timeseries",
    stacked: bool = False,
    at_most: float | None = None,
) -> Panel:
    """Return a panel of these queries."""
    return Panel(
        title=title,
        description=description,
        queries=queries,
        unit=unit,
        kind=kind,
        stacked=stacked,
        at_most=at_most,
    )


def row(title: str, *panels: Panel) -> PanelRow:
    """Return panels beside each other, below a heading."""
    return PanelRow(title=title, panels=panels)


def quantile(share: float, metric: str, *, by: str, selector: str = "") -> str:
    """The quantile of a histogram over the panel's interval, one line a value of the labels `by`.

    Args:
        share: 0.99 for the slowest of a hundred.
        metric: Without `_bucket`.
        by: Labels that are kept, separated by commas; may be empty.
        selector: `{queue=~"$queue"}`.
    """
    labels = f"le, {by}" if by else "le"
    rate = f"rate({metric}_bucket{selector}[$__rate_interval])"
    return f"histogram_quantile({share}, sum by ({labels}) ({rate}))"


def board_json(board: Board) -> Json:
    """The board as Grafana imports it."""
    return {
        "uid": f"drumline-{board.name}",
        "title": f"Drumline / {board.title}",
        "description": board.description,
        "tags": ["drumline"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,  # one cross-hair on all panels
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_data_source(), *map(_variable, board.variables)]},
        "links": [
            {
                "title": "Drumline",
                "type": "dashboards",
                "tags": ["drumline"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "panels": list(_panels(board)),
    }


def _panels(board: Board) -> Iterator[Json]:
    number, top = 0, 0
    for row in board.rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"h": _HEADER_HEIGHT, "w": WIDTH, "x": 0, "y": top},
            "panels": [],
        }
        top += _HEADER_HEIGHT
        width = WIDTH // len(row.panels)
        for place, panel in enumerate(row.panels):
            number += 1
            where = {"h": _ROW_HEIGHT, "w": width, "x": place * width, "y": top}
            yield {"id": number, "gridPos": where, **_panel(panel)}
        top += _ROW_HEIGHT


def _panel(panel: Panel) -> Json:
    defaults: Json = {"unit": panel.unit, "min": 0}
    if panel.at_most is not None:
        defaults["max"] = panel.at_most
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 40 if panel.stacked else 10,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind],
    }


_LAST: Final[Json] = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: Final[dict[Kind, Json]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": _LAST, "colorMode": "value", "graphMode": "area"},
    "bargauge": {"reduceOptions": _LAST, "orientation": "horizontal", "displayMode": "basic"},
    "state-timeline": {"mergeValues": True, "showValue": "never", "rowHeight": 0.9},
}


def _data_source() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
    }


def _variable(variable: Variable) -> Json:
    text = f"label_values({variable.metric}, {variable.label})"
    chosen: Json = {"includeAll": True, "allValue": ".*", "multi": True} if variable.several else {}
    return {
        "name": variable.name,
        "label": variable.name.replace("_", " "),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": text, "refId": variable.name},
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "hide": 0,
        **chosen,
    }
