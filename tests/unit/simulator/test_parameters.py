"""The table of figures: what was measured stands in its page, and the peer is not made worse."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline_simulator.parameters import conditions, recovery
from drumline_simulator.parameters.model import Condition, Parameter, Source
from drumline_simulator.workload import Execution

DOCS = Path(__file__).parents[3] / "docs"
SOURCES = sorted(
    {figure.source for each in recovery.PARAMETERS for figure in (each.ours, each.peer, each.best)}
    | {each.figure.source for each in conditions.CONDITIONS},
    key=lambda source: source.text,
)


@pytest.mark.parametrize("source", [s for s in SOURCES if s.row], ids=lambda s: s.row[:40])
def test_what_was_measured_here_stands_in_the_page_that_is_named(source: Source) -> None:
    page, _, _ = source.url.partition("#")
    assert source.row in (DOCS / page).read_text()


def test_every_figure_has_a_source() -> None:
    assert all(source.text for source in SOURCES)
    assert all(source.url.startswith("https://") or source.row for source in SOURCES if source.url)
    assumed = [source for source in SOURCES if not source.url]
    assert all("assumed" in s.text or "has none" in s.text or "script" in s.text for s in assumed)


@pytest.mark.parametrize("parameter", recovery.PARAMETERS, ids=lambda each: each.means[:30])
def test_the_peer_at_its_best_is_not_worse_than_the_peer(parameter: Parameter) -> None:
    if parameter is recovery.SAVE:  # longer, but it saves
        assert (parameter.peer.value, parameter.best.value) == (0.0, parameter.ours.value)
        return
    assert parameter.best.value <= parameter.peer.value


def test_what_is_physics_is_the_same_for_all() -> None:
    for same in (recovery.START, recovery.STALL):
        assert same.ours == same.peer == same.best
    assert recovery.CHECKPOINT.ours.value == recovery.CHECKPOINT.peer.value


def test_a_side_has_the_times_of_its_column() -> None:
    ours, peer = recovery.ours(), recovery.peer()
    assert (ours.process_seconds, peer.process_seconds) == (1.01, 3.5)
    assert (ours.snapshot_seconds, peer.snapshot_seconds) == (400.0, None)
    assert (ours.save_seconds, peer.save_seconds, recovery.best_peer().save_seconds) == (67, 0, 67)
    assert recovery.peer(checkpoint_seconds=90).checkpoint_seconds == 90


def test_snapshots_are_taken_at_youngs_interval() -> None:
    ours, gpus = recovery.ours(), 64
    assert ours.snapshot_seconds is not None
    pause = ours.snapshot_share * ours.snapshot_seconds
    between = 3600 * conditions.GPU_HOURS_PER_FAILURE.figure.value / gpus
    assert ours.snapshot_seconds == pytest.approx((2 * pause * between) ** 0.5, rel=0.01)


def test_each_field_of_an_execution_is_in_the_table() -> None:
    # Whoever is killed is gone at once in the week, which is to the peer's advantage.
    apart = {"settle_seconds", "period_seconds", "leave_seconds"}
    changed = {
        name
        for name in Execution.__slots__
        if name not in apart and getattr(recovery.ours(), name) != getattr(Execution(), name)
    }
    assert changed == set(Execution.__slots__) - apart - {"checkpoint_seconds"}


def test_rates_scale() -> None:
    assert conditions.failure_rates(scale=2).gpu_hours == pytest.approx(4045)
    assert conditions.failure_rates(scale=0).gpu_hours == float("inf")
    assert conditions.spot_rates(scale=2).node_hours == 12
    every = conditions.CONDITIONS
    assert len({each.means for each in every}) == len(every)
    assert isinstance(every[0], Condition)
