"""All randomness while training: a function of (seed, step, rank), so there is no state to save.

Initial weights and the order of the samples are counter based (`models.initialize`, `data.order`).
What a forward pass draws, as dropout does, comes from torch's generator, which is seeded again at
every step: a run that is resumed at a step draws what the undisturbed run drew there.
"""

from __future__ import annotations

from hashlib import blake2b

import torch


def reseed(seed: int, *, step: int, rank: int) -> None:
    """Start this rank's generators for the step with this number (0-based)."""
    digest = blake2b(f"{seed}:{step}:{rank}".encode(), digest_size=7).digest()
    number = int.from_bytes(digest, "little")
    # torch.manual_seed keeps a note with a stack trace, at every call, for each kind of device that
    # was never used
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number)
