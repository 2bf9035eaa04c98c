"""Which device a rank computes on."""

from __future__ import annotations

import torch


def device_of_rank(local_rank: int) -> torch.device:
    """The GPU of this rank in its pod, or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device("cpu")
