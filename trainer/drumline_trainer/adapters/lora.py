"""Low-rank adapters (Hu et al. 2021): y = W x + alpha / rank · B A x, where only A and B learn.

With `rslora` the factor is alpha / √rank (Kalajdzievski 2023).

A begins normal and B at zero, so that training begins at the model as it was. Everything else is
frozen: no gradients, no moments. `adapt` replaces the projections of a stage that the other axes
have cut already, so adapters are cut as the layers they lie beside:

    column-cut layer   A on all ranks, B by rows            A's gradient is a sum over the ranks
    row-cut layer      A by columns, B on all ranks         B's gradient is one; the layer's own sum
                                                            carries what the adapter adds
    layer not cut      A and B on all ranks                 so are their gradients

    bytes for each parameter: of the base 2 (bf16), 0.56 (4 bits) or 0.52 (doubly quantised), of the
    adapters 16

Shapes: B batch, S sequence, I and O this rank's input and output features, R rank.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from drumline_contract.config import ConfigError, LoraConfig, ModelConfig
from drumline_contract.config.lora import EXPERT_PROJECTIONS
from drumline_contract.layout import Axis
from drumline_trainer.adapters.four_bit import Packed, linear_of_packed, pack
from drumline_trainer.adapters.lora_experts import LoraExperts, adapt_experts, added_to
from drumline_trainer.models.transformers.module import CausalModule, linear_layers
from drumline_trainer.numerics.replaced_linear import ReplacedLinear, replace_projections
from drumline_trainer.parallelism.tensor_parallel.collectives import copy_to_region
from drumline_trainer.parallelism.tensor_parallel.layers import ColumnLinear, RowLinear
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut, TensorSlice
from drumline_trainer.sharding.world import World

A, B = "lora_a", "lora_b"
"""Parameters beside a layer's `weight`."""


def adapt(
    stage: nn.Module,
    config: LoraConfig,
    *,
    model: ModelConfig,
    world: World,
    cuts: Mapping[str, Cut],
) -> dict[str, Cut]:
    """Freeze a stage on the meta device and put adapters beside its projections, in place.

    Args:
        stage: cut by the tensor axis where there is one.
        config: which projections, and how the weights beneath are kept.
        model: configuration of the stage's model.
        world: gives the tensor axis.
        cuts: cuts of the stage's parameters.

    Returns:
        The cuts of all parameters, the adapters' too.

    Raises:
        ConfigError: no layer of the model is called so.
    """
    # Phase 1: freeze. Everything is frozen first, and the adapters made below learn by default.
    stage.requires_grad_(requires_grad=False)
    # None without a tensor axis. Layers that the axis did not cut have no group either.
    group = world.group(Axis.TENSOR)
    added: dict[str, Cut] = {}

    def make(name: str, linear: nn.Linear) -> LoraLinear:
        # A layer that no axis cut is whole on this rank.
        cut = cuts.get(f"{name}.weight") or _whole(linear.weight)
        # 16 bits keep the weight as a parameter, which fsdp shards. 4 bits keep it as buffers.
        kind = LoraLinear if config.base_bits == 16 else PackedLoraLinear
        cutting = group if isinstance(linear, ColumnLinear | RowLinear) else None
        layer = kind(linear, name=name, cut=cut, config=config, group=cutting)
        added.update(layer.adapter_cuts())
        return layer

    # Phase 2: replace. A module of transformers is searched by names, because its layers have no
    # names in common with ours.
    if isinstance(stage, CausalModule):
        for name, linear in _chosen(cast("nn.Module", stage), config).items():
            layer = make(name, linear)
            # Collectives of a cut layer are its hooks.
            for kind in ("_forward_pre_hooks", "_forward_hooks"):
                getattr(layer, kind).update(getattr(linear, kind))
            stage.set_submodule(name, layer)
    else:
        replace_projections(stage, config.projections_of(model), make)
    # Without a tensor axis all adapters are whole, and no cut needs to be recorded.
    added = added if group is not None else {}
    # Phase 3: experts, whose weights lie in one tensor and not in linear layers.
    if config.projections & {*EXPERT_PROJECTIONS}:
        added |= adapt_experts(stage, config, cuts)
    return {**cuts, **added}


def _chosen(module: nn.Module, config: LoraConfig) -> dict[str, nn.Linear]:
    """Return the layers of a module of transformers that `targets` names, by name.

    Raises:
        ConfigError: a name is of none.
    """
    layers = linear_layers(module, cut=(ColumnLinear, RowLinear))
    # An empty list means that the model has layers of its own kind, such as Conv1D of GPT-2.
    if not layers:
        raise ConfigError(
            f"lora: {type(module).__name__} has no linear layers that adapters lie beside; leave"
            " lora out"
        )
    if config.targets_all:
        return layers
    # Each name must match, so that a misspelled target is not ignored.
    for target in sorted(config.projections):
        if not any(_is_called(name, target) for name in layers):
            ends = sorted({name.rpartition(".")[2] for name in layers})
            raise ConfigError(
                f"lora.targets: {type(module).__name__} has no linear layer called {target!r} that"
                f" adapters lie beside; it has {', '.join(ends)}"
            )
    return {
        # A layer matches if any target is its name or its end.
        name: layer
        for name, layer in layers.items()
        if any(_is_called(name, target) for target in config.projections)
    }


def _is_called(name: str, target: str) -> bool:
    """Return whether a target is a layer's name or its end, as in peft."""
    return name == target or name.endswith(f".{target}")


class LoraLinear(ReplacedLinear):
    """A frozen linear layer with its adapter.

    Args:
        linear: the frozen layer [O, I].
        name: full name of the layer.
        cut: part of the weight on this rank.
        config: rank, scale and dropout of the adapters.
        group: ranks that share the weight. None: one rank has all of it.
    """

    def __init__(
        self,
        linear: nn.Linear,
        *,
        name: str,
        cut: Cut,
        config: LoraConfig,
        group: ProcessGroup | None,
    ) -> None:
        super().__init__(linear)
        self.name, self.cut = name, cut
        self.scale, self.group = config.scale, group
        self.applied = True
        features_out, features_in = linear.weight.shape
        # On meta, and in the type of the weight: the adapter computes in the same type as its base.
        empty = linear.weight.detach().new_empty
        self.lora_a = nn.Parameter(empty(config.rank, features_in))
        self.lora_b = nn.Parameter(empty(features_out, config.rank))

    def product(self, x_BSI: Tensor) -> Tensor:
        """Multiply [batch, sequence, in] by the base's weight and the applied adapter's two."""
        # The reference of preferences passes the base alone.
        if not self.applied:
            return self.of_base(x_BSI)
        a_RI, b_OR = self.lora_a, self.used(self.lora_b)
        # A row-cut layer has B on all ranks: each rank sees part of the sum, so B's gradient is
        # summed.
        if self.group is not None and self.row:
            b_OR = copy_to_region(b_OR, self.group)
        # A column-cut layer has A on all ranks: each rank sees some outputs, so A's gradient is
        # summed.
        elif self.group is not None:
            a_RI = copy_to_region(a_RI, self.group)
        # A first: [B, S, R] is small. B A as a matrix of the base's size would cost as much as the
        # base.
        return self.of_base(x_BSI) + F.linear(F.linear(x_BSI, a_RI), b_OR) * self.scale

    def of_base(self, x_BSI: Tensor) -> Tensor:
        """Multiply [batch, sequence, in] by the base's weight alone."""
        assert self.weight is not None  # noqa: S101 - only packed layers are without
        return F.linear(x_BSI, self.weight)

    def adapter_cuts(self) -> Iterator[tuple[str, Cut]]:
        """Yield the names of A and B with this rank's parts of them, as the layer is cut."""
        # A takes the columns of the cut and B its rows. A part that is not cut has one copy on each
        # rank of the group.
        rows, columns = self.cut.shape
        (top, left), (rank, _) = self.cut.box.offsets, self.lora_a.shape
        own = whole = (self.cut.copies, self.cut.copy)
        if self.group is not None:
            whole = (self.group.size(), self.group.rank())
        for name, shape, offsets, tensor, is_cut in (
            (A, (rank, columns), (0, left), self.lora_a, self.row),
            (B, (rows, rank), (top, 0), self.lora_b, not self.row),
        ):
            yield (
                f"{self.name}.{name}",
                Cut(
                    shape=shape,
                    box=Box(offsets=offsets, shape=tuple(tensor.shape)),
                    copies=own[0] if is_cut else whole[0],
                    copy=own[1] if is_cut else whole[1],
                ),
            )


class PackedLoraLinear(LoraLinear):
    """A layer with adapters and a base weight packed into 4 bits: QLoRA.

    Every data rank holds the whole part of its tensor rank. Packed weights are small, and fsdp does
    not shard them.

    Args:
        linear: the frozen layer [O, I].
        config: rank, scale and dropout of the adapters.
        given: other arguments of `LoraLinear`.
    """

    def __init__(self, linear: nn.Linear, *, config: LoraConfig, **given: Any) -> None:
        super().__init__(linear, config=config, **given)
        rows, columns = linear.weight.shape
        self.doubly = config.double_quantization
        # The weight is removed as a parameter. The codes are buffers, so fsdp and the optimizer do
        # not see them.
        self.weight = None
        room = Packed.empty(rows, columns, doubly=self.doubly, device=torch.device("meta"))
        self.register_buffer("codes", room.codes)
        self.register_buffer("scales", room.scales)
        self.register_buffer("steps", room.steps)
        self.codes: Tensor
        self.scales: Tensor
        self.steps: Tensor | None

    def of_base(self, x_BSI: Tensor) -> Tensor:
        """Multiply [batch, sequence, in] by the packed base's weight alone."""
        return linear_of_packed(x_BSI, self.packed)

    @property
    def packed(self) -> Packed:
        """The base's weight."""
        return Packed(codes=self.codes, scales=self.scales, steps=self.steps)

    def unpacked(self) -> TensorSlice:
        """Make room in host memory for the weight to pack; its contents are undefined."""
        # fp32 in host memory: the weight is read or drawn here, and packed afterwards.
        room = torch.empty(self.cut.box.shape)
        return TensorSlice(
            name=f"{self.name}.weight", shape=self.cut.shape, box=self.cut.box, tensor=room
        )

    def take(self, weight: TensorSlice) -> None:
        """Pack what `unpacked` made room for."""
        # Packing runs on the device that has the codes. The host copy is freed by the caller.
        packed = pack(weight.tensor.to(self.codes.device), doubly=self.doubly)
        self.codes.copy_(packed.codes)
        self.scales.copy_(packed.scales)
        if self.steps is not None and packed.steps is not None:
            self.steps.copy_(packed.steps)


@contextmanager
def called_adapters(stage: nn.Module) -> Generator[None]:
    """Watch passes through a stage for adapters that it leaves out.

    A module may read the weight of a layer that it never calls: its adapter would change nothing.

    Raises:
        ConfigError: at the end, a layer was not called and the module that has it was.
    """
    layers = [module for module in stage.modules() if isinstance(module, LoraLinear)]
    # A layer's parent decides: a module that was never called says nothing about its layers.
    parents = {layer: stage.get_submodule(layer.name.rpartition(".")[0]) for layer in layers}
    called: set[nn.Module] = set()

    def note(module: nn.Module, *_: object) -> None:
        called.add(module)

    watched = {*layers, *parents.values()}
    handles = [module.register_forward_pre_hook(note) for module in watched]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    # After the passes. A layer whose parent was called and which was not called itself has a dead
    # adapter.
    for layer, parent in parents.items():
        if layer not in called and parent in called:
            raise ConfigError(
                f"lora.targets: {type(parent).__name__} computes with the weight of {layer.name}"
                " without calling that layer, so that an adapter would change nothing; name"
                " other layers"
            )


@contextmanager
def without_adapters(stage: nn.Module) -> Generator[None]:
    """Disable the stage's adapters within the context."""
    layers = [module for module in stage.modules() if isinstance(module, LoraLinear | LoraExperts)]
    for layer in layers:
        layer.applied = False
    try:
        yield
    finally:
        for layer in layers:
            # Also after an error: a rank that survives it must not train without adapters.
            layer.applied = True


def merge_adapter(
    name: str, weight: Tensor, adapters: Mapping[str, Tensor], *, config: LoraConfig
) -> Tensor:
    """Merge a base weight with its adapter, if it has one: W + alpha / rank · B A.

    If the base was packed, W is its quantized value, which the adapters were trained with.

    Args:
        name: name of the weight.
        weight: weight of the base, whole [O, I].
        adapters: whole, by the names that `adapt` gave them: A [rank, I], B [O, rank].
        config: they were trained with.

    Returns:
        [O, I] in the weight's type. The product is computed in fp32.
    """
    # The order is that of the names: an expert's weight has no layer of its own.
    of_experts = added_to(name, adapters)
    if of_experts is not None:
        return (weight.float() + of_experts * config.scale).to(weight.dtype)
    layer = name.removesuffix(".weight")
    a, b = adapters.get(f"{layer}.{A}"), adapters.get(f"{layer}.{B}")
    if a is None or b is None:
        # Layers without an adapter, norms and embeddings pass unchanged.
        return weight
    under = weight.float()
    # The adapters were trained beside the rounded weight. Merging into the exact one would change
    # the outputs.
    if config.base_bits == 4:
        packed = pack(under, doubly=config.double_quantization)
        under = packed.weight(features=under.shape[1], dtype=under.dtype)
    # fp32: a bf16 product would lose small updates before they are added.
    added = b.float() @ a.float() * config.scale
    return (under + added).to(weight.dtype)


def _whole(weight: Tensor) -> Cut:
    shape = tuple(weight.shape)
    return Cut(shape=shape, box=Box(offsets=(0,) * len(shape), shape=shape))
