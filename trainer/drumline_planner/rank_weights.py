"""Count the weights of a rank before data parallelism divides them, layer by layer."""

from __future__ import annotations

import functools

from drumline_contract.config import ModelConfig
from drumline_contract.shapes.attention import computed_by_ranks
from drumline_contract.shapes.layer_kinds import kinds_among
from drumline_planner.adapter_weights import layer_packed
from drumline_planner.setup import TrainingSetup, layer_parameters, parameters


def rank_parameters(setup: TrainingSetup, place: int) -> tuple[float, float]:
    """Return the weights of a rank before sharding: dense, and of experts."""
    layout, partition = setup.layout, setup.stage_layers()
    stages = layout.stages_of(place)
    return _weights_of(
        setup.model,
        tensor=layout.tensor,
        expert=layout.expert,
        layers=tuple(partition[stage] for stage in stages),
        embeds=0 in stages,
        predicts=layout.stages - 1 in stages,
        tied_apart=layout.stages > 1,
    )


@functools.lru_cache(maxsize=1024)
def _weights_of(
    model: ModelConfig,
    *,
    tensor: int,
    expert: int,
    layers: tuple[range, ...],
    embeds: bool,
    predicts: bool,
    tied_apart: bool,
) -> tuple[float, float]:
    parts = parameters(model)
    dense = experts = 0.0
    for stage in layers:
        for kind, count in kinds_among(model, stage):
            held = layer_parameters(computed_by_ranks(kind, tensor=tensor))
            each = held.on_rank(tensor=tensor, expert=expert)
            dense, experts = dense + count * each[0], experts + count * each[1]
    if embeds:
        dense += parts.embedding / tensor
    if predicts:
        dense += (parts.head + (parts.tied if tied_apart else 0)) / tensor
    return dense, experts


def largest_rank(setup: TrainingSetup) -> tuple[float, float]:
    """Return the weights of the largest rank, which is at one of the ends of the pipeline."""
    ends = {0, setup.layout.pipeline - 1}
    return max((rank_parameters(setup, place) for place in ends), key=sum)


def largest_learning(setup: TrainingSetup) -> tuple[float, float]:
    """Return the trainable weights of the rank with the most of them."""
    dense, experts = largest_rank(setup)
    return dense * setup.learning[0], experts * setup.learning[1]


def largest_layer(setup: TrainingSetup) -> float:
    """Return the weights of a rank's largest layer before sharding, without packed weights."""
    layout = setup.layout
    return max(
        sum(layer_parameters(kind.model).on_rank(tensor=layout.tensor, expert=layout.expert))
        - layer_packed(setup, kind.model)
        for kind, _ in setup.kinds()
    )
