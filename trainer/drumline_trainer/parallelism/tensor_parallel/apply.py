"""Tensor parallelism: every layer's weights shared out over the ranks of one axis.

`tensor_parallel` goes through a model or pipeline stage and replaces layers by their cut
counterparts (`tensor_layers`, `vocabulary`), chosen by a layer's type and by what it is called in
its block, so a new kind of block needs a line in a table here. Names of parameters stay; what a
rank then holds of each global tensor is its `Cut`. The model's code knows nothing of it.

Attention is cut by heads, of which each rank has some; with fewer key-value heads than ranks each
has one, and so do neighbours whose queries it serves too. Feed-forward layers and experts are cut
by their inner features, embedding and head by words. Norms, biases of row-cut layers, latents of
attention, routers and learned positions are held by all ranks. After backward all that hold the
same have the same, whole gradient of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from drumline_contract.layout import Axis
from drumline_trainer.models.latent_attention import MultiHeadLatentAttention
from drumline_trainer.models.mixture import Experts, MixtureOfExperts
from drumline_trainer.models.replaceable import AttentionSinks, Positions
from drumline_trainer.parallelism.tensor_parallel.layers import (
    ColumnLinear,
    HeadShare,
    Region,
    RowLinear,
    SplitLayerNorm,
    SplitRMSNorm,
    enter_block,
    own_piece,
)
from drumline_trainer.parallelism.tensor_parallel.vocabulary import VocabularyEmbedding
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut, named_modules
from drumline_trainer.sharding.world import World

_COLUMNS = (
    *("attention.query", "attention.key", "attention.value", "attention.key_value"),
    *("feed_forward.gate", "feed_forward.up", "shared.gate", "shared.up"),
    ".output",
)
_KEY_VALUE_HEADS = ("attention.key", "attention.value")
_ROWS = ("attention.output", "feed_forward.down")
_PARTIAL_ROWS = ("shared.down",)
"""Layers whose output is added to that of the experts before the sum over the ranks."""
_BLOCKS = ("attention", "feed_forward")
"""Blocks that work inside of the region: what they are given enters it once for all layers."""
_HEAD_NORMS = (
    *("attention.query_norm", "attention.key_norm"),
    *("attention.query_latent_norm", "attention.key_value_latent_norm"),
)
"""Norms inside of the region: each rank applies them to its own heads, or to what those are of."""
_CUT: dict[type[nn.Module], dict[str, int]] = {
    ColumnLinear: {"weight": 0, "bias": 0},
    RowLinear: {"weight": 1},
    VocabularyEmbedding: {"weight": 0},
    AttentionSinks: {"weight": 0},
    Experts: {"gate": 1, "up": 1, "down": 2},
}
"""Parameter -> the dimension along which it is cut; all ranks have the whole of others."""


def tensor_parallel(model: nn.Module, world: World, *, sequence_parallel: bool) -> dict[str, Cut]:
    """Cut a model or pipeline stage, on the meta device or with values, in place.

    Args:
        model: single-device; parts of it may be missing.
        world: gives the tensor axis; where that is one rank nothing happens.
        sequence_parallel: between blocks each rank holds its part of the positions, in equal parts.

    Returns:
        What this rank holds of every parameter, by name; empty where nothing was cut.
    """
    group = world.group(Axis.TENSOR)
    if group is None:
        return {}
    splits_backward = world.layout.pipeline > 1 and world.layout.schedule.splits_backward
    region = Region(group=group, sequence_parallel=sequence_parallel, overlap=not splits_backward)
    whole = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for parent_name, parent in list(named_modules(model)):
        block = parent_name.rpartition(".")[2]
        for name, module in list(parent.named_children()):
            called = f"{block}.{name}"
            share = _head_share(called, module, parent, region)
            setattr(parent, name, _replacement(called, module, region, share))
    _mark_borders(model, region)
    if sequence_parallel and hasattr(model, "positions"):
        model.positions = GatheredPositions(region)
    return dict(_cuts(model, whole, region))


class GatheredPositions(Positions):
    """Positions of all tokens of a sequence that the ranks share out by position."""

    def __init__(self, region: Region) -> None:
        super().__init__()
        self.ranks = region.group.size()

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return the positions [sequence · ranks], int64, that attention sees."""
        return torch.arange(self.length(x_BSD), device=x_BSD.device)

    def length(self, x_BSD: Tensor) -> int:
        """Return the number of positions that all ranks have together."""
        return x_BSD.shape[1] * self.ranks


def _head_share(
    name: str, module: nn.Module, attention: nn.Module, region: Region
) -> HeadShare | None:
    """Return the distribution of heads for the layers of keys and values, otherwise None."""
    if name not in _KEY_VALUE_HEADS or not isinstance(module, nn.Linear):
        return None
    size = attention.head_size
    assert isinstance(size, int)  # noqa: S101 - every attention says its own
    return HeadShare(group=region.group, heads=module.out_features // size)


def _replacement(
    name: str, module: nn.Module, region: Region, share: HeadShare | None
) -> nn.Module:
    """Return the replacement of a module, often itself; `name` is the block's name and its own."""
    match module:
        case nn.Linear() if name in _COLUMNS:
            return ColumnLinear(module, region, shared=share)
        case nn.Linear() if name in _ROWS or name in _PARTIAL_ROWS:
            return RowLinear(module, region, leaves=name in _ROWS)
        case nn.Embedding() if name == ".embedding":
            return VocabularyEmbedding(module, region)
        case nn.RMSNorm() if region.sequence_parallel or name in _HEAD_NORMS:
            return SplitRMSNorm(module, region.group)
        case nn.LayerNorm() if region.sequence_parallel:
            return SplitLayerNorm(module, region.group)
        case AttentionSinks():
            module.weight = own_piece(module.weight, 0, region)
            return module
        case Experts():
            for weight, dimension in _CUT[Experts].items():
                setattr(module, weight, own_piece(getattr(module, weight), dimension, region))
            return module
        case _:
            return module


def _mark_borders(model: nn.Module, region: Region) -> None:
    """Register hooks where activations enter or leave the region outside of cut layers.

    A router computes the same on all ranks for experts that differ. Its incoming gradient is
    partial and is summed, so each rank may add only its part of the balance loss.
    """
    for path, module in named_modules(model):
        name = path.rpartition(".")[2]
        if name in _BLOCKS:
            module.register_forward_pre_hook(partial(_enter, region=region))
        if isinstance(module, MultiHeadLatentAttention):
            _mark_latents(module, region)
        if isinstance(module, MixtureOfExperts):
            module.router.register_forward_pre_hook(partial(_before, region.divide_gradient))
            module.router.register_forward_hook(partial(_after, region.sum_gradient))
            module.balance_weight /= region.group.size()
            module.register_forward_hook(partial(_after, region.leave))
        if path == "norm":
            module.register_forward_hook(partial(_after, region.enter))
        if path == "position_embedding" or (
            path == "embedding" and not isinstance(module, VocabularyEmbedding)
        ):
            module.register_forward_hook(partial(_after, region.split_positions))


def _mark_latents(attention: MultiHeadLatentAttention, region: Region) -> None:
    """Mark latents as equal on all ranks, as the output of a router is.

    Each rank computes its own heads from them. The hooks are on the seams before and after, because
    the layers between may still be replaced.
    """
    attention.before_latents.register_forward_hook(partial(_after, region.divide_gradient))
    attention.after_latent.register_forward_hook(partial(_after, region.sum_gradient))
    for layer in attention.heads_of_latents:
        if isinstance(layer, ColumnLinear):
            layer.enters = False


def _enter(block: nn.Module, inputs: Any, *, region: Region) -> tuple[Any, ...]:
    """Apply `enter_block` to the first input of a block, as a forward pre-hook."""
    return (enter_block(block, inputs[0], region), *inputs[1:])


def _before(change: Callable[[Tensor], Tensor], module: nn.Module, inputs: Any) -> tuple[Any, ...]:
    """Apply a function to the first input of a module, as a forward pre-hook."""
    del module
    return (change(inputs[0]), *inputs[1:])


def _after(
    change: Callable[[Tensor], Tensor], module: nn.Module, inputs: Any, out: Tensor
) -> Tensor:
    """Apply a function to a module's output, as a forward hook."""
    del module, inputs
    return change(out)


def _cuts(
    model: nn.Module, whole: Mapping[str, tuple[int, ...]], region: Region
) -> Iterator[tuple[str, Cut]]:
    ranks, rank = region.group.size(), region.group.rank()
    for path, module in named_modules(model):
        cut = _CUT.get(type(module), {})
        column = module if isinstance(module, ColumnLinear) else None
        share = None if column is None else column.shared
        for name, parameter in module.named_parameters(prefix=path, recurse=False):
            dimension = cut.get(name.rpartition(".")[2])
            offsets = [0] * parameter.dim()
            if dimension is not None:
                piece = region.piece(whole[name][dimension]) if column is None else column.piece
                offsets[dimension] = piece.start
            box = Box(offsets=tuple(offsets), shape=tuple(parameter.shape))
            if dimension is None:
                yield name, Cut(shape=whole[name], box=box, copies=ranks, copy=rank)
            elif share is None:
                yield name, Cut(shape=whole[name], box=box)
            else:
                yield name, Cut(shape=whole[name], box=box, copies=share.copies, copy=share.copy)
