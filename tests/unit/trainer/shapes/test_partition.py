"""Layers are shared out exactly: compared with all partitions there are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline_contract.config import MODEL_PRESETS, Family, ModelConfig
from drumline_contract.shapes.partition import (
    Partition,
    StageCosts,
    model_costs,
    partition,
    repartition,
    stage_costs,
)

PRICES = st.integers(0, 20).map(float)  # whole numbers: sums are exact, ties are ties


@st.composite
def problems(draw: st.DrawFn) -> tuple[StageCosts, int]:
    layers = draw(st.lists(PRICES, min_size=1, max_size=9))
    costs = StageCosts(layers=tuple(layers), embedding=draw(PRICES), head=draw(PRICES))
    return costs, draw(st.integers(1, len(layers)))


def all_partitions(layers: int, stages: int) -> list[Partition]:
    return [
        tuple(itertools.starmap(range, itertools.pairwise((0, *ends, layers))))
        for ends in itertools.combinations(range(1, layers), stages - 1)
    ]


def badness(candidate: Partition, costs: StageCosts) -> tuple[float, float]:
    each = [sum(costs.layers[layer] for layer in own) for own in candidate]
    each[0] += costs.embedding
    each[-1] += costs.head
    return max(each), sum(cost**2 for cost in each)


@st.composite
def equal_layers(draw: st.DrawFn) -> tuple[StageCosts, int]:
    layers = draw(st.integers(1, 10))
    each = draw(st.integers(1, 20).map(float))
    costs = StageCosts(layers=(each,) * layers, embedding=draw(PRICES), head=draw(PRICES))
    return costs, draw(st.integers(1, layers))


@given(st.one_of(problems(), equal_layers()))
def test_no_partition_has_a_smaller_largest_stage_nor_a_more_even_rest(
    problem: tuple[StageCosts, int],
) -> None:
    costs, stages = problem
    result = partition(costs, stages=stages)
    candidates = all_partitions(len(costs.layers), stages)
    assert result in candidates
    assert badness(result, costs) == min(badness(other, costs) for other in candidates)


@given(problems())
def test_stage_costs_count_both_ends(problem: tuple[StageCosts, int]) -> None:
    costs, stages = problem
    result = partition(costs, stages=stages)
    whole = sum(costs.layers) + costs.embedding + costs.head
    assert sum(stage_costs(result, costs)) == whole
    assert max(stage_costs(result, costs)) == badness(result, costs)[0]


def test_equal_layers_are_shared_out_evenly() -> None:
    assert partition(StageCosts(layers=(1.0,) * 6), stages=3) == (
        range(2),
        range(2, 4),
        range(4, 6),
    )


def test_a_big_vocabulary_leaves_the_last_stage_fewer_layers() -> None:
    costs = model_costs(MODEL_PRESETS["llama-1b"], sequence_length=2048)
    assert [len(own) for own in partition(costs, stages=4)] == [5, 5, 5, 1]


def test_a_layers_price_is_its_matrices_and_its_attention() -> None:
    model = ModelConfig(hidden_size=8, ffn_size=16, heads=2, kv_heads=1, vocab_size=256, layers=3)
    costs = model_costs(model, sequence_length=10)
    matrices = 8 * 8 * 2 + 8 * 4 * 2 + 3 * 8 * 16
    assert costs.layers == (6 * matrices + 6 * 8 * 10,) * 3
    assert (costs.embedding, costs.head) == (0, 6 * 8 * 256)


def test_a_vision_transformer_works_in_front_of_its_layers() -> None:
    model = ModelConfig(family=Family.VIT, layers=3, patch_size=4, channels=3, hidden_size=64)
    costs = model_costs(model, sequence_length=model.patches)
    assert (costs.embedding, costs.head) == (6 * 3 * 4 * 4 * 64, 0)


@pytest.mark.parametrize("stages", [0, 3])
def test_stages_without_layers_are_refused(stages: int) -> None:
    with pytest.raises(ValueError, match=f"2 layers do not fill {stages} stages"):
        partition(StageCosts(layers=(1.0, 1.0)), stages=stages)


def test_measured_times_move_layers_off_the_slowest_stage() -> None:
    costs = StageCosts(layers=(1.0,) * 8)
    current = partition(costs, stages=2)
    new = repartition(current, costs, seconds=[0.1, 0.3])
    assert [len(own) for own in new] == [5, 3]


def test_small_differences_are_not_worth_a_restart() -> None:
    costs = StageCosts(layers=(1.0,) * 80)
    current = partition(costs, stages=2)
    assert repartition(current, costs, seconds=[1.0, 1.05]) == current
    assert repartition(current, costs, seconds=[1.0, 1.05], gain=0.01) != current


def test_a_measured_head_weighs_what_it_took_beside_its_layers() -> None:
    costs = StageCosts(layers=(1.0,) * 6, head=1.0)
    current = (range(3), range(3, 6))
    new = repartition(current, costs, seconds=[3.0, 8.0])  # 2 a layer and 2 the head
    assert [len(own) for own in new] == [4, 2]


@pytest.mark.parametrize("seconds", [[1.0], [1.0, 0.0]])
def test_a_stage_without_a_time_is_refused(seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="2 stages"):
        repartition((range(1), range(1, 2)), StageCosts(layers=(1.0, 1.0)), seconds=seconds)
