"""Every kind of data parallelism is one process: gradients, norms, weights after AdamW."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drumline_contract.config import DataParallel, Precision
from drumline_contract.layout import Axis
from drumline_trainer.sharding.boxes import Box, tiles
from drumline_trainer.sharding.world import World
from tests.gloo.gang import GangStarter
from tests.gloo.parallelism.data_parallel_ranks import (
    CPU,
    WIDTH,
    Case,
    Job,
    Outcome,
    events,
    expert_sums,
    trained,
    trained_in_one_process,
    uneven_use,
    work_through,
)

DDP, ZERO1, ZERO2, FSDP, _ = DataParallel
KINDS = [(DDP, 1), (ZERO1, 1), (ZERO2, 1), (FSDP, 1), (FSDP, 2)]
LOSSY = Precision.BF16
TRAINING = [
    Case(kind=kind, replicate=replicate, backwards=backwards, precision=precision)
    for kind, replicate in KINDS
    for backwards in (1, 4)
    for precision in (Precision.FP32, LOSSY)
]
TRAINING += [
    Case(kind=FSDP, replicate=replicate, backwards=4, precision=precision, shard_gradients=True)
    for replicate in (1, 2)
    for precision in (Precision.FP32, LOSSY)
]
AGAIN = [case for case in TRAINING if case.backwards == 4 and case.precision is LOSSY]
ORDER = [
    *(Case(kind=kind, replicate=replicate, backwards=2) for kind, replicate in KINDS),
    *(Case(kind=FSDP, replicate=n, backwards=2, shard_gradients=True) for n in (1, 2)),
]
SHARED_EXPERTS = [
    *(Case(kind=kind, replicate=replicate, backwards=2, expert=2) for kind, replicate in KINDS),
    Case(kind=FSDP, expert=4),
    # one expert for two ranks: they share its rows
    *(Case(kind=kind, expert=2, experts=2) for kind in (ZERO1, ZERO2, FSDP)),
    Case(kind=FSDP, backwards=2, expert=2, shard_gradients=True),
]
UNEVEN = [Case(kind=kind, backwards=n) for kind in (DDP, ZERO1, ZERO2) for n in (1, 3)]

Outcomes = list[tuple[Case, list[Any]]]
"""What every rank of a gang said of each case."""


@pytest.fixture(scope="module")
def four_ranks(gangs: GangStarter) -> dict[str, Outcomes]:
    """All that four ranks are asked, in one go: processes cost more than the toy."""
    return ask(
        gangs,
        {
            "training": (trained, TRAINING),
            "again": (trained, AGAIN),
            "order": (events, ORDER),
            "experts": (expert_sums, SHARED_EXPERTS),
            "uneven": (uneven_use, UNEVEN),
        },
        world_size=4,
    )


def ask(
    gangs: GangStarter, questions: dict[str, tuple[Job, list[Case]]], *, world_size: int
) -> dict[str, Outcomes]:
    work = [(job, case) for job, cases in questions.values() for case in cases]
    with gangs.gang(work_through, work, world_size=world_size) as gang:
        answers = {
            name: [(case, gang.results()) for case in cases]
            for name, (_, cases) in questions.items()
        }
        assert gang.exit_codes() == [0] * world_size
    return answers


def whole(outcomes: list[Outcome], field: str) -> dict[str, np.ndarray]:
    """The global tensors, put together from the first copies of all slices."""
    tensors: dict[str, np.ndarray] = {}
    boxes: dict[str, list] = {}
    for outcome in outcomes:
        for held in outcome.held:
            if held.copy or not held.box.elements:
                continue
            target = tensors.setdefault(held.name, np.full(held.shape, np.nan, np.float32))
            index = tuple(map(slice, held.box.offsets, held.box.ends))
            target[index] = getattr(held, field)
            boxes.setdefault(held.name, []).append(held.box)
    for name, tensor in tensors.items():
        assert tiles(tensor.shape, boxes[name]), name
    return tensors


def assert_close(got: dict, expected: dict, *, within: float) -> None:
    assert got.keys() == expected.keys()
    for name, values in got.items():
        scale = max(float(np.abs(expected[name]).max()), 1e-12)
        assert float(np.abs(values - expected[name]).max()) <= within * scale, name


def assert_one_process(case: Case, got: list[Outcome]) -> None:
    """Losses, norms, gradients, weights and what the modules compute after some steps."""
    expected = trained_in_one_process()
    exact = case.precision is Precision.FP32
    for outcome in got:
        assert outcome.losses == pytest.approx(expected.losses, rel=1e-6 if exact else 2e-2)
        assert outcome.norms == pytest.approx(expected.norms, rel=1e-6 if exact else 2e-2)
        assert (outcome.losses, outcome.norms) == (got[0].losses, got[0].norms)
        np.testing.assert_array_equal(outcome.logits, got[0].logits)
    gradients, weights = whole(got, "gradient"), whole(got, "weight")
    assert_close(gradients, whole([expected], "gradient"), within=1e-5 if exact else 5e-2)
    assert_close(weights, whole([expected], "weight"), within=1e-5 if exact else 2e-2)
    logits = {"logits": got[0].logits}
    assert_close(logits, {"logits": expected.logits}, within=1e-5 if exact else 5e-2)


@pytest.mark.extended
def test_four_ranks_train_as_one_process(four_ranks: dict[str, Outcomes]) -> None:
    for case, got in four_ranks["training"]:
        assert_one_process(case, got)


def test_two_ranks_train_as_one_process(gangs: GangStarter) -> None:
    cases = [Case(kind=kind, backwards=2) for kind in DataParallel]
    for case, got in ask(gangs, {"training": (trained, cases)}, world_size=2)["training"]:
        assert_one_process(case, got)


@pytest.mark.extended(keep=3)
@pytest.mark.parametrize("kind", DataParallel)
@pytest.mark.parametrize("precision", [Precision.FP32, LOSSY])
def test_one_rank_needs_no_process_group(kind: DataParallel, precision: Precision) -> None:
    case = Case(kind=kind, backwards=2, precision=precision)
    world = World(layout=case.layout(1), rank=0, device=CPU)
    assert_one_process(case, [trained(case, world)])


@pytest.mark.extended
def test_a_low_precision_is_one_and_updates_are_not_lost_in_it(
    four_ranks: dict[str, Outcomes],
) -> None:
    expected = trained_in_one_process()
    for case, got in four_ranks["training"]:
        exact = case.precision is Precision.FP32
        assert (got[0].losses == pytest.approx(expected.losses, rel=1e-6)) == exact
        for outcome in got:
            for held in outcome.held:
                assert (held.weight.dtype, held.gradient.dtype) == (np.float32, np.float32)


@pytest.mark.extended
def test_copies_of_a_slice_are_counted_and_numbered(four_ranks: dict[str, Outcomes]) -> None:
    copies = {DDP: 4, ZERO1: 1, ZERO2: 1, FSDP: 1}
    for case, got in four_ranks["training"]:
        expected = 2 if case.replicate == 2 else copies[case.kind]
        slices: dict[tuple[str, Box], list[int]] = {}
        for outcome in got:
            for held in outcome.held:
                assert held.copies == expected
                if held.box.elements:
                    slices.setdefault((held.name, held.box), []).append(held.copy)
        assert all(sorted(numbers) == list(range(expected)) for numbers in slices.values())


@pytest.mark.extended
def test_the_same_ranks_give_the_same_bits(four_ranks: dict[str, Outcomes]) -> None:
    before = dict(four_ranks["training"])
    for case, got in four_ranks["again"]:
        for expected, other in zip(before[case], got, strict=True):
            assert (expected.losses, expected.norms) == (other.losses, other.norms)
            for a, b in zip(expected.held, other.held, strict=True):
                assert a.weight.tobytes() == b.weight.tobytes()
                assert a.gradient.tobytes() == b.gradient.tobytes()


@pytest.mark.extended
def test_sums_start_while_backward_runs(four_ranks: dict[str, Outcomes]) -> None:
    for case, got in four_ranks["order"]:
        every = (
            case.kind is ZERO2 or case.shard_gradients
        )  # and others after the last micro-batch only
        for noted in got:
            passes = " ".join(noted).split("layer 2")[1:]  # each begins with the last layer
            before_the_first_layer = [
                "sum" in each_pass.split("layer 0")[0] for each_pass in passes
            ]
            assert before_the_first_layer == [every] * (case.backwards - 1) + [True], case


@pytest.mark.extended
def test_replicas_add_up_once_what_shard_groups_sum_after_each_micro_batch(
    four_ranks: dict[str, Outcomes],
) -> None:
    sums = {
        (case.replicate, case.shard_gradients): got[0].count("sum")
        for case, got in four_ranks["order"]
        if case.kind is FSDP
    }
    units = sums[1, False]
    assert sums[1, True] == 2 * units
    assert sums[2, False] == 2 * units  # one in the shard group, one over the replicas
    assert sums[2, True] == 3 * units


@pytest.mark.extended
def test_experts_are_summed_over_the_ranks_that_hold_the_same(
    four_ranks: dict[str, Outcomes],
) -> None:
    for case, got in four_ranks["experts"]:
        layout = case.layout(4)
        for rank, (summed, _) in enumerate(got):
            same = layout.group_of(Axis.EXPERT_DATA, rank)
            assert len(same) == 4 // case.expert
            expected = sum(got[other][1] for other in same)
            each = case.experts // case.expert
            first = layout.group_of(Axis.EXPERT, rank).index(rank) * each
            for box, gradient in summed:
                assert box.elements
                whole_expert = Box(offsets=(first, 0, 0), shape=(each, WIDTH, WIDTH))
                part = expected[box.slices_within(whole_expert)]
                np.testing.assert_allclose(gradient, part, rtol=1e-5, atol=1e-7)


@pytest.mark.extended
def test_parameters_that_some_passes_do_not_use_count_as_zeros(
    four_ranks: dict[str, Outcomes],
) -> None:
    for case, got in four_ranks["uneven"]:
        uses = [
            (number + rank + k) % 5
            for number in range(case.backwards)
            for rank in range(4)
            for k in range(2)
        ]
        for slices in got:
            for name, box, gradient in slices:
                assert gradient == [float(uses.count(int(name)))] * box.elements
