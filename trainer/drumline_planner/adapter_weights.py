"""Count the weights that LoRA trains and QLoRA packs, on one rank (`adapters.lora`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from drumline_contract.config import Family, LoraConfig, ModelConfig
from drumline_contract.config.lora import EXPERTS_DOWN, EXPERTS_GATE_UP
from drumline_contract.shapes.attention import computed_by_ranks
from drumline_contract.shapes.layer_kinds import kinds_among, layer_kinds
from drumline_planner.setup import TrainingSetup

PACKED_BYTES, DOUBLY_PACKED_BYTES = 4.5 / 8, 4.127 / 8
"""Bytes of a weight in NF4 with its share of the scales (`adapters.four_bit`)."""
UNPACKING_BYTES = 12.0
"""Bytes per weight of a product while it is unpacked: the index, the level and their product, in 32
bits each."""


@functools.lru_cache(maxsize=256)
def projections(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of a layer's projections that may get an adapter.

    Only projections that every token passes count, so experts are left out.
    """
    hidden = model.hidden_size
    inner = model.ffn_size
    if model.experts:
        # With experts only the shared ones see every token.
        inner = model.shared_experts * model.features_per_expert
    sizes = {
        **_of_attention(model),
        "up": (hidden, inner),
        "down": (inner, hidden),
    }
    if model.family is Family.LLAMA:
        sizes["gate"] = (hidden, inner)
    # A size of 0 marks a projection that the model lacks.
    return {name: size for name, size in sizes.items() if min(size)}


def _of_attention(model: ModelConfig) -> dict[str, tuple[int, int]]:
    hidden, latent = model.hidden_size, model.latent_attention
    query = model.heads * model.features_per_head
    if latent is None:
        keys = model.kv_heads * model.features_per_head
        inputs = {"query": (hidden, query), "key": (hidden, keys), "value": (hidden, keys)}
        return {**inputs, "output": (query, hidden)}
    values, turned = model.heads * latent.value_size, model.heads * latent.turned_size
    return {
        "query_latent": (hidden, latent.query_rank or 0),
        "query": (latent.query_rank or hidden, query),
        "key_value_latent": (hidden, latent.key_value_rank + latent.turned_size),
        "key_value": (latent.key_value_rank, query - turned + values),
        "output": (values, hidden),
    }


_WHOLE = frozenset({"query_latent", "key_value_latent"})
"""Weights that tensor parallelism does not cut."""
_ROW_CUT = frozenset({"output", "down"})
"""Products cut by their inputs, like the adapter's first matrix. All other products, and their
adapters' second matrix, are cut by outputs."""


def _adapted(
    model: ModelConfig, lora: LoraConfig, *, tensor: int
) -> Iterator[tuple[float, float, float]]:
    """Return each adapted weight of a rank, with its inputs and outputs after sharding."""
    for name, (inputs, outputs) in projections(computed_by_ranks(model, tensor=tensor)).items():
        if name not in lora.projections:
            continue
        rows = outputs if name in _ROW_CUT or name in _WHOLE else outputs / tensor
        columns = inputs / tensor if name in _ROW_CUT else inputs
        yield rows * columns, columns, rows


def layer_adapters(model: ModelConfig, lora: LoraConfig, *, tensor: int) -> float:
    """Return the adapter weights of one layer on a rank. Every rank holds the uncut matrix.

    Args:
        model: shape of the model.
        lora: rank and targets of the adapters.
        tensor: tensor parallel degree.
    """
    each = _adapted(model, lora, tensor=tensor)
    return lora.rank * sum(inputs + outputs for _, inputs, outputs in each)


def expert_adapters(model: ModelConfig, lora: LoraConfig, *, expert: int) -> float:
    """Return the number of adapter weights of one layer's experts on a rank of the expert axis.

    Args:
        model: shape of the model.
        lora: rank and targets of the adapters.
        expert: expert parallel degree.
    """
    if not model.experts:
        return 0.0
    hidden, inner = model.hidden_size, model.features_per_expert
    sizes = {EXPERTS_GATE_UP: hidden + 2 * inner, EXPERTS_DOWN: inner + hidden}
    each = sum(size for name, size in sizes.items() if name in lora.projections)
    return lora.rank * each * model.experts / expert


def trained_by_lora(setup: TrainingSetup) -> float:
    """Return the adapter weights on the fullest rank."""
    if setup.lora is None:
        return 0.0
    lora, layout = setup.lora, setup.layout
    return _of_fullest(
        setup,
        lambda kind: (
            layer_adapters(kind, lora, tensor=layout.tensor)
            + expert_adapters(kind, lora, expert=layout.expert)
        ),
    )


def packed_weights(setup: TrainingSetup) -> float:
    """Return the weights of the fullest rank that are stored in 4 bits."""
    if setup.lora is None or setup.lora.base_bits == 16:
        return 0.0
    return _of_fullest(setup, lambda kind: layer_packed(setup, kind))


def layer_packed(setup: TrainingSetup, kind: ModelConfig) -> float:
    """Return the packed weights of a layer of this kind."""
    if setup.lora is None or setup.lora.base_bits == 16:
        return 0.0
    each = _adapted(kind, setup.lora, tensor=setup.layout.tensor)
    return sum(weights for weights, _, _ in each)


def largest_packed(setup: TrainingSetup) -> float:
    """Return the weights of the largest product that is unpacked on a rank."""
    if setup.lora is None or setup.lora.base_bits == 16:
        return 0.0
    lora, tensor = setup.lora, setup.layout.tensor
    kinds = (kind for kind, _ in layer_kinds(setup.model))
    each = (weights for kind in kinds for weights, _, _ in _adapted(kind, lora, tensor=tensor))
    return max(each, default=0.0)


def _of_fullest(setup: TrainingSetup, each: Callable[[ModelConfig], float]) -> float:
    """Return the sum over the layers of a rank."""
    stages = (kinds_among(setup.model, own) for own in setup.stage_layers())
    most = max(sum(count * each(kind) for kind, count in kinds) for kinds in stages)
    return most * setup.layout.stages_per_rank
