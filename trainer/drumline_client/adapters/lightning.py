"""Use Lightning: `Trainer(callbacks=[drumline := DrumlineCallback(folder)])`.

    trainer.fit(model, ckpt_path=drumline.newest_checkpoint())

Optimizer steps and losses are reported. When a node leaves or the job is preempted, all ranks save
into the folder at the agreed step, and the Trainer stops if the pods are given back. Callbacks that
log a step come before this one: the process may be stopped once the step is saved.
"""

# The library is in the images of users, not in this repository's environment: the tests run in
# one that has it (make test-all WHAT=libraries).
# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from drumline_client.adapters.checkpoint_folder import newest_whole
from drumline_client.run import Run, join


class DrumlineCallback(Callback):
    """Reports a Trainer's run, and saves it on request."""

    def __init__(self, folder: str, run: Run | None = None) -> None:
        """Save into this folder, which all ranks share. `run` is the result of `join`."""
        self._folder = Path(folder)
        self._run = join() if run is None else run
        self._step = -1

    def newest_checkpoint(self) -> str | None:
        """Return the newest file of the folder for `fit(ckpt_path=...)`, or None at the start."""
        newest = newest_whole(self._folder, r"step-(\d+)\.ckpt", is_whole=lambda _: True)
        return None if newest is None else str(newest[1])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Set the number of steps, unless it is -1 or infinite."""
        total = trainer.estimated_stepping_batches
        if 0 < total < float("inf"):
            self._run.expect(int(total))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report a boundary on every rank, unless gradients are still accumulated."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        self._run.step(self._step, loss=outputs["loss"] if isinstance(outputs, dict) else outputs)
        if self._run.should_save():
            path = self._folder / f"step-{self._step}.ckpt"
            unfinished = path.with_suffix(".part")
            trainer.save_checkpoint(unfinished)
            if trainer.is_global_zero:
                unfinished.rename(path)  # so no half-written file is ever the newest
            trainer.strategy.barrier("drumline")
            self._run.saved(self._step, path)
            trainer.should_stop = trainer.should_stop or self._run.should_stop()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Report validation, which has no training steps."""
        self._run.phase("evaluating")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the end, because the script does no training after it."""
        self._run.phase("saving")
