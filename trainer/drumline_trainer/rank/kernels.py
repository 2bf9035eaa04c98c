"""Which of torch's kernels a rank uses: the same in the same order each time, or the fastest."""

from __future__ import annotations

import os

import torch


def choose_kernels(*, deterministic: bool) -> None:
    """Settle it for this process, before it has used its device.

    Deterministic: a resumed run equals an undisturbed one bitwise. It costs the flash kernel's
    faster backward pass, cuDNN's attention and the benchmark of convolutions.
    """
    if not deterministic:
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # not `use_deterministic_algorithms`, which imports torch's compiler to tell it this:
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
    torch.set_deterministic_debug_mode("error")
    # every tensor we make is filled anyway
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue] - missing in torch's stubs
