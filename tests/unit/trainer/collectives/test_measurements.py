from __future__ import annotations

import pytest

from drumline_trainer.collectives.measurements import (
    Collective,
    Measurement,
    fit,
    measured_axes,
    nodes_of,
)
from drumline_trainer.config import DataParallel
from drumline_trainer.layout import Axis, Layout


def row(size: int, seconds: float, collective: Collective = Collective.ALL_REDUCE) -> Measurement:
    return Measurement(
        axis="tp", ranks=4, collective=collective, by="x", bytes=size, seconds=seconds
    )


def test_the_bus_bandwidth_is_that_of_the_busiest_link() -> None:
    results = {each: row(8_000_000, 0.5, each).bus_bandwidth / 1e6 for each in Collective}
    assert results == {
        Collective.BROADCAST: 16.0,
        Collective.ALL_REDUCE: 24.0,
        Collective.ALL_GATHER: 12.0,
        Collective.REDUCE_SCATTER: 12.0,
        Collective.ALL_TO_ALL: 12.0,
        Collective.P2P: 16.0,
    }
    assert row(8_000_000, 0.5).algorithm_bandwidth == 16e6


@pytest.mark.parametrize("collective", list(Collective))
def test_the_formula_is_the_factor(collective: Collective) -> None:
    formula = collective.formula.replace("2 (", "2 * (")
    for ranks in (2, 3, 8):
        assert eval(formula, {"n": ranks}) == collective.bus_factor(ranks)  # noqa: S307


def test_the_line_goes_through_times_that_lie_on_one() -> None:
    rows = [row(size, 1e-4 + size / 1e9) for size in (1000, 4000, 1_000_000)]
    line = fit(rows)
    assert line is not None
    assert (line.alpha, line.beta) == pytest.approx((1e-4, 1e9))


def test_small_sizes_count_as_much_as_large_ones() -> None:
    rows = [row(size, 1e-4 + size / 1e9) for size in (1000, 4000, 16000)]
    line = fit([*rows, row(100_000_000, 0.12)])  # a large one, 20 % slower than the line
    assert line is not None
    assert line.alpha == pytest.approx(1e-4, rel=0.02)


def test_there_is_no_line_through_one_size_or_without_a_slope() -> None:
    assert fit([row(1000, 1e-4), row(1000, 2e-4)]) is None
    assert fit([row(1000, 2e-4), row(4000, 1e-4)]) is None
    steep = fit([row(1000, 1e-4), row(4000, 9e-4)])
    assert steep is not None
    assert (steep.alpha, steep.beta) == (0.0, pytest.approx(3000 / 8e-4))


def test_each_set_of_ranks_is_measured_once() -> None:
    layout = Layout(data_parallel=DataParallel.FSDP, shard=2, tensor=2, pipeline=2)
    assert [(axis.name, axis.ranks, len(axis.sets)) for axis in measured_axes(layout)] == [
        ("pp", 2, 4),
        ("dp_shard, fsdp, dp", 2, 4),
        ("tp", 2, 4),
    ]
    experts = measured_axes(Layout(shard=4, expert=2))
    assert [axis.axes for axis in experts] == [
        (Axis.SHARD, Axis.FSDP, Axis.DATA),
        (Axis.EXPERT,),
        (Axis.EXPERT_FSDP, Axis.EXPERT_DATA),
    ]
    assert measured_axes(Layout()) == ()


@pytest.mark.parametrize(
    ("ranks", "per_node", "nodes"),
    [
        (range(8), 4, ((0, 1, 2, 3), (4, 5, 6, 7))),
        (range(0, 8, 2), 4, ((0, 2), (4, 6))),
        (range(8), 8, ((0, 1), (2, 3), (4, 5), (6, 7))),  # one node, as if it were four
        (range(6), 6, ((0, 1), (2, 3), (4, 5))),
        (range(0, 8, 2), 2, ((0, 2), (4, 6))),  # one on each node
        (range(3), 3, ()),
        (range(2), 1, ()),
    ],
)
def test_two_levels_follow_the_nodes(
    ranks: range, per_node: int, nodes: tuple[tuple[int, ...], ...]
) -> None:
    assert nodes_of(ranks, per_node=per_node) == nodes
