"""A linear layer with another way to compute its product, cut by the tensor axis or not.

Adapters and fp8 change the part of a layer between its input and its bias. The border of the region
that a `RowLinear` leaves stays as it is. Parameters keep their names. Such a layer sums its own
input's gradient with the block's, without the overlap of `ColumnLinear`.

Shapes: B batch, S sequence, I and O this rank's input and output features.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor, nn

from drumline_trainer.parallelism.tensor_parallel.layers import ColumnLinear, RowLinear


class ReplacedLinear(nn.Module):
    """Takes the place of a linear layer, whose parameters it takes over."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight: Tensor | None = linear.weight
        self.bias: Tensor | None = linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.row = isinstance(linear, RowLinear)
        self.region = linear.region if isinstance(linear, RowLinear) else None
        self.leaves = isinstance(linear, RowLinear) and linear.leaves
        self.shared = linear.shared if isinstance(linear, ColumnLinear) else None

    def product(self, x_BSI: Tensor) -> Tensor:
        """Multiply without bias, [batch, sequence, out]; a row-cut layer gives a partial sum."""
        raise NotImplementedError

    def forward(self, x_BSI: Tensor) -> Tensor:
        """Apply the layer; shape [batch, sequence, out]."""
        x_BSO = self.product(x_BSI)
        # Without a region the layer is not cut by rows, and its bias belongs to this rank.
        if self.region is None:
            return x_BSO if self.bias is None else x_BSO + self.used(self.bias)
        # The sum over the tensor ranks comes before the bias, which would otherwise count once for
        # each rank.
        if self.leaves:
            x_BSO = self.region.leave(x_BSO)
        return x_BSO if self.bias is None else x_BSO + self.region.outside_weight(self.bias)

    def used(self, parameter: Tensor) -> Tensor:
        """Return a parameter as it enters a product; see `ColumnLinear.used`."""
        return parameter if self.shared is None else self.shared.whole_gradient(parameter)


def replace_projections(
    stage: nn.Module, names: Collection[str], make: Callable[[str, nn.Linear], nn.Module]
) -> None:
    """Put `make(full name, layer)` in the place of linear layers that are called so, in place.

    Only inside of the model's layers: the head is called `output` too.

    Args:
        stage: the module to change.
        names: last names of layers.
        make: returns the new layer for a full name and a layer.
    """
    modules: list[tuple[str, nn.Module]] = list(stage.named_modules())  # pyright: ignore[reportUnknownArgumentType] - untyped in torch
    # The list is complete before the loop, which changes the module tree.
    for path, parent in modules:
        if not path.startswith("layers."):
            continue
        for name, module in list(parent.named_children()):
            if name in names and isinstance(module, nn.Linear):
                setattr(parent, name, make(f"{path}.{name}", module))
