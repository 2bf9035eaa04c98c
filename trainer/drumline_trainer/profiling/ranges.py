"""Names in traces: every phase and every part of it, for torch.profiler and for NVTX."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

import torch
from torch.profiler import record_function


class TraceRanges:
    """An observer (`metrics.step_timer`) that does nothing until it is switched on.

    Args:
        nvtx: also push NVTX ranges, where there is a GPU.
    """

    def __init__(self, *, nvtx: bool) -> None:
        self._nvtx = nvtx and torch.cuda.is_available()
        self._active = False
        self._open: list[AbstractContextManager[object]] = []
        """The phase, and the parts within it."""

    def switch(self, *, on: bool) -> None:
        """Name what begins from now on; what is open ends."""
        while self._open:
            self._leave()
        self._active = on

    def enter(self, phase: str) -> None:
        """A phase follows another."""
        while self._open:
            self._leave()
        self.begin(phase)

    def begin(self, name: str) -> None:
        """A range within the one that is open."""
        if not self._active:
            return
        named = ExitStack()
        named.enter_context(record_function(name))
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)
            named.callback(torch.cuda.nvtx.range_pop)
        self._open.append(named)

    def end(self) -> None:
        """The innermost range is over."""
        if self._open:
            self._leave()

    def _leave(self) -> None:
        self._open.pop().__exit__(None, None, None)
