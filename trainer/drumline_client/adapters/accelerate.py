"""Use Hugging Face's Accelerate in the script's own loop.

    drumline = DrumlineSteps(accelerator, folder)
    for step in range(drumline.resume(), total):
        ...
        if drumline.step(step + 1, loss=loss):
            break

When a node leaves or the job is preempted, all ranks call `save_state` at the agreed step. What
`save_state` does not hold (the position in the data) is the script's to derive from the step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drumline_client.adapters.checkpoint_folder import agreed_newest
from drumline_client.run import Run, join

COMPLETE = "complete"
"""Empty file, created when all ranks have written their parts."""


class DrumlineSteps:
    """Reports the steps of an Accelerator's loop, and saves its state on request.

    Args:
        accelerator: Accelerate's Accelerator.
        folder: a folder that all ranks share.
        run: result of `join`.
    """

    def __init__(self, accelerator: Any, folder: str, run: Run | None = None) -> None:
        """Save into this folder, which all ranks share. `run` is the result of `join`."""
        self._accelerator = accelerator
        self._folder = Path(folder)
        self._run = join() if run is None else run
        self._saved_step = -1

    def resume(self) -> int:
        """Load the newest complete state, after `prepare`. Return its step, or 0 at the start.

        Raises:
            FileNotFoundError: this rank does not see the state that rank 0 loads.
        """
        newest = agreed_newest(
            self._folder, r"step-(\d+)", is_whole=lambda folder: (folder / COMPLETE).exists()
        )
        if newest is None:
            return 0
        self._run.phase("restoring")
        step, path = newest
        self._accelerator.load_state(str(path))
        return step

    def step(self, step: int, *, loss: Any = None, tokens: int = 0) -> bool:
        """Report an optimizer step on every rank. True: it was saved, and the loop may end.

        Args:
            step: number of finished steps.
            loss: a number or a tensor with one element.
            tokens: tokens of this rank since the last call.
        """
        self._run.step(step, loss=loss, tokens=tokens)
        if self._run.should_save():
            self.save(step)
        return self._run.should_stop()

    def save(self, step: int) -> None:
        """Save the state of a step, on request or on the script's own schedule. Collective.

        A step that was just saved on request is not saved again.
        """
        if step == self._saved_step:
            return
        self._run.phase("saving")
        path = self._folder / f"step-{step}"
        # A state of an earlier run is not complete while it is replaced.
        if self._accelerator.is_main_process:
            (path / COMPLETE).unlink(missing_ok=True)
        self._accelerator.wait_for_everyone()
        self._accelerator.save_state(str(path))
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            (path / COMPLETE).touch()
        self._saved_step = step
        self._run.saved(step, path)
