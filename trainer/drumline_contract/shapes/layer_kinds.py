"""Count models whose layers differ: the first layers of a mixture may be dense. No torch.

Each kind of layer is counted as a model that has only this kind. The model is the sum over its
kinds.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from drumline_contract.config import ModelConfig
from drumline_contract.config.routing import Routing


@functools.lru_cache(maxsize=1024)
def layer_kinds(model: ModelConfig) -> tuple[tuple[ModelConfig, range], ...]:
    """Return a uniform model for each kind of layer, with the layers of `model` of that kind."""
    dense = min(model.dense_layers, model.layers)
    if not dense:
        return ((model, range(model.layers)),)
    of_mixtures = (replace(model, dense_layers=0), range(dense, model.layers))
    return tuple(kind for kind in ((_dense(model), range(dense)), of_mixtures) if kind[1])


def kinds_among(model: ModelConfig, layers: range) -> tuple[tuple[ModelConfig, int], ...]:
    """Return the kinds of some neighbouring layers with their counts, without kinds of 0 layers."""
    counted = (
        (kind, len(range(max(own.start, layers.start), min(own.stop, layers.stop))))
        for kind, own in layer_kinds(model)
    )
    return tuple((kind, count) for kind, count in counted if count)


def _dense(model: ModelConfig) -> ModelConfig:
    return replace(
        model,
        experts=0,
        shared_experts=0,
        dense_layers=0,
        expert_bias=False,
        balance_weight=0.0,
        routing=Routing(),
    )
