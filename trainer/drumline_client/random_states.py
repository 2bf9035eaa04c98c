"""The random states of a process: Python's, numpy's, torch's on the host and on its device.

Imports torch, so it is imported late: the client itself needs the standard library alone.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


class RandomStates:
    """All that exist in this process; numpy's where the program has imported it."""

    def state_dict(self) -> dict[str, Any]:
        """As they are now."""
        states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            states["numpy"] = numpy.random.get_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state()
        return states

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Go on where these were taken."""
        numpy: Any = sys.modules.get("numpy")
        random.setstate(states["python"])
        torch.set_rng_state(states["torch"])
        if numpy is not None and "numpy" in states:
            numpy.random.set_state(states["numpy"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"])
