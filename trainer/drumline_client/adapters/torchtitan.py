"""Extend torchtitan's checkpoint manager with the job's notices and snapshots in memory.

    # in the function of your config registry
    config.checkpoint = DrumlineCheckpoints.Config(enable=True, interval=500, snapshot_interval=20)

The trainer calls it after each step and when it starts: no other line changes. Written for
torchtitan 0.3, whose managers are built from the class of their config.
"""

# The library is in the images of users, not in this repository's environment: the tests run in
# one that has it (make test-all WHAT=libraries).
# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from torchtitan.components.checkpointer import TRAIN_STATE, CheckpointManager

from drumline_client.run import Run, join


class DrumlineCheckpoints(CheckpointManager):
    """Saves at the step that the job agrees on, and resumes from the newest of both tiers."""

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        """Configuration of torchtitan's manager and of the snapshots."""

        snapshot_interval: int = 0
        """Steps between two snapshots in memory. 0: none."""

    def __init__(self, config: Config, *, run: Run | None = None, **parts: Any) -> None:
        """Create the manager as torchtitan does. `run` is the result of `join`."""
        super().__init__(config, **parts)
        self._run = join() if run is None else run
        self._snapshot_interval = config.snapshot_interval
        self._is_asked = False

    def _load(self, step: int = -1) -> bool:
        if step == -1 and self._run.restore(self.states) is not None:
            return True
        self._run.phase("restoring")
        return super()._load(step)

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        self._run.step(curr_step)
        self._is_asked = self._run.should_save()
        saved = super()._save(curr_step, last_step)
        if saved and not last_step:  # torchtitan's last one holds the model alone
            self._report(curr_step)
        elif self._snapshot_interval and curr_step % self._snapshot_interval == 0:
            self._run.snapshot(self.states, step=curr_step)
        if self._run.should_stop():
            trainer = self.states[TRAIN_STATE]
            trainer.config.training.steps = curr_step  # its loop ends here
        return saved

    def _should_save(self, curr_step: int, last_step: bool = False) -> bool:
        return self._is_asked or super()._should_save(curr_step, last_step)

    def _report(self, step: int) -> None:
        """Call `saved` when the checkpoint is on storage, immediately or later."""
        path = self._create_checkpoint_id(step)
        if self.save_future is None:
            self._run.saved(step, path)
            return
        self._run.saving(step)

        def done(writing: Future[Any]) -> None:
            error = writing.exception()
            self._run.saved(step, path, error="" if error is None else str(error))

        self.save_future.add_done_callback(done)
        if self._is_asked:
            self.maybe_wait_for_saving()
