"""Save and restore the random states of Python, numpy, and torch on host and device.

It imports torch, so it is imported late. The client itself needs only the standard library.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


class RandomStates:
    """All random states of this process, with numpy's if the program imported it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the current random states."""
        states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            states["numpy"] = numpy.random.get_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state()
        return states

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore random states."""
        numpy: Any = sys.modules.get("numpy")
        random.setstate(states["python"])
        torch.set_rng_state(states["torch"])
        if numpy is not None and "numpy" in states:
            numpy.random.set_state(states["numpy"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"])
