from __future__ import annotations

from itertools import pairwise

import pytest

from drumline_contract.step_figures.bottleneck import Bottleneck, diagnose
from tests.texts import missing

STEP = {
    "data": 0.002,
    "forward": 0.03,
    "backward": 0.06,
    "optimizer": 0.005,
    "all_reduce/dp": 0.002,
    "recv/pp": 0.002,
    "checkpoint": 0.001,
    "snapshot": 0.001,
    "other": 0.002,
}
DELAY = 0.05


@pytest.mark.parametrize(
    ("delayed", "bound", "word"),
    [
        ("data", Bottleneck.DATA, "samples"),
        ("all_reduce/dp", Bottleneck.NETWORK, "all_reduce over dp"),
        ("all_gather/fsdp", Bottleneck.NETWORK, "all_gather over fsdp"),
        ("all_to_all/ep", Bottleneck.NETWORK, "all_to_all over ep"),
        ("all_gather/pp", Bottleneck.NETWORK, "all_gather over pp"),
        ("recv/pp", Bottleneck.BUBBLE, "stages"),
        ("send/pp", Bottleneck.BUBBLE, "stages"),
        ("optimizer", Bottleneck.MEMORY, "moves weights"),
        ("checkpoint", Bottleneck.SAVING, "for a checkpoint"),
        ("snapshot", Bottleneck.SAVING, "for a snapshot"),
        ("other", Bottleneck.HOST, "between the phases"),
        ("forward", Bottleneck.COMPUTE, "computes"),
        ("backward", Bottleneck.COMPUTE, "computes"),
    ],
)
def test_a_delay_of_each_kind_is_named(delayed: str, bound: Bottleneck, word: str) -> None:
    parts = {**STEP, delayed: STEP.get(delayed, 0.0) + DELAY}
    diagnosis = diagnose(parts)
    assert diagnosis.bound is bound
    assert word in diagnosis.evidence
    assert f"{diagnosis.share:.0%}" in diagnosis.sentence


def test_without_a_delay_it_computes() -> None:
    diagnosis = diagnose(STEP, mfu=0.41, memory_share=0.95)
    assert diagnosis.bound is Bottleneck.COMPUTE
    assert not missing(diagnosis.sentence, "86%", "41%", "MFU")


def test_what_the_schedule_leaves_idle_is_a_bubble() -> None:
    diagnosis = diagnose({"forward": 0.3, "backward": 0.3, "recv/pp": 0.4})
    assert (diagnosis.bound, diagnosis.share) == (Bottleneck.BUBBLE, pytest.approx(0.4))


@pytest.mark.parametrize(
    ("mfu", "memory_share", "bound"),
    [
        (0.20, 0.95, Bottleneck.MEMORY),
        (None, 0.95, Bottleneck.MEMORY),
        (0.50, 0.95, Bottleneck.COMPUTE),
        (0.20, 0.50, Bottleneck.COMPUTE),
        (0.20, None, Bottleneck.COMPUTE),
    ],
)
def test_full_memory_binds_where_the_device_is_not_busy(
    mfu: float | None, memory_share: float | None, bound: Bottleneck
) -> None:
    assert diagnose(STEP, mfu=mfu, memory_share=memory_share).bound is bound


def test_equal_losses_are_named_in_the_order_of_their_remedies() -> None:
    order = {
        "data": Bottleneck.DATA,
        "checkpoint": Bottleneck.SAVING,
        "recv/pp": Bottleneck.BUBBLE,
        "all_reduce/dp": Bottleneck.NETWORK,
        "other": Bottleneck.HOST,
        "optimizer": Bottleneck.MEMORY,
    }
    for (first, named), second in pairwise([*order.items(), ("", Bottleneck.COMPUTE)]):
        assert diagnose({second[0]: 0.1, first: 0.1} if second[0] else {first: 0.1}).bound is named


def test_the_share_from_which_an_overhead_is_the_bottleneck() -> None:
    assert diagnose({"forward": 3.0, "data": 1.0}).bound is Bottleneck.DATA
    assert diagnose({"forward": 3.1, "data": 1.0}).bound is Bottleneck.COMPUTE


def test_without_time_there_is_no_bottleneck() -> None:
    with pytest.raises(ValueError, match="no bottleneck"):
        diagnose({"forward": 0.0})
