"""Tensor parallelism of a module of transformers, by the plan that the library has for its class.

The plan (`tp_plan`) names layers and weights, and gives each a style. transformers applies styles
with DTensors, which only FSDP2 takes, and sums a norm's accumulated gradient once for each
micro-batch. Here a rank has plain tensors and their `Cut`s, as of our own models. So every kind of
data parallelism, adapters and checkpoints work on them unchanged. Names of parameters stay.

    colwise                own rows; the sum of the ranks' gradients goes to its input
    colwise_gather_output  the same, and every rank gets all outputs
    rowwise                own columns; the sum of the ranks' outputs leaves it
    rowwise_split_input    the same, of an input that every rank has whole
    embedding_rowwise      own words
    packed_*               own part of both halves, gate and up, of experts
    moe_tp_experts         parts of all experts, between two such sums
    mla_kv_a_proj          whole; the heads of all ranks share the rotary part of its output
    replicated_with_...    whole; each rank sees some of the heads, so its gradients are summed

The two halves of a packed weight [E, 2F, D] are a dimension of their own, [E, 2, F, D], with one
rank too: a checkpoint has the same shapes in each layout. The module computes with the flat view.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from drumline_contract.config import ConfigError
from drumline_contract.layout import Axis
from drumline_trainer.models.transformers.module import (
    CausalModule,
    class_name,
    imported_library,
    units_of,
)
from drumline_trainer.parallelism.tensor_parallel.collectives import copy_to_region, gather_features
from drumline_trainer.parallelism.tensor_parallel.layers import (
    ColumnLinear,
    Region,
    RowLinear,
    own_piece,
)
from drumline_trainer.parallelism.tensor_parallel.vocabulary import rows_of
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut, named_modules
from drumline_trainer.sharding.world import World

_COLUMN = frozenset({"colwise", "colwise_gather_output", "colwise_rep"})
_ROW = frozenset({"rowwise", "rowwise_split_input", "rowwise_rep"})
_JOINED = frozenset({"colwise_gather_output", "colwise_rep"})
_SPLIT = frozenset({"rowwise_split_input", "rowwise_rep"})
_PACKED = {"packed_colwise": -2, "packed_rowwise": -1}
"""Style -> the dimension that holds both halves."""
_UNPACKED = 4
"""Dimensions of a packed weight of experts with its halves apart."""
_EMBEDDING, _EXPERTS = "embedding_rowwise", "moe_tp_experts"
_SUMMED, _LATENT = "replicated_with_grad_allreduce", "mla_kv_a_proj"
_NOTHING = frozenset({"local_params", "replicate"})
_KNOWN = _COLUMN | _ROW | _NOTHING | {*_PACKED, _EMBEDDING, _EXPERTS, _SUMMED, _LATENT}
_BY_HEADS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "q_b_proj", "kv_b_proj")
_Piece: TypeAlias = tuple[int, range]
"""A dimension, and the part of it that a rank has."""
INSTEAD = "set parallelism.tensor to 1, and share out the weights with fsdp"


def parallel_by_plan(module: nn.Module, world: World) -> dict[str, Cut]:
    """Cut a module of transformers on the meta device, in place.

    Args:
        module: as `build_module` makes it.
        world: gives the tensor axis.

    Returns:
        The cut of every parameter, by name. It is empty if the axis has one rank.

    Raises:
        ConfigError: the library has no plan for these layers, the plan has a style that is not
            known here, or a size does not divide.
    """
    layers, weights = _styles(module)
    for name, style in weights.items():
        if style in _PACKED:
            _unpack(module, name, _PACKED[style])
    group = world.group(Axis.TENSOR)
    if group is None:
        return {}
    causal = cast("CausalModule", module)
    region = Region(group=group, sequence_parallel=False)
    whole = {name: tuple(each.shape) for name, each in module.named_parameters()}
    paths = {owner: path for path, owner in named_modules(module)}
    tied = [[(paths[owner], name) for owner, name in places] for places in causal.tied]
    _leave_unequal_whole(tied, layers, weights)
    _check_plan(module, layers, weights, ranks=group.size())
    pieces = {
        name: _apply_to_weight(module, name, style, region, layers=layers)
        for name, style in weights.items()
    }
    for path, style in layers.items():
        _apply_to_layer(module, path, style, region)
    causal.tied = [[(module.get_submodule(path), name) for path, name in each] for each in tied]
    for (first, first_name), *same in causal.tied:
        for owner, name in same:
            owner.register_parameter(name, first.get_parameter(first_name))
    return dict(_cuts(module, whole, pieces, group))


def _styles(module: nn.Module) -> tuple[dict[str, str], dict[str, str]]:
    """Return the styles of layers and of weights by name, as transformers resolves its plan."""
    plan = cast("Mapping[str, str]", getattr(module, "tp_plan", None) or {})
    if not plan:
        return {}, {}
    library = importlib.import_module("transformers.integrations.tensor_parallel")
    generic = cast("Callable[[str], str]", library.replace_layer_number_by_wildcard)
    layers: dict[str, str] = {}
    weights: dict[str, str] = {}
    for path, owner in named_modules(module):
        style = plan.get(generic(path))
        if style is not None:
            layers[path] = style
        for name, _ in owner.named_parameters(prefix=path, recurse=False, remove_duplicate=False):
            own = plan.get(generic(name), style)
            if own is not None:
                weights[name] = own
    return layers, weights


def _leave_unequal_whole(
    tied: list[list[tuple[str, str]]], layers: dict[str, str], weights: dict[str, str]
) -> None:
    """Take layers that share a weight out of the plan, unless all of them cut it by rows."""
    by_rows = _COLUMN | {_EMBEDDING}
    for places in tied:
        names = [f"{path}.{name}" for path, name in places]
        if all(weights.get(name) in by_rows for name in names):
            continue
        for (path, _), name in zip(places, names, strict=True):
            layers.pop(path, None)
            weights.pop(name, None)


def _check_plan(
    module: nn.Module, layers: Mapping[str, str], weights: Mapping[str, str], *, ranks: int
) -> None:
    kind, version = class_name(module), imported_library().__version__
    inner = {each for unit in units_of(module) for each in unit.modules()}
    cutting = _COLUMN | _ROW | {*_PACKED}
    if not any(
        style in cutting and module.get_submodule(name.rpartition(".")[0]) in inner
        for name, style in weights.items()
    ):
        raise ConfigError(
            f"parallelism.tensor: {ranks}, but transformers {version} has no plan (tp_plan) that"
            f" cuts the layers of {kind}; {INSTEAD}"
        )
    unknown = sorted({*layers.values(), *weights.values()} - _KNOWN)
    if unknown:
        raise ConfigError(
            f"parallelism.tensor: the plan (tp_plan) of {kind} in transformers {version} has the"
            f" style {unknown[0]}, which is not supported; {INSTEAD}"
        )
    by_heads = {
        path.rpartition(".")[2] for path, style in layers.items() if style == "colwise"
    }.intersection(_BY_HEADS)
    config = _text_config(module)
    for field in ("num_attention_heads", "num_key_value_heads") if by_heads else ():
        heads = config.get(field)
        if isinstance(heads, int) and heads % ranks:
            raise ConfigError(
                f"parallelism.tensor: {field} {heads} of {kind} do not divide by {ranks}; use a"
                f" divisor of {heads}"
            )
    for path, style in layers.items():
        layer = module.get_submodule(path)
        if style in _COLUMN | _ROW and type(layer).forward is not nn.Linear.forward:
            raise ConfigError(
                f"parallelism.tensor: {path} of {kind} is not a plain linear layer, and the plan"
                f" (tp_plan) of transformers {version} cuts it; {INSTEAD}"
            )
    _check_experts(module, layers, weights)


def _text_config(module: nn.Module) -> dict[str, Any]:
    """Return the configuration by field. As attributes, sizes that differ by layer raise."""
    return cast("dict[str, Any]", cast("Any", module).config.get_text_config().to_dict())


def _check_experts(
    module: nn.Module, layers: Mapping[str, str], weights: Mapping[str, str]
) -> None:
    """Refuse experts whose plan cuts across gate and up, or counts a weight more than once."""
    for name, style in weights.items():
        weight, (path, _, own) = module.get_parameter(name), name.rpartition(".")
        # Set by the library's decorator of experts. Only some of its plans agree with it.
        packs = getattr(module.get_submodule(path), "is_concatenated", None)
        unlike = packs is not None and own == "gate_up_proj" and packs != (style in _PACKED)
        if unlike or (style in _PACKED and weight.dim() != _UNPACKED):
            raise ConfigError(
                f"parallelism.tensor: the plan (tp_plan) of {class_name(module)} cuts {name} by"
                f" the style {style}, which does not keep gate and up together; {INSTEAD}"
            )
    for path in (path for path, style in layers.items() if style == _EXPERTS):
        for name, weight in module.get_submodule(path).named_parameters(prefix=path):
            if _dimension(weights.get(name, ""), weight) is None:
                raise ConfigError(
                    f"parallelism.tensor: the plan (tp_plan) leaves {name} whole on each rank, and"
                    f" sums what the ranks compute with it; {INSTEAD}"
                )


def _unpack(module: nn.Module, name: str, dimension: int) -> None:
    """Give both halves of a packed weight a dimension of their own, in place."""
    path, _, own = name.rpartition(".")
    owner, weight = module.get_submodule(path), module.get_parameter(name)
    place = weight.dim() + dimension
    if place < 1:
        # FSDP cuts the first dimension. Rows of two halves do not form one box.
        return
    apart = cast("Tensor", weight.detach().unflatten(place, (2, -1)))
    owner.register_parameter(own, nn.Parameter(apart, requires_grad=weight.requires_grad))
    _compute_with(owner, {own: lambda each: each.flatten(place, place + 1)})


def _compute_with(owner: nn.Module, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> None:
    """Let a module compute with functions of its own parameters, in place."""
    compute = owner.forward
    # `setattr` refuses a plain tensor in place of a parameter. `functional_call` writes here, too.
    held = owner._parameters  # noqa: SLF001 - see above # pyright: ignore[reportPrivateUsage]

    def forward(*args: Any, **named: Any) -> Any:
        own = {name: held[name] for name in changes}
        for name, change in changes.items():
            parameter = own[name]
            if parameter is not None:
                held[name] = cast("nn.Parameter", change(parameter))
        try:
            return compute(*args, **named)
        finally:
            held.update(own)

    vars(owner)["forward"] = forward


def _apply_to_weight(
    module: nn.Module, name: str, style: str, region: Region, *, layers: Mapping[str, str]
) -> _Piece | None:
    """Cut a weight in place, unless its linear layer will; return what the rank has of it."""
    path, _, own = name.rpartition(".")
    owner, weight = module.get_submodule(path), module.get_parameter(name)
    dimension = _dimension(style, weight)
    if dimension is None:
        return None
    size, ranks = weight.shape[dimension], region.group.size()
    uneven = style in _JOINED | _SPLIT | {_EMBEDDING}
    if size % ranks and not uneven:
        raise ConfigError(
            f"parallelism.tensor: {size} features of {name} do not divide by {ranks} ranks; use a"
            f" divisor of {size}"
        )
    if layers.get(path) not in _COLUMN | _ROW:
        owner.register_parameter(own, own_piece(weight, dimension, region))
    return dimension, region.piece(size)


def _dimension(style: str, weight: Tensor) -> int | None:
    """Return the dimension along which a style cuts a weight; None: it stays whole."""
    count = weight.dim()
    if style in _COLUMN:
        return max(0, count - 2)
    if style in _ROW:
        return count - 1 if count > 1 else None
    if style in _PACKED:
        return count + _PACKED[style]
    return 0 if style == _EMBEDDING else None


def _apply_to_layer(module: nn.Module, path: str, style: str, region: Region) -> None:
    """Replace a linear layer by its cut one, and put collectives around a layer, in place."""
    layer = module.get_submodule(path)
    if style in _COLUMN and isinstance(layer, nn.Linear):
        size, layer = layer.out_features, ColumnLinear(layer, region)
        module.set_submodule(path, layer)
        layer.register_forward_pre_hook(partial(_enter, group=region.group))
        if style in _JOINED:
            layer.register_forward_hook(partial(_join, region=region, size=size))
    elif style in _ROW and isinstance(layer, nn.Linear):
        layer = RowLinear(layer, region, leaves=True)
        module.set_submodule(path, layer)
        if style in _SPLIT:
            layer.register_forward_pre_hook(partial(_split, region=region))
    elif style == _EMBEDDING and isinstance(layer, nn.Embedding):
        _look_up_own_words(layer, region)
    elif style == _EXPERTS:
        layer.register_forward_pre_hook(partial(_enter_all, group=region.group), with_kwargs=True)
        layer.register_forward_hook(partial(_leave, region=region))
    elif style == _LATENT:
        turned = _text_config(module).get("qk_rope_head_dim")
        if not isinstance(turned, int):
            raise ConfigError(
                f"parallelism.tensor: the layers of {class_name(module)} differ in"
                f" qk_rope_head_dim, and its plan (tp_plan) needs one; {INSTEAD}"
            )
        layer.register_forward_hook(partial(_share_turned, group=region.group, turned=turned))
    elif style == _SUMMED:
        enter = partial(copy_to_region, group=region.group)
        names = [name for name, _ in layer.named_parameters(recurse=False)]
        _compute_with(layer, dict.fromkeys(names, enter))


def _look_up_own_words(embedding: nn.Embedding, region: Region) -> None:
    words, compute = region.piece(embedding.num_embeddings), embedding.forward
    if embedding.padding_idx is not None:
        # Its row gets no gradient. With another rank's number torch would spare a word of ours.
        here = embedding.padding_idx in words
        embedding.padding_idx = embedding.padding_idx - words.start if here else None

    def forward(tokens_BS: Tensor) -> Tensor:
        rows_BS, here_BS = rows_of(tokens_BS, words)
        x_BSD = compute(rows_BS)
        return region.leave(x_BSD.masked_fill(~here_BS.unsqueeze(-1), 0.0))

    vars(embedding)["forward"] = forward


def _enter(layer: nn.Module, inputs: Any, *, group: ProcessGroup) -> tuple[Any, ...]:
    del layer
    return (copy_to_region(inputs[0], group), *inputs[1:])


def _enter_all(
    layer: nn.Module, inputs: Any, named: Any, *, group: ProcessGroup
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Mark states and routing weights: each rank gives a part of their gradients."""
    del layer

    def entered(each: Any) -> Any:
        learns = isinstance(each, Tensor) and each.is_floating_point()
        return copy_to_region(each, group) if learns else each

    return tuple(map(entered, inputs)), {name: entered(each) for name, each in named.items()}


def _leave(layer: nn.Module, inputs: Any, out: Tensor, *, region: Region) -> Tensor:
    del layer, inputs
    return region.leave(out)


def _join(layer: nn.Module, inputs: Any, out: Tensor, *, region: Region, size: int) -> Tensor:
    """Return the outputs of all ranks."""
    del layer, inputs
    return gather_features(out, region.group, pieces=region.pieces(size))


def _split(layer: nn.Module, inputs: Any, *, region: Region) -> tuple[Any, ...]:
    """Take own features of an input that all ranks have; its gradient is that of all features."""
    del layer
    x = copy_to_region(inputs[0], region.group)
    piece = region.piece(x.shape[-1])
    return (x[..., piece.start : piece.stop], *inputs[1:])


def _share_turned(
    layer: nn.Module, inputs: Any, out: Tensor, *, group: ProcessGroup, turned: int
) -> Tensor:
    """Sum the gradient of the rotary part, which goes to the heads of all ranks directly."""
    del layer, inputs
    latent = out.shape[-1] - turned
    rotary = copy_to_region(out.narrow(-1, latent, turned), group)
    return torch.cat([out.narrow(-1, 0, latent), rotary], dim=-1)


def _cuts(
    module: nn.Module,
    whole: Mapping[str, tuple[int, ...]],
    pieces: Mapping[str, _Piece | None],
    group: ProcessGroup,
) -> Iterator[tuple[str, Cut]]:
    ranks, rank = group.size(), group.rank()
    for name, parameter in module.named_parameters():
        piece, offsets = pieces.get(name), [0] * parameter.dim()
        if piece is not None:
            dimension, part = piece
            offsets[dimension] = part.start
        box = Box(offsets=tuple(offsets), shape=tuple(parameter.shape))
        copies = ranks if piece is None else 1
        yield name, Cut(shape=whole[name], box=box, copies=copies, copy=rank if copies > 1 else 0)
