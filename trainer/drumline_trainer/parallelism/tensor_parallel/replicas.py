"""Compare the gradients of weights that every tensor rank holds, once, for unknown code."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline_contract.config import ConfigError
from drumline_trainer.models.transformers.module import (
    CausalModule,
    class_name,
    imported_library,
)
from drumline_trainer.parallelism.tensor_parallel.module_plan import INSTEAD
from drumline_trainer.sharding.slices import TensorSlice


@torch.no_grad()
def check_replicas(
    module: CausalModule,
    slices: tuple[TensorSlice, ...],
    gradients: list[Tensor],
    group: ProcessGroup,
) -> None:
    """Check that ranks have equal gradients of the weights that each of them holds. Collective.

    A plan may lack a weight that sees only a rank's own heads. Its copies would grow apart.

    Args:
        module: its `replicated` weights are checked, and forgotten if all is right.
        slices: all weights that learn.
        gradients: of them, summed over the data ranks.
        group: the tensor axis.

    Raises:
        ConfigError: the ranks' gradients of a weight differ.
    """
    held = [
        (part.name, gradient.flatten())
        for part, gradient in zip(slices, gradients, strict=True)
        if part.name in module.replicated
    ]
    if not held:
        return
    # Alternating signs: partial gradients of equal norm have different sums.
    # They are summed in fp64 without a copy: such a weight may be a whole embedding.
    fp64 = torch.float64
    sums = torch.stack([each[::2].sum(dtype=fp64) - each[1::2].sum(dtype=fp64) for _, each in held])
    norms = torch.stack([each.norm(dtype=fp64) for _, each in held])  # pyright: ignore[reportUnknownMemberType] - torch's stubs
    # A maximum over ranks can lose a NaN, but no infinity.
    norms = norms.nan_to_num(nan=torch.inf, posinf=torch.inf)
    extremes = torch.cat([sums, -sums, norms]).view(3, -1)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)
    largest, lowest, norms = extremes.cpu().unbind()
    if not bool(norms.isfinite().all()):
        return
    apart = (largest + lowest > 1e-2 * norms) & (norms > 1e-6 * norms.max())
    if bool(apart.any()):
        name = held[int(apart.nonzero()[0])][0]
        raise ConfigError(
            f"parallelism.tensor: the plan (tp_plan) of {class_name(module)} in transformers"
            f" {imported_library().__version__} gives each rank only a part of the gradient of"
            f" {name}; {INSTEAD}"
        )
    module.replicated = frozenset()
