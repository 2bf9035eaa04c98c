"""Notice losses that are not numbers; pure.

A single nan may be a skipped step of mixed precision. `STEPS` in a row are a run that has diverged:
it continues, and wastes its GPUs. Of a program whose steps are unknown, each printed loss counts as
a step.
"""

from __future__ import annotations

from typing import Final

from drumline_agent.commands.own_patterns import not_finite
from drumline_agent.commands.progress_lines import ProgressLine, printed_loss

STEPS: Final = 3


class LossWatch:
    """Losses of the lowest rank of a pod, over its attempts."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._steps = 0
        self._newest: int | None = None
        self._is_numbered = False
        """True after a step with a loss: losses without a step then mean something else."""
        self._unnumbered = 0

    def read_unknown(self, text: str) -> str | None:
        """Take in a line without a known step. None: it has no loss, and says nothing new."""
        loss = "" if self._is_numbered else printed_loss(text)
        if not loss:
            return None
        printed = not_finite(loss)
        self._unnumbered = self._unnumbered + 1 if printed else 0
        return self._sentence(printed)

    def read(self, line: ProgressLine) -> str:
        """Take in a line, and return a sentence about the losses, usually an empty one."""
        if not line.not_finite:
            if line.loss is not None:
                self._first, self._steps, self._newest = None, 0, None
                self._is_numbered, self._unnumbered = True, 0
            return self._sentence("not a number")
        self._is_numbered = True
        if self._first is None:
            self._first = line.step
        if line.step != self._newest:
            self._steps, self._newest = self._steps + 1, line.step
        return self._sentence(line.not_finite)

    def _sentence(self, printed: str) -> str:
        if max(self._steps, self._unnumbered) < STEPS:
            return ""
        since = "in the last lines" if self._first is None else f"since step {self._first}"
        return (
            f"the loss is {printed} {since}: the run has diverged and keeps its GPUs; stop it, and"
            " lower the learning rate or check the data"
        )
