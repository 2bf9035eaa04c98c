"""Which weights LoRA trains and which QLoRA packs, on one rank: counts (`adapters.lora`)."""

from __future__ import annotations

import functools

from drumline_trainer.config import Family, LoraConfig, ModelConfig
from drumline_trainer.planner.setup import TrainingSetup

PACKED_BYTES, DOUBLY_PACKED_BYTES = 4.5 / 8, 4.127 / 8
"""Of a weight in NF4 with its share of the scales (`adapters.four_bit`)."""
UNPACKING_BYTES = 12.0
"""Of each weight of a product while it is unpacked: its level's number, the level, their product,
all in 32 bits."""


@functools.lru_cache(maxsize=256)
def projections(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of a layer's projections that may get an adapter.

    Experts are no projections: only what every token passes is.
    """
    hidden = model.hidden_size
    query = model.heads * model.features_per_head
    keys = model.kv_heads * model.features_per_head
    inner = model.ffn_size
    if model.experts:
        inner = model.shared_experts * model.features_per_expert
    sizes = {
        "query": (hidden, query),
        "key": (hidden, keys),
        "value": (hidden, keys),
        "output": (query, hidden),
        "up": (hidden, inner),
        "down": (inner, hidden),
    }
    if model.family is Family.LLAMA:
        sizes["gate"] = (hidden, inner)
    return {name: size for name, size in sizes.items() if min(size)}


_ROW_CUT = frozenset({"output", "down"})
"""Cut by their inputs, as is the adapter's first matrix; the others and their second by outputs."""


def adapted(model: ModelConfig, lora: LoraConfig) -> tuple[tuple[int, int], ...]:
    """Those of them that get one."""
    return tuple(size for name, size in projections(model).items() if name in lora.projections)


def layer_adapters(model: ModelConfig, lora: LoraConfig, *, tensor: int) -> float:
    """Weights of one layer's adapters on a rank: the matrix that is not cut is on all of them."""
    total = 0.0
    for name, (inputs, outputs) in projections(model).items():
        if name in lora.projections:
            cut, whole = (inputs, outputs) if name in _ROW_CUT else (outputs, inputs)
            total += lora.rank * (whole + cut / tensor)
    return total


def trained_by_lora(setup: TrainingSetup) -> float:
    """Weights of the adapters on the fullest rank."""
    if setup.lora is None:
        return 0.0
    each = layer_adapters(setup.model, setup.lora, tensor=setup.layout.tensor)
    return each * _most_layers(setup)


def packed_weights(setup: TrainingSetup) -> float:
    """Weights of the fullest rank that lie in 4 bits."""
    if setup.lora is None or setup.lora.base_bits == 16:
        return 0.0
    each = sum(rows * columns for rows, columns in adapted(setup.model, setup.lora))
    return each * _most_layers(setup) / setup.layout.tensor


def largest_packed(setup: TrainingSetup) -> float:
    """Weights of the largest product that is unpacked on a rank."""
    if setup.lora is None or setup.lora.base_bits == 16:
        return 0.0
    sizes = [rows * columns for rows, columns in adapted(setup.model, setup.lora)]
    return max(sizes, default=0) / setup.layout.tensor


def _most_layers(setup: TrainingSetup) -> int:
    return max(len(own) for own in setup.stage_layers()) * setup.layout.stages_per_rank
