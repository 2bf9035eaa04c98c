"""Named ranges in traces: phases and step parts, for torch.profiler and for NVTX."""

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
        """The phase, and the step parts within it."""

    def switch(self, *, on: bool) -> None:
        """Switch on or off; open ranges end."""
        while self._open:
            self._leave()
        self._active = on

    def enter(self, phase: str) -> None:
        """A phase begins; the one before ends."""
        while self._open:
            self._leave()
        self.begin(phase)

    def begin(self, name: str) -> None:
        """A range begins within the open one."""
        if not self._active:
            return
        named = ExitStack()
        named.enter_context(record_function(name))
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)  # pyright: ignore[reportUnknownMemberType] - untyped
            named.callback(torch.cuda.nvtx.range_pop)
        self._open.append(named)

    def end(self) -> None:
        """The innermost range ends."""
        if self._open:
            self._leave()

    def _leave(self) -> None:
        self._open.pop().__exit__(None, None, None)
