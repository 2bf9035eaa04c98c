"""Boards ask for what exists, show every metric of ours somewhere, and lie on Grafana's grid."""

from __future__ import annotations

import re

import pytest

from tests.unit.monitoring.exported import KNOWN, labels_of, metrics_of
from tools.monitoring import generate
from tools.monitoring.panels import WIDTH, Board, Json, board_json

BOARDS = generate.BOARDS
QUERIES = [
    pytest.param(board, query.expression, query.legend, id=f"{board.name}: {panel.title} {number}")
    for board in BOARDS
    for number, (panel, query) in enumerate(board.queries())
]


@pytest.mark.parametrize(("board", "expression", "legend"), QUERIES)
def test_a_query_asks_for_metrics_that_exist_by_labels_they_have(
    board: Board, expression: str, legend: str
) -> None:
    named = metrics_of(expression)
    assert named
    assert named <= KNOWN.keys()
    selected, grouped = labels_of(expression)
    available = set.union(*(KNOWN[name] for name in named))
    assert selected | grouped <= available
    aggregated = re.search(r"\b(?:sum|avg|max|min|count)\b", expression)
    kept = grouped if aggregated else available
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= kept
    variables = {variable.name for variable in board.variables} | {"__rate_interval"}
    assert set(re.findall(r"\$(\w+)", expression)) <= variables
    assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize(("board", "expression", "legend"), QUERIES)
def test_a_counter_is_shown_by_its_growth_alone(board: Board, expression: str, legend: str) -> None:
    """A counter's height says when its process started; what never happens may be shown so."""
    del board, legend
    for name in metrics_of(expression):
        if re.search("_(total|bucket|sum|count)$", name) and name not in {
            "drumline_poisoned_objects_total",
            "drumline_trainer_restarts_total",
        }:
            assert re.search(rf"(?:rate|increase)\({name}(?:{{[^}}]*}})?\[", expression)


def test_every_metric_of_ours_is_on_a_board() -> None:
    shown = {
        name
        for board in BOARDS
        for _, query in board.queries()
        for name in metrics_of(query.expression)
    }
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in KNOWN}
    ours = {name for name in families if name.startswith("drumline_")}
    assert ours - {re.sub("_(bucket|sum|count)$", "", name) for name in shown} == set()


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_panels_lie_beside_and_below_each_other(board: Board) -> None:
    taken: set[tuple[int, int]] = set()
    panels: list[Json] = board_json(board)["panels"]
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < WIDTH
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels if panel["type"] != "row")


def test_boards_are_told_apart_and_variables_ask_for_labels_that_exist() -> None:
    assert len({board.name for board in BOARDS}) == len(BOARDS) == 5
    for board in BOARDS:
        for variable in board.variables:
            (name,) = metrics_of(variable.metric)
            assert variable.label in KNOWN[name]
            assert labels_of(variable.metric)[0] <= KNOWN[name]
