"""Measured step parts beside the predicted ones."""

from __future__ import annotations

import pytest

from drumline_contract import StepPart
from drumline_contract.layout import Axis
from drumline_contract.step_figures.part_comparison import AXES, PartComparison, step_part_of


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("forward", StepPart.COMPUTE),
        ("backward", StepPart.COMPUTE),
        ("optimizer", StepPart.OPTIMIZER),
        ("data", StepPart.REST),
        ("other", StepPart.REST),
        ("checkpoint", None),
        ("all_reduce/tp", StepPart.TENSOR),
        ("recv/cp", StepPart.CONTEXT),
        ("all_to_all/ep", StepPart.EXPERT),
        ("recv/pp", StepPart.PIPELINE),
        ("all_gather/fsdp", StepPart.DATA),
        ("reduce_scatter/dp", StepPart.DATA),
        ("all_reduce/world", StepPart.DATA),
        ("all_reduce/tied", StepPart.DATA),
    ],
)
def test_every_part_of_the_timer_is_a_part_that_is_predicted(
    name: str, part: StepPart | None
) -> None:
    assert step_part_of(name) is part


def test_axes_are_named_as_the_layout_names_them() -> None:
    assert set(AXES) == {Axis.TENSOR, Axis.CONTEXT, Axis.EXPERT, Axis.PIPELINE}


def test_means_are_over_all_steps_but_the_first_window() -> None:
    comparison = PartComparison(predicted={StepPart.COMPUTE: 2.0, StepPart.TENSOR: 0.5})
    comparison.add({"forward": 100.0}, steps=10)
    assert comparison.means() is None
    comparison.add({"forward": 1.0, "backward": 2.0, "all_reduce/tp": 1.0}, steps=1)
    comparison.add({"forward": 2.0, "backward": 2.0, "checkpoint": 50.0}, steps=3)
    means = comparison.means()
    assert means is not None
    assert means["compute"] == (pytest.approx((3.0 + 12.0) / 4), 2.0)
    assert means["tensor"] == (0.25, 0.5)
    assert means["rest"] == (0.0, 0.0)


def test_nothing_is_compared_where_nothing_is_predicted() -> None:
    comparison = PartComparison(predicted={})
    for _ in range(2):
        comparison.add({"forward": 1.0}, steps=1)
    assert comparison.means() is None
