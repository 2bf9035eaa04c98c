"""Marks on a CUDA stream: events that are recorded now and read when they have passed."""

from __future__ import annotations

from collections import deque

import torch


class CudaClock:
    """A clock of the current stream. An event is reused once the mark after it has been read."""

    def __init__(self) -> None:
        self._free: deque[torch.cuda.Event] = deque()

    def mark(self) -> torch.cuda.Event:
        """Record an event after the work that has been queued so far."""
        event = self._free.popleft() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float | None:
        """Return seconds between two events; the earlier one must not be used afterwards."""
        if not later.query():
            return None
        milliseconds = earlier.elapsed_time(later)
        self._free.append(earlier)
        return milliseconds / 1000
