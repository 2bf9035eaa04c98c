"""Layers of which each rank of the tensor axis holds a part (Shoeybi et al. 2019).

Between blocks, ranks hold the same activations, or with sequence parallelism each its positions of
them (Korthikanti et al. 2022). Inside a block they hold all positions of their own features: it is
entered by a `ColumnLinear`, which has some of the output features, and left by a `RowLinear`, which
has some of the input features: collectives at its ends and in between none. `Region` is the
border, with one meaning for both ways of holding activations.

All keep the parameters' names. Shapes: B batch, S sequence, D hidden, I and O input and output
features of a linear layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from drumline_trainer.parallelism.tensor_parallel.collectives import (
    copy_to_region,
    divide_gradient,
    gather_positions,
    reduce_from_region,
    reduce_scatter_positions,
    scatter_positions,
    sum_neighbours,
)
from drumline_trainer.parallelism.tensor_parallel.overlap import (
    enter_with_carriers,
    linear_with_carrier,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The inside of blocks, where every rank works on all positions with its own features."""

    group: ProcessGroup
    sequence_parallel: bool
    """True if a rank holds only its own positions outside of the region."""
    overlap: bool = True
    """True if the gradient of the region's input is summed while gradients of weights are computed.
    """

    def enter(self, x_BSD: Tensor) -> Tensor:
        """Enter the region with all positions, for work that differs by rank."""
        if self.sequence_parallel:
            return gather_positions(x_BSD, self.group)
        return copy_to_region(x_BSD, self.group)

    def leave(self, x_BSD: Tensor) -> Tensor:
        """Sum the ranks' results [B, S, D]. With sequence parallelism keep own positions."""
        if self.sequence_parallel:
            return reduce_scatter_positions(x_BSD, self.group)
        return reduce_from_region(x_BSD, self.group)

    def split_positions(self, x_BSD: Tensor) -> Tensor:
        """Return the part of a replicated tensor [B, S, D] that is held outside the region."""
        return scatter_positions(x_BSD, self.group) if self.sequence_parallel else x_BSD

    def divide_gradient(self, x_BSD: Tensor) -> Tensor:
        """Divide gradients of work inside the region that is the same on every rank."""
        return divide_gradient(x_BSD, self.group)

    def sum_gradient(self, x_BSD: Tensor) -> Tensor:
        """Sum gradients of what every rank made alike inside, for work that differs by rank."""
        return copy_to_region(x_BSD, self.group)

    def outside_weight(self, weight: Tensor) -> Tensor:
        """Return a replicated weight for use outside: its gradient is summed over positions."""
        return copy_to_region(weight, self.group) if self.sequence_parallel else weight

    def piece(self, size: int) -> range:
        """Return this rank's range of `size` features or rows. Ranges differ by at most one."""
        return self.pieces(size)[self.group.rank()]

    def pieces(self, size: int) -> list[range]:
        """Return the `piece` of each rank."""
        ranks = self.group.size()
        return [range(size * rank // ranks, size * (rank + 1) // ranks) for rank in range(ranks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShare:
    """This rank's key-value heads: its part of them, or one that neighbours also have."""

    group: ProcessGroup
    heads: int
    """Number of heads of all ranks."""

    @property
    def copies(self) -> int:
        """Number of neighbouring ranks with the same heads."""
        return max(1, self.group.size() // self.heads)

    @property
    def copy(self) -> int:
        """Index of this rank among those."""
        return self.group.rank() % self.copies

    def piece(self, size: int) -> range:
        """Return this rank's range of `size` features."""
        parts = self.group.size() // self.copies
        part, each = self.group.rank() // self.copies, size // parts
        return range(part * each, (part + 1) * each)

    def whole_gradient(self, weight: Tensor) -> Tensor:
        """Return the weight of these features for this rank's queries, with a summed gradient.

        It also applies to weights of adapters beside them.
        """
        return sum_neighbours(weight, self.group, count=self.copies)


def own_piece(parameter: Tensor, dimension: int, region: Region) -> nn.Parameter:
    """Return this rank's part of a weight along `dimension`.

    It stays on the meta device if it is there.

    Args:
        parameter: the whole weight.
        dimension: dimension that is split.
        region: tensor ranks and this rank's index.
    """
    return _part(parameter, dimension, region.piece(parameter.shape[dimension]))


def _part(parameter: Tensor, dimension: int, piece: range) -> nn.Parameter:
    part = parameter.detach().narrow(dimension, piece.start, len(piece))
    # of the memory format that is kept by default the meta device asks sympy: 0.5 s to import
    own = part.clone(memory_format=torch.contiguous_format)
    return nn.Parameter(own, requires_grad=parameter.requires_grad)


class ColumnLinear(nn.Linear):
    """A linear layer with this rank's output features, inside of a region.

    Args:
        linear: the whole layer [O, I].
        region: tensor ranks and this rank's index.
        shared: ranks that hold the same key-value head.
    """

    def __init__(
        self, linear: nn.Linear, region: Region, *, shared: HeadShare | None = None
    ) -> None:
        """Take this rank's part of a layer; `shared`: neighbours may have the same one."""
        size = linear.out_features
        piece = region.piece(size) if shared is None else shared.piece(size)
        super().__init__(linear.in_features, len(piece), bias=False, device="meta")  # pyright: ignore[reportUnknownMemberType] - torch leaves device and dtype without types
        # Heads decide the cut of keys and values, all other layers are cut evenly.
        self.piece, self.shared = piece, shared
        self.weight = _part(linear.weight, 0, piece)
        if linear.bias is not None:  # pyright: ignore[reportUnnecessaryComparison] - torch's types leave out that it may be None
            self.bias = _part(linear.bias, 0, piece)
        self.enters = True
        """True if its input is that of its block."""
        self.carrier: Tensor | None = None
        """Left by `enter_block`, for this forward pass and for its recomputation."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name is nn.Linear's
        """Apply the layer; shape [batch, sequence, out], of this rank's part of `out`."""
        bias = None if self.bias is None else self.used(self.bias)  # pyright: ignore[reportUnnecessaryComparison] - torch's types leave out that it may be None
        if self.carrier is None:
            return F.linear(input, self.used(self.weight), bias)
        x_BSO = linear_with_carrier(input, self.weight, self.carrier)
        return x_BSO if bias is None else x_BSO + bias

    def used(self, parameter: Tensor) -> Tensor:
        """Return a parameter as it enters a product; its gradient is its holders' sum."""
        return parameter if self.shared is None else self.shared.whole_gradient(parameter)


def enter_block(block: nn.Module, x_BSD: Tensor, region: Region) -> Tensor:
    """Enter the region for all column-cut layers that are a block's own, begin it and learn.

    Args:
        block: attention or MLP.
        x_BSD: input [batch, sequence, D]. With sequence parallelism S is this rank's part.
        region: tensor ranks and this rank's index.
    """
    own = (layer for layer in block.children() if type(layer) is ColumnLinear)
    columns = [layer for layer in own if layer.enters]
    for layer in columns:
        # From the last forward pass, which evaluation may have left unused.
        layer.carrier = None
    learning = [layer for layer in columns if layer.weight.requires_grad]
    # Without a backward pass there is nothing to overlap.
    if not (learning and region.overlap and torch.is_grad_enabled()):
        return region.enter(x_BSD)
    entered, carriers = enter_with_carriers(
        x_BSD,
        [layer.used(layer.weight) for layer in learning],
        group=region.group,
        by_position=region.sequence_parallel,
    )
    for layer, carrier in zip(learning, carriers, strict=True):
        layer.carrier = carrier
    return entered


class RowLinear(nn.Linear):
    """A linear layer with this rank's input features; the sum over the ranks leaves the region.

    Args:
        linear: the whole layer [O, I].
        region: tensor ranks and this rank's index.
        leaves: whether this layer sums over the ranks. False: its caller does.
    """

    def __init__(self, linear: nn.Linear, region: Region, *, leaves: bool) -> None:
        """Take this rank's part of a layer; not `leaves`: the caller sums over the ranks."""
        features = len(region.piece(linear.in_features))
        super().__init__(features, linear.out_features, bias=False, device="meta")  # pyright: ignore[reportUnknownMemberType] - torch leaves device and dtype without types
        self.region = region
        self.leaves = leaves
        self.weight = own_piece(linear.weight, 1, region)
        self.bias = linear.bias

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name is nn.Linear's
        """Apply the layer; shape [batch, sequence, out]. Every rank adds the bias to its part."""
        x_BSO = F.linear(input, self.weight)
        if self.leaves:
            x_BSO = self.region.leave(x_BSO)
        # After the sum: each rank adding the bias would count it several times.
        return x_BSO if self.bias is None else x_BSO + self.region.outside_weight(self.bias)  # pyright: ignore[reportUnnecessaryComparison] - torch's types leave out that it may be None


class SplitRMSNorm(nn.RMSNorm):
    """A norm whose ranks see different positions or heads: its gradient is summed over them."""

    def __init__(self, norm: nn.RMSNorm, group: ProcessGroup) -> None:
        super().__init__(list(norm.normalized_shape), eps=norm.eps, device="meta")  # pyright: ignore[reportUnknownMemberType] - torch leaves device and dtype without types
        self.group = group
        self.weight = norm.weight

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x` [..., *normalized_shape]."""
        return F.rms_norm(
            x, self.normalized_shape, copy_to_region(self.weight, self.group), self.eps
        )


class SplitLayerNorm(nn.LayerNorm):
    """A norm whose ranks see different positions: its gradients are summed over them."""

    def __init__(self, norm: nn.LayerNorm, group: ProcessGroup) -> None:
        super().__init__(list(norm.normalized_shape), eps=norm.eps, device="meta")  # pyright: ignore[reportUnknownMemberType] - torch leaves device and dtype without types
        self.group = group
        self.weight = norm.weight
        self.bias = norm.bias

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name is nn.LayerNorm's
        """Normalize `input` [..., *normalized_shape]."""
        bias = None if self.bias is None else copy_to_region(self.bias, self.group)  # pyright: ignore[reportUnnecessaryComparison] - torch's types leave out that it may be None
        weight = copy_to_region(self.weight, self.group)
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)
