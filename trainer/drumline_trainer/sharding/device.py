"""Which device a rank computes on, and how a model gets there."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def device_of_rank(local_rank: int) -> torch.device:
    """The GPU of this rank in its pod, or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device("cpu")


def give_storage(module: nn.Module, device: torch.device) -> None:
    """What is on the meta device gets storage; its contents are undefined.

    `to_empty`, but for strides: it looks at those with sympy, half a second to import.
    """

    def allocate(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

    module._apply(allocate)  # noqa: SLF001 - as Module.to does # pyright: ignore[reportPrivateUsage, reportUnknownMemberType] - untyped in torch
