"""Notice losses that are not numbers; pure.

A single nan may be a skipped step of mixed precision. `STEPS` in a row are a run that has diverged:
it continues, and wastes its GPUs.
"""

from __future__ import annotations

from typing import Final

from drumline_agent.commands.progress_lines import ProgressLine

STEPS: Final = 3


class LossWatch:
    """Losses of the lowest rank of a pod, over its attempts."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._steps = 0
        self._newest: int | None = None

    def read(self, line: ProgressLine) -> str:
        """Take in a line, and return a sentence about the losses, usually an empty one."""
        if not line.not_finite:
            if line.loss is not None:
                self._first, self._steps, self._newest = None, 0, None
            return "" if self._first is None else self._sentence("not a number")
        if self._first is None:
            self._first = line.step
        if line.step != self._newest:
            self._steps, self._newest = self._steps + 1, line.step
        return self._sentence(line.not_finite)

    def _sentence(self, printed: str) -> str:
        if self._steps < STEPS:
            return ""
        return (
            f"the loss is {printed} since step {self._first}: the run has diverged and keeps its"
            " GPUs; stop it, and lower the learning rate or check the data"
        )
